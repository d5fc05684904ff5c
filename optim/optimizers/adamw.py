"""The public optimizer AdamW; its maths is in `optim/rules/adam.py`."""

from __future__ import annotations

from typing import Any

from tensorflow.experimental import dtensor

from optim.errors import HyperparameterError
from optim.hyperparameters import Hyperparameter
from optim.optimizer import Optimizer
from optim.rules.adam import AdamRule


class AdamW(Optimizer):
    """AdamW (Loshchilov & Hutter, 2019): Adam whose weights decay by themselves and not through the gradients.

    Slots: `m`, `v`, and `vhat` with `amsgrad`, each shaped like its variable.

    It is `Adam` with `weight_decay` on: p ← p · (1 − weight_decay · lr), then Adam's step, as in Keras from 2.10 on.
    Not so in `optimizers.experimental` of 2.9, where p ← p · weight_decay · lr nearly set the weights to zero at every
    step: that defect is not reproduced, and `dtopt migrate` refuses its state.

    Args:
      learning_rate: float >= 0, scalar tensor, schedule or zero-argument callable.
      weight_decay: finite, >= 0. `weight_decay_exclude` and `exclude_from_weight_decay` leave variables out.
      beta_1: decay rate of the mean of gradients, in [0, 1); number, scalar tensor or zero-argument callable, as are
        the next two.
      beta_2: decay rate of the mean of squared gradients, in [0, 1).
      epsilon: added to the root, >= 0; "epsilon hat" of Adam's paper, section 2.
      amsgrad: use the largest `v` so far.
      gradients_clip_option, ema_option, name, mesh, options: see `Optimizer`.

    Raises:
      HyperparameterError: no `weight_decay`.
    """

    beta_1 = Hyperparameter(high=1.0)
    beta_2 = Hyperparameter(high=1.0)
    epsilon = Hyperparameter()

    def __init__(
        self,
        learning_rate: Any = 0.001,
        weight_decay: float = 0.004,
        beta_1: Any = 0.9,
        beta_2: Any = 0.999,
        epsilon: Any = 1e-07,
        amsgrad: bool = False,
        gradients_clip_option: Any = None,
        ema_option: Any = None,
        name: str = "AdamW",
        mesh: dtensor.Mesh | None = None,
        **options: Any,
    ):
        if weight_decay is None:
            raise HyperparameterError("Missing value of `weight_decay`: without one, AdamW is Adam")
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.amsgrad = bool(amsgrad)
        options = {**options, "learning_rate": learning_rate, "weight_decay": weight_decay}
        rule = AdamRule(amsgrad=self.amsgrad)
        super().__init__(name, gradients_clip_option, ema_option, mesh, rule=rule, **options)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "amsgrad": self.amsgrad}
