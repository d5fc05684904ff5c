"""The public optimizer RMSprop; its maths is in `optim/rules/rmsprop.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorflow.experimental import dtensor

from optim import hyperparameters
from optim.errors import HyperparameterError
from optim.hyperparameters import Hyperparameter
from optim.optimizer import Optimizer
from optim.rules.rmsprop import RMSpropRule

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from optim.settings import Options


class RMSprop(Optimizer):
    """RMSprop (Tieleman & Hinton, 2012), optionally centered (Graves, 2013), optionally with momentum.

    Slots: `velocity`, `momentum` if there is momentum, and `average_gradient` if centered, each shaped like its
    variable.

    By default it computes what Keras computes from 2.11 on; the keyword-only arguments give the rule of any earlier
    release, see `optim/rules/rmsprop.py`. Not among them is the centered RMSprop of `optimizers.experimental` and of
    the DTensor class in 2.9 and 2.10: it averaged squared gradients where gradients are meant and wrote the
    difference back into `velocity`, a defect that soon gives NaN. Its state is of no use to a correct rule, and
    `dtopt migrate` refuses it.

    Args:
      learning_rate: float >= 0, scalar tensor, schedule or zero-argument callable.
      rho: decay rate of the means, in [0, 1); number, scalar tensor or zero-argument callable, as are the next two.
      momentum: in [0, 1).
      epsilon: keeps the denominator from zero, >= 0.
      centered: divide by the standard deviation of the gradients in place of their root mean square.
      gradients_clip_option, ema_option, name, mesh, options: see `Optimizer`.
      epsilon_inside: True divides by √(v + ε), False by √v + ε.
      learning_rate_in_momentum: whether the slot `momentum` gathers steps (True) or steps without the learning rate.
      momentum_slot: True keeps the slot `momentum` although `momentum` is 0, as `tf.train.RMSPropOptimizer` does (it is
        then the last step); None keeps it if momentum is used.
      initial_velocity: what `velocity` starts at, >= 0; `tf.train.RMSPropOptimizer` starts at 1.

    Raises:
      HyperparameterError: `momentum_slot=False` with momentum.
    """

    rho = Hyperparameter(high=1.0)
    momentum = Hyperparameter(high=1.0)
    epsilon = Hyperparameter()

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: Any = 0.9,
        momentum: Any = 0.0,
        epsilon: Any = 1e-07,
        centered: bool = False,
        gradients_clip_option: Any = None,
        ema_option: Any = None,
        name: str = "RMSprop",
        mesh: dtensor.Mesh | None = None,
        *,
        epsilon_inside: bool = True,
        learning_rate_in_momentum: bool = True,
        momentum_slot: bool | None = None,
        initial_velocity: float = 0.0,
        **options: Unpack[Options],
    ):
        self.rho = rho
        self.momentum = momentum
        self.epsilon = epsilon
        self.momentum_slot = momentum_slot
        used = self.momentum != 0.0 if isinstance(self.momentum, float) else True
        if used and momentum_slot is False:
            raise HyperparameterError("momentum_slot=False contradicts the momentum given")
        self._variant: dict[str, Any] = {
            "centered": bool(centered),
            "epsilon_inside": bool(epsilon_inside),
            "learning_rate_in_momentum": bool(learning_rate_in_momentum),
            "initial_velocity": hyperparameters.fixed("initial_velocity", initial_velocity),
        }
        rule = RMSpropRule(keeps_momentum=used or bool(momentum_slot), **self._variant)
        super().__init__(
            name, gradients_clip_option, ema_option, mesh, learning_rate=learning_rate, rule=rule, **options
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self._variant, "momentum_slot": self.momentum_slot}
