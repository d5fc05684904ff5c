"""The public optimizer Adagrad; its maths is in `optim/rules/adagrad.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorflow.experimental import dtensor

from optim import hyperparameters
from optim.hyperparameters import Hyperparameter
from optim.optimizer import Optimizer
from optim.rules.adagrad import AdagradRule

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from optim.settings import Options


class Adagrad(Optimizer):
    """Adagrad (Duchi et al., 2011).

    Slots: `accumulator`, shaped like its variable.

    Args:
      learning_rate: float >= 0, scalar tensor, schedule or zero-argument callable.
      initial_accumulator_value: what `accumulator` starts at, >= 0.
      epsilon: keeps the denominator from zero, >= 0; number, scalar tensor or zero-argument callable.
      gradients_clip_option, ema_option, name, mesh, options: see `Optimizer`.
      epsilon_inside: True divides by √(a + ε), as Keras does from 2.11 on; False by √a + ε, as OptimizerV2 and Keras
        before it (whose accumulators start at 0), and, with `epsilon=0`, `tf.train.AdagradOptimizer`.
    """

    epsilon = Hyperparameter()

    def __init__(
        self,
        learning_rate: Any = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: Any = 1e-07,
        gradients_clip_option: Any = None,
        ema_option: Any = None,
        name: str = "Adagrad",
        mesh: dtensor.Mesh | None = None,
        *,
        epsilon_inside: bool = True,
        **options: Unpack[Options],
    ):
        self.epsilon = epsilon
        self.epsilon_inside = bool(epsilon_inside)
        start = hyperparameters.fixed("initial_accumulator_value", initial_accumulator_value)
        self.initial_accumulator_value = start
        rule = AdagradRule(self.epsilon_inside, self.initial_accumulator_value)
        super().__init__(
            name, gradients_clip_option, ema_option, mesh, learning_rate=learning_rate, rule=rule, **options
        )

    def get_config(self) -> dict[str, Any]:
        own = ("initial_accumulator_value", "epsilon_inside")
        return {**super().get_config(), **{name: getattr(self, name) for name in own}}
