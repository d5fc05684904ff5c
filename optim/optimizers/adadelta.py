"""The public optimizer Adadelta; its maths is in `optim/rules/adadelta.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorflow.experimental import dtensor

from optim.hyperparameters import Hyperparameter
from optim.optimizer import Optimizer
from optim.rules.adadelta import AdadeltaRule

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from optim.settings import Options


class Adadelta(Optimizer):
    """Adadelta (Zeiler, 2012).

    Slots: `accumulated_grad` and `accumulated_delta_var`, each shaped like its variable.

    Args:
      learning_rate: float >= 0, scalar tensor, schedule or zero-argument callable; 1.0 is the form of the paper.
      rho: decay rate of both means, in [0, 1]; number, scalar tensor or zero-argument callable, as is `epsilon`.
      epsilon: added under both roots, >= 0.
      gradients_clip_option, ema_option, name, mesh, options: see `Optimizer`.
      new_delta_in_step: move the variable by the mean of squared steps that already has this step in it, as the kernel
        of `tf.train.AdadeltaOptimizer` did in TF 1.0 to 1.4.
    """

    rho = Hyperparameter(high=1.0, closed=True)
    epsilon = Hyperparameter()

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: Any = 0.95,
        epsilon: Any = 1e-07,
        gradients_clip_option: Any = None,
        ema_option: Any = None,
        name: str = "Adadelta",
        mesh: dtensor.Mesh | None = None,
        *,
        new_delta_in_step: bool = False,
        **options: Unpack[Options],
    ):
        self.rho = rho
        self.epsilon = epsilon
        self.new_delta_in_step = bool(new_delta_in_step)
        super().__init__(
            name,
            gradients_clip_option,
            ema_option,
            mesh,
            learning_rate=learning_rate,
            rule=AdadeltaRule(new_delta_in_step=self.new_delta_in_step),
            **options,
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "new_delta_in_step": self.new_delta_in_step}

    def update_step(self, grad: Any, variable: Any) -> None:
        """See `Optimizer.update_step`; Keras 2.9 calls the first argument `grad` here."""
        super().update_step(grad, variable)
