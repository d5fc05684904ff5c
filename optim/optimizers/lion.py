"""The public optimizer Lion; its maths is in `optim/rules/lion.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorflow.experimental import dtensor

from optim.hyperparameters import Hyperparameter
from optim.optimizer import Optimizer
from optim.rules.lion import LionRule

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from optim.settings import Options


class Lion(Optimizer):
    """Lion (Chen et al., 2023): steps of one size, in the direction of the sign of a momentum.

    Slots: `m`, shaped like its variable. A good learning rate is 3 to 10 times smaller than AdamW's, a good
    `weight_decay` as many times larger.

    Args:
      learning_rate: float >= 0, scalar tensor, schedule or zero-argument callable.
      beta_1: weight of the mean in the direction of a step, in [0, 1]; number, scalar tensor or zero-argument callable,
        as is `beta_2`. With 0 the mean does not count: that is sign descent.
      beta_2: decay rate of the mean of gradients, in [0, 1).
      gradients_clip_option, ema_option, name, mesh, options: see `Optimizer`.
    """

    beta_1 = Hyperparameter(high=1.0, closed=True)
    beta_2 = Hyperparameter(high=1.0)

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: Any = 0.9,
        beta_2: Any = 0.99,
        gradients_clip_option: Any = None,
        ema_option: Any = None,
        name: str = "Lion",
        mesh: dtensor.Mesh | None = None,
        **options: Unpack[Options],
    ):
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        rule = LionRule()
        super().__init__(
            name, gradients_clip_option, ema_option, mesh, learning_rate=learning_rate, rule=rule, **options
        )
