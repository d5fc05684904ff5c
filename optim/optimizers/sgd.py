"""The public optimizer SGD; its maths is in `optim/rules/sgd.py`."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from tensorflow.experimental import dtensor

from optim.errors import HyperparameterError
from optim.hyperparameters import Hyperparameter
from optim.optimizer import Optimizer
from optim.rules.sgd import SGDRule

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from optim.settings import Options


class SGD(Optimizer):
    """Gradient descent, optionally with momentum (Sutskever et al., 2013).

    Slots: `m`, shaped like its variable, if there is momentum; it includes the learning rate, unless told otherwise.

    Args:
      learning_rate: float >= 0, scalar tensor, schedule or zero-argument callable.
      momentum: in [0, 1); number, scalar tensor or zero-argument callable.
      nesterov: Nesterov's momentum; without `momentum` it changes nothing, and warns.
      gradients_clip_option, ema_option, name, mesh, options: see `Optimizer`.
      momentum_slot: True keeps the slot `m` although `momentum` is 0, as Keras up to 2.3 and from 2.11 on do (it is
        then the last step); None keeps it if momentum is used.
      learning_rate_in_momentum: False keeps the learning rate out of the slot, m ← μ·m + g and p ← p − lr·m, as
        `tf.train.MomentumOptimizer` does: a change of rate then acts on the gradients gathered so far, too.

    Raises:
      HyperparameterError: `momentum_slot=False` with momentum, or a value out of range.
    """

    momentum = Hyperparameter(high=1.0)

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: Any = 0.0,
        nesterov: bool = False,
        gradients_clip_option: Any = None,
        ema_option: Any = None,
        name: str = "SGD",
        mesh: dtensor.Mesh | None = None,
        *,
        momentum_slot: bool | None = None,
        learning_rate_in_momentum: bool = True,
        **options: Unpack[Options],
    ):
        self.momentum = momentum
        self.nesterov = bool(nesterov)
        self.momentum_slot = momentum_slot
        self.learning_rate_in_momentum = bool(learning_rate_in_momentum)
        used = self.momentum != 0.0 if isinstance(self.momentum, float) else True
        if nesterov and not used:
            warnings.warn("nesterov=True changes nothing while momentum is 0", UserWarning, 2)
        if used and momentum_slot is False:
            raise HyperparameterError("momentum_slot=False contradicts the momentum given")
        rule = SGDRule(
            keeps_momentum=used or bool(momentum_slot),
            nesterov=self.nesterov,
            learning_rate_in_momentum=self.learning_rate_in_momentum,
        )
        super().__init__(
            name, gradients_clip_option, ema_option, mesh, learning_rate=learning_rate, rule=rule, **options
        )

    def get_config(self) -> dict[str, Any]:
        own = ("nesterov", "momentum_slot", "learning_rate_in_momentum")
        return {**super().get_config(), **{name: getattr(self, name) for name in own}}
