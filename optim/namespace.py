"""The `xp` of TensorFlow: the functions of the table, by numpy's names, and all other functions of TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optim import lazy
from optim.arrays import ELEMENTWISE, allowed
from optim.errors import HyperparameterError

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazy.modules("tensorflow")


class _TensorFlow:
    def __getattr__(self, name: str) -> Any:
        for module, spelling in ((tf, name), (tf.math, name), (tf.linalg, name), (tf, ELEMENTWISE.get(name, ""))):
            function = getattr(module, spelling, None)
            if function is not None:
                setattr(self, name, function)  # asked for once
                return function
        raise HyperparameterError(
            f"a rule calls xp.{name}, which TensorFlow does not have; the functions of all executors are {allowed()}"
        )


XP = _TensorFlow()
