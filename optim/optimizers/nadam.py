"""The public optimizer Nadam; its maths is in `optim/rules/nadam.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorflow.experimental import dtensor

from optim.hyperparameters import Hyperparameter
from optim.optimizer import Optimizer
from optim.rules.nadam import NadamRule

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from optim.settings import Options


class Nadam(Optimizer):
    """Nadam (Dozat, 2015): Adam with Nesterov's momentum on a warming schedule.

    Slots: `m` and `v`, each shaped like its variable; and for the whole optimizer the float64 scalar `u_product`, the
    product of the schedule's values μ_1 ... μ_t so far.

    Args:
      learning_rate: float >= 0, scalar tensor, schedule or zero-argument callable.
      beta_1: decay rate of the mean of gradients, in [0, 1); number, scalar tensor or zero-argument callable, as are
        the next two.
      beta_2: decay rate of the mean of squared gradients, in [0, 1).
      epsilon: added to the root, >= 0.
      gradients_clip_option, ema_option, name, mesh, options: see `Optimizer`.
      schedule_decay: s in the schedule μ_t = β₁ · (1 − ½·0.96^(s·t)), >= 0; number, scalar tensor or zero-argument
        callable. 1 is Keras from 2.11 on; 0.004 the paper, OptimizerV2 (where its config calls it `decay`) and Keras
        before it.
      lazy_rows_keep_slots: False: in rows that `lazy_rows` leaves out, `m` and `v` decay all the same, as the sparse
        steps of OptimizerV2's Nadam have it.
    """

    beta_1 = Hyperparameter(high=1.0)
    beta_2 = Hyperparameter(high=1.0)
    epsilon = Hyperparameter()
    schedule_decay = Hyperparameter()

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: Any = 0.9,
        beta_2: Any = 0.999,
        epsilon: Any = 1e-07,
        gradients_clip_option: Any = None,
        ema_option: Any = None,
        name: str = "Nadam",
        mesh: dtensor.Mesh | None = None,
        *,
        schedule_decay: Any = 1.0,
        lazy_rows_keep_slots: bool = True,
        **options: Unpack[Options],
    ):
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.schedule_decay = schedule_decay
        self.lazy_rows_keep_slots = bool(lazy_rows_keep_slots)
        rule = NadamRule(keeps_lazy_slots=self.lazy_rows_keep_slots)
        super().__init__(
            name, gradients_clip_option, ema_option, mesh, learning_rate=learning_rate, rule=rule, **options
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "lazy_rows_keep_slots": self.lazy_rows_keep_slots}
