"""The `xp` of TensorFlow: the functions of the table, by numpy's names, and all other functions of TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from optim import lazy
from optim.arrays import ELEMENTWISE, allowed
from optim.errors import HyperparameterError

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazy.modules("tensorflow")


_numbers = itertools.count()


class _TensorFlow:
    """Functions of TensorFlow; each loop and condition gets its own name.

    DTensor makes a function of a loop and names it after the loop. If two of them have one name and other shapes, the
    second step fails: "a different function with the same name already exists" (TensorFlow 2.21). It does so at times
    for loops of one name, too, so that loops of a known length are unrolled.
    """

    unrolls = True

    def cond(self, condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        return tf.cond(condition, yes, no, name=f"cond_{next(_numbers)}")

    def while_loop(self, condition: Callable[..., Any], body: Callable[..., Any], values: Any, **options: Any) -> Any:
        return tf.while_loop(condition, body, values, **{"name": f"while_{next(_numbers)}", **options})

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
