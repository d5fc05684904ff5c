"""The public optimizer Ftrl; its maths is in `optim/rules/ftrl.py`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tensorflow.experimental import dtensor

from optim import hyperparameters
from optim.errors import HyperparameterError
from optim.hyperparameters import Hyperparameter
from optim.optimizer import Optimizer
from optim.rules.ftrl import FtrlRule

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from optim.settings import Options


class Ftrl(Optimizer):
    """FTRL-Proximal (McMahan et al., 2013), for sparse linear models.

    Slots: `accumulator` and `linear`, each shaped like its variable. The variable is computed anew from them at every
    step: its own value enters only through the change of `accumulator` and the shrinkage.

    Args:
      learning_rate: float > 0, scalar tensor, schedule or zero-argument callable.
      learning_rate_power: <= 0; 0 for a fixed learning rate. Number, scalar tensor or zero-argument callable, as are
        the other arguments but `initial_accumulator_value`.
      initial_accumulator_value: what `accumulator` starts at, >= 0.
      l1_regularization_strength, l2_regularization_strength: >= 0.
      l2_shrinkage_regularization_strength: an L2 penalty on the size of the variable, added to its gradient, >= 0.
      beta: >= 0; the paper's β, or an addition of β / (2 · learning rate) to `l2_regularization_strength`.
      gradients_clip_option, ema_option, name, mesh, options: see `Optimizer`.
      learning_rate_in_linear: True keeps `linear` multiplied by the learning rate, as the FtrlV2 kernel (the one for
        shrinkage) did in TF 2.4.

    Raises:
      HyperparameterError: out of range; and at a step whose learning rate, or a factor of it, is 0.
    """

    learning_rate_power = Hyperparameter(low=-math.inf, high=0.0, closed=True)
    l1_regularization_strength = Hyperparameter()
    l2_regularization_strength = Hyperparameter()
    l2_shrinkage_regularization_strength = Hyperparameter()
    beta = Hyperparameter()

    def __init__(
        self,
        learning_rate: Any = 0.001,
        learning_rate_power: Any = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: Any = 0.0,
        l2_regularization_strength: Any = 0.0,
        l2_shrinkage_regularization_strength: Any = 0.0,
        beta: Any = 0.0,
        gradients_clip_option: Any = None,
        ema_option: Any = None,
        name: str = "Ftrl",
        mesh: dtensor.Mesh | None = None,
        *,
        learning_rate_in_linear: bool = False,
        **options: Unpack[Options],
    ):
        self.learning_rate_power = learning_rate_power
        self.l1_regularization_strength = l1_regularization_strength
        self.l2_regularization_strength = l2_regularization_strength
        self.l2_shrinkage_regularization_strength = l2_shrinkage_regularization_strength
        self.beta = beta
        self.learning_rate_in_linear = bool(learning_rate_in_linear)
        start = hyperparameters.fixed("initial_accumulator_value", initial_accumulator_value)
        self.initial_accumulator_value = start
        rule = FtrlRule(self.initial_accumulator_value, self.learning_rate_in_linear)
        super().__init__(
            name, gradients_clip_option, ema_option, mesh, learning_rate=learning_rate, rule=rule, **options
        )
        if 0 in self._settings.learning_rate_multipliers.values():
            raise HyperparameterError(
                "learning_rate_multipliers: Ftrl divides by the learning rate, no factor can be 0"
            )

    def get_config(self) -> dict[str, Any]:
        own = ("initial_accumulator_value", "learning_rate_in_linear")
        return {**super().get_config(), **{name: getattr(self, name) for name in own}}
