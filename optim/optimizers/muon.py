"""The public optimizer Muon; its maths is in `optim/rules/muon.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorflow.experimental import dtensor

from optim import hyperparameters
from optim.errors import HyperparameterError
from optim.hyperparameters import Hyperparameter
from optim.optimizer import Optimizer
from optim.rule import Slot
from optim.rules.muon import MuonRule
from optim.variables import Tracked, check_patterns, matches


class Muon(Optimizer):
    """Muon (Jordan et al., 2024): momentum made orthogonal, for the matrices inside a model; Adam for the rest.

    Adam updates every variable whose rank is not 2, those with "embedding" in their names, and those that
    `exclude_layers` matches, which should name the output layer.

    Slots: `m`, and `v` of the variables that Adam updates, each shaped like its variable. Matrices are made orthogonal
    as a whole, however they are sharded.

    Args:
      learning_rate: float >= 0, scalar tensor, schedule or zero-argument callable.
      adam_beta_1, adam_beta_2, epsilon: as in `Adam`; numbers, scalar tensors or zero-argument callables, as are
        `muon_a`, `muon_b`, `muon_c`, `adam_lr_ratio` and `momentum`.
      adam_weight_decay: weight decay of the variables that Adam updates, >= 0, or None for none.
      weight_decay: weight decay of the others, >= 0, or None for none.
      exclude_layers: regular expressions; Adam updates a variable whose name one of them matches (`re.search`).
      exclude_embeddings: whether Adam updates variables with "embedding", in any case, in their names.
      muon_a, muon_b, muon_c: the polynomial of the Newton-Schulz iteration.
      adam_lr_ratio: what Adam's learning rate is multiplied with, >= 0.
      momentum: in [0, 1).
      ns_steps: number of Newton-Schulz iterations, an integer >= 1.
      nesterov: Nesterov's momentum.
      rms_rate: multiplies a step with rms_rate · √max(rows, columns) (Liu et al., 2025), >= 0; None leaves it as it is.
      gradients_clip_option, ema_option, name, mesh, options: see `Optimizer`.

    Raises:
      HyperparameterError: out of range, or `lazy_rows`, which this rule cannot keep.
    """

    adam_beta_1 = Hyperparameter(high=1.0)
    adam_beta_2 = Hyperparameter(high=1.0)
    epsilon = Hyperparameter()
    muon_a = Hyperparameter(low=-math.inf)
    muon_b = Hyperparameter(low=-math.inf)
    muon_c = Hyperparameter(low=-math.inf)
    adam_lr_ratio = Hyperparameter()
    momentum = Hyperparameter(high=1.0)

    def __init__(
        self,
        learning_rate: Any = 0.001,
        adam_beta_1: Any = 0.9,
        adam_beta_2: Any = 0.999,
        adam_weight_decay: float | None = 0.004,
        epsilon: Any = 1e-07,
        weight_decay: float | None = 0.004,
        gradients_clip_option: Any = None,
        ema_option: Any = None,
        name: str = "Muon",
        mesh: dtensor.Mesh | None = None,
        *,
        exclude_layers: Sequence[str] | None = None,
        exclude_embeddings: bool = True,
        muon_a: Any = 3.4445,
        muon_b: Any = -4.7750,
        muon_c: Any = 2.0315,
        adam_lr_ratio: Any = 1.0,
        momentum: Any = 0.95,
        ns_steps: int = 5,
        nesterov: bool = True,
        rms_rate: float | None = 0.2,
        **options: Any,
    ):
        self.adam_beta_1, self.adam_beta_2, self.epsilon = adam_beta_1, adam_beta_2, epsilon
        self.muon_a, self.muon_b, self.muon_c = muon_a, muon_b, muon_c
        self.adam_lr_ratio, self.momentum = adam_lr_ratio, momentum
        if isinstance(ns_steps, bool) or not isinstance(ns_steps, int) or ns_steps < 1:
            raise HyperparameterError(f"ns_steps must be an integer >= 1, got {ns_steps!r}")
        self._own: dict[str, Any] = {
            "adam_weight_decay": _optional("adam_weight_decay", adam_weight_decay),
            "exclude_layers": list(check_patterns("exclude_layers", exclude_layers or ())),
            "exclude_embeddings": bool(exclude_embeddings),
            "ns_steps": ns_steps,
            "nesterov": bool(nesterov),
            "rms_rate": _optional("rms_rate", rms_rate),
        }
        rule = MuonRule(**{key: self._own[key] for key in ("nesterov", "ns_steps", "rms_rate")})
        options = {**options, "learning_rate": learning_rate, "weight_decay": weight_decay}
        super().__init__(name, gradients_clip_option, ema_option, mesh, rule=rule, **options)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self._own}

    def _uses_adam(self, tracked: Tracked) -> bool:
        if tracked.variable.shape.rank != 2:
            return True
        embeddings = ["(?i)embedding"] if self._own["exclude_embeddings"] else []
        return matches([*self._own["exclude_layers"], *embeddings], tracked)

    def _slot_dims(self, slot: Slot, tracked: Tracked) -> tuple[int, ...] | None:
        if slot.name == "v" and not self._uses_adam(tracked):
            return None
        return super()._slot_dims(slot, tracked)

    def _weight_decay_of(self, tracked: Tracked) -> float | None:
        return self._own["adam_weight_decay"] if self._uses_adam(tracked) else super()._weight_decay_of(tracked)


def _optional(name: str, value: Any) -> float | None:
    return None if value is None else hyperparameters.fixed(name, value)
