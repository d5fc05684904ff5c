"""The public optimizer Adam; its maths is in `optim/rules/adam.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorflow.experimental import dtensor

from optim.hyperparameters import Hyperparameter
from optim.optimizer import Optimizer
from optim.rules.adam import AdamRule

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from optim.settings import Options


class Adam(Optimizer):
    """Adam (Kingma & Ba, 2015), or AMSGrad (Reddi et al., 2018).

    Slots: `m`, `v`, and `vhat` with `amsgrad`, each shaped like its variable.

    Args:
      learning_rate: float >= 0, scalar tensor, schedule or zero-argument callable.
      beta_1: decay rate of the mean of gradients, in [0, 1); number, scalar tensor or zero-argument callable, as are
        the next two.
      beta_2: decay rate of the mean of squared gradients, in [0, 1).
      epsilon: added to the root, >= 0; "epsilon hat" of the paper's section 2.
      amsgrad: use the largest `v` so far.
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
        amsgrad: bool = False,
        gradients_clip_option: Any = None,
        ema_option: Any = None,
        name: str = "Adam",
        mesh: dtensor.Mesh | None = None,
        **options: Unpack[Options],
    ):
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.amsgrad = bool(amsgrad)
        rule = AdamRule(amsgrad=self.amsgrad)
        super().__init__(
            name, gradients_clip_option, ema_option, mesh, learning_rate=learning_rate, rule=rule, **options
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "amsgrad": self.amsgrad}
