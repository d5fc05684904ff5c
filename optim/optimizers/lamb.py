"""The public optimizer Lamb; its maths is in `optim/rules/lamb.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorflow.experimental import dtensor

from optim.hyperparameters import Hyperparameter
from optim.optimizer import Optimizer
from optim.rules.lamb import LambRule

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from optim.settings import Options


class Lamb(Optimizer):
    """LAMB (You et al., 2020): Adam's step of each variable, scaled to the norm of the variable.

    Slots: `m` and `v`, each shaped like its variable. Norms are those of the whole variable, however it is sharded.

    Args:
      learning_rate: float >= 0, scalar tensor, schedule or zero-argument callable.
      beta_1: decay rate of the mean of gradients, in [0, 1); number, scalar tensor or zero-argument callable, as are
        the next two.
      beta_2: decay rate of the mean of squared gradients, in [0, 1).
      epsilon: added to the root, >= 0.
      gradients_clip_option, ema_option, name, mesh, options: see `Optimizer`.

    Raises:
      HyperparameterError: out of range, or `lazy_rows`, which this rule cannot keep.
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
        name: str = "Lamb",
        mesh: dtensor.Mesh | None = None,
        **options: Unpack[Options],
    ):
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        rule = LambRule()
        super().__init__(
            name, gradients_clip_option, ema_option, mesh, learning_rate=learning_rate, rule=rule, **options
        )
