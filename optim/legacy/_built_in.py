"""`BuiltIn`, the base of the classes of `legacy.v2` that have a rule of `optim`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from optim.legacy._hypers import declared
from optim.legacy._v2_base import Keywords, Optimizer, checked_name
from optim.optimizer import Optimizer as ModernOptimizer


class BuiltIn(Optimizer):
    """A class with an algorithm of `optim`.

    Args:
      kind: the class of `optim` that does the work. name, keywords: see `Optimizer`.
      learning_rate, arguments: passed to `kind`.
    """

    _config_keys: ClassVar[tuple[str, ...]] = ()
    _shorter_list: ClassVar[bool] = False
    """Whether `set_weights` accepts a list without iterations, as the v1 optimizer of that name has it."""

    def __init__(
        self, kind: type[ModernOptimizer], name: Any, learning_rate: Any, keywords: Keywords, **arguments: Any
    ):
        if keywords.get("lr") is not None:
            warnings.warn("lr is the old name of learning_rate, which it overrides here", DeprecationWarning, 3)
            learning_rate = keywords["lr"]
        modern = kind(learning_rate=learning_rate, name=checked_name("name", name), **arguments)
        super().__init__(name, _modern=modern, **keywords)

    def _prepare_local(self, var_device: str, var_dtype: Any, apply_state: Any) -> None:
        """Compute the coefficients under the names of OptimizerV2's classes, for subclasses that read them."""
        super()._prepare_local(var_device, var_dtype, apply_state)
        values = apply_state[(var_device, var_dtype)]
        step = tf.cast(self.iterations + 1, var_dtype)
        values |= {name: self._get_hyper(name, var_dtype) for name in declared(type(self))}
        values |= {"neg_lr_t": -values["lr_t"], "zero": tf.zeros((), tf.int64)}
        for beta in ("beta_1", "beta_2"):
            if beta in values:
                values |= {f"{beta}_t": values[beta], f"{beta}_power": tf.pow(values[beta], step)}
                values[f"one_minus_{beta}_t"] = 1.0 - values[beta]
        if "rho" in values:
            values["one_minus_rho"] = 1.0 - values["rho"]

    def set_weights(self, weights: Sequence[Any]) -> None:
        values = list(weights)
        super().set_weights([0, *values] if self._shorter_list and len(self.weights) == len(values) + 1 else values)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON values."""
        config = super().get_config()
        name = config.pop("name")
        rate = self._serialize_hyperparameter("learning_rate")
        hypers = {key: self._serialize_hyperparameter(key) for key in self._config_keys}
        return {
            "name": name,
            "learning_rate": rate,
            "decay": self._serialize_hyperparameter("decay"),
            **hypers,
            **config,
        }
