"""The public optimizer Adafactor; its maths is in `optim/rules/adafactor.py`."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

from tensorflow.experimental import dtensor

from optim.errors import HyperparameterError
from optim.hyperparameters import Hyperparameter
from optim.optimizer import Optimizer
from optim.rules.adafactor import AdafactorRule

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from optim.settings import Options


class Adafactor(Optimizer):
    """Adafactor (Shazeer & Stern, 2018): second moments as row and column means, steps relative to the variable's size.

    Slots of a variable of rank 2 and more: `r`, its shape without the last dim, and `c`, its shape without the dim
    before; below rank 2: `v`, shaped like it. Means and norms are those of the whole variable, however it is sharded.

    Args:
      learning_rate: float >= 0, scalar tensor, schedule or zero-argument callable.
      beta_2_decay: γ in the decay rate 1 − t^γ of the means, <= 0; number, scalar tensor or zero-argument callable, as
        are the next three.
      epsilon_1: added to squared gradients, >= 0.
      epsilon_2: the least root mean square that a variable counts with, >= 0.
      clip_threshold: the greatest root mean square of a step before it is scaled, > 0.
      relative_step: as in Keras, which documents False to leave the learning rate alone, but caps it at 1/√t all the
        same. So False alone changes nothing here, either, and warns; it is `learning_rate_cap` that lifts the cap.
      gradients_clip_option, ema_option, name, mesh, options: see `Optimizer`.
      learning_rate_cap: cap the learning rate at 1/√t. False needs `relative_step=False`.

    Raises:
      HyperparameterError: out of range, `learning_rate_cap=False` with `relative_step`, or `lazy_rows`, which this
        rule cannot keep.
    """

    beta_2_decay = Hyperparameter(low=-math.inf, high=0.0, closed=True)
    epsilon_1 = Hyperparameter()
    epsilon_2 = Hyperparameter()
    clip_threshold = Hyperparameter(low=math.ulp(0.0))

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_2_decay: Any = -0.8,
        epsilon_1: Any = 1e-30,
        epsilon_2: Any = 1e-3,
        clip_threshold: Any = 1.0,
        relative_step: bool = True,
        gradients_clip_option: Any = None,
        ema_option: Any = None,
        name: str = "Adafactor",
        mesh: dtensor.Mesh | None = None,
        *,
        learning_rate_cap: bool = True,
        **options: Unpack[Options],
    ):
        self.beta_2_decay = beta_2_decay
        self.epsilon_1 = epsilon_1
        self.epsilon_2 = epsilon_2
        self.clip_threshold = clip_threshold
        self.relative_step = bool(relative_step)
        self.learning_rate_cap = bool(learning_rate_cap)
        if self.relative_step and not self.learning_rate_cap:
            raise HyperparameterError(
                "learning_rate_cap=False contradicts relative_step=True; pass relative_step=False"
            )
        if not self.relative_step and self.learning_rate_cap:
            warnings.warn("relative_step=False alone changes nothing; see learning_rate_cap", UserWarning, 2)
        rule = AdafactorRule(learning_rate_cap=self.learning_rate_cap)
        super().__init__(
            name, gradients_clip_option, ema_option, mesh, learning_rate=learning_rate, rule=rule, **options
        )

    def get_config(self) -> dict[str, Any]:
        own = ("relative_step", "learning_rate_cap")
        return {**super().get_config(), **{name: getattr(self, name) for name in own}}
