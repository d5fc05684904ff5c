"""The public optimizer Adamax; its maths is in `optim/rules/adamax.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorflow.experimental import dtensor

from optim.hyperparameters import Hyperparameter
from optim.optimizer import Optimizer
from optim.rules.adamax import AdamaxRule

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from optim.settings import Options


class Adamax(Optimizer):
    """Adamax (Kingma & Ba, 2015, section 7.1): Adam with a decaying maximum in place of the second moment.

    Slots: `m` and `u`, each shaped like its variable. OptimizerV2 calls `u` `v`, Keras 3 `norm`.

    Args:
      learning_rate: float >= 0, scalar tensor, schedule or zero-argument callable.
      beta_1: decay rate of the mean of gradients, in [0, 1); number, scalar tensor or zero-argument callable, as are
        the next two.
      beta_2: decay rate of the maximum, in [0, 1).
      epsilon: added to the maximum, >= 0.
      gradients_clip_option, ema_option, name, mesh, options: see `Optimizer`.
    """

    beta_1 = Hyperparameter(high=1.0)
    beta_2 = Hyperparameter(high=1.0)
    epsilon = Hyperparameter()

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: Any = 0.9,
        beta_2: Any = 0.999,
        epsilon: Any = 1e-07,
        gradients_clip_option: Any = None,
        ema_option: Any = None,
        name: str = "Adamax",
        mesh: dtensor.Mesh | None = None,
        **options: Unpack[Options],
    ):
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        rule = AdamaxRule()
        super().__init__(
            name, gradients_clip_option, ema_option, mesh, learning_rate=learning_rate, rule=rule, **options
        )
