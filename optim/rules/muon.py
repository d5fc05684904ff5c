"""Muon: momentum made orthogonal, for matrices; Adam for everything else.

    m ← μ·m + g        x = g + μ·m (Nesterov)  or  m        x ← x / (‖x‖ + 1e-7)
    n times:  A = x·xᵀ,  x ← a·x + (b·A + c·A²)·x        p ← p − lr · s·√max(rows, columns) · x
                                       or, with `aspect_scale`, p ← p − lr · √max(1, rows/columns) · x

Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024), with its quintic Newton-Schulz
iteration on the smaller side; the factor s = `rms_rate` from Liu et al., "Muon is Scalable for LLM Training" (2025),
section 2.2; √max(1, rows/columns) from Jordan's own code. As in Keras 3 (`optimizers/muon.py`), a variable with a slot
`v` is one that Adam updates (see `AdamRule`), with learning rate lr · `adam_lr_ratio`.

Keras 3.13 and later have the defaults here; its releases 3.10 to 3.12 are `rms_rate=None`, `aspect_scale=True`,
`stacks=True`, and `adam_weight_decay` the same as `weight_decay`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from optim.arguments import Hyperparameter, choice, iterations, optional_number, patterns, rate
from optim.rule import Arrays, Scalars, Slot, Whole
from optim.rules.adam import AdamRule
from optim.rules.powers import float32_powers

ADAM = "adam_"


@dataclass(frozen=True)
class MuonRule(Whole):
    learning_rate = rate()
    adam_beta_1 = Hyperparameter(0.9, "as `beta_1` in `Adam`", high=1.0)
    adam_beta_2 = Hyperparameter(0.999, "as `beta_2` in `Adam`", high=1.0)
    adam_weight_decay: float | None = choice(
        0.004,
        "weight decay of the variables that Adam updates, >= 0, or None for no decay",
        optional_number,
        keyword=False,
    )
    epsilon = Hyperparameter(1e-07, "as in `Adam`")
    exclude_layers: tuple[str, ...] = choice(
        (),
        "regular expressions; Adam updates a variable whose name one of them matches (`re.search`)",
        lambda name, value: patterns(name, value or ()),
    )
    exclude_embeddings: bool = choice(
        True, 'whether Adam updates variables with "embedding", in any case, in their names'
    )
    muon_a = Hyperparameter(3.4445, "a, of the Newton-Schulz polynomial", low=-math.inf, keyword=True)
    muon_b = Hyperparameter(-4.7750, "b", low=-math.inf, keyword=True)
    muon_c = Hyperparameter(2.0315, "c", low=-math.inf, keyword=True)
    adam_lr_ratio = Hyperparameter(1.0, "factor of Adam's learning rate", keyword=True)
    momentum = Hyperparameter(0.95, "μ", high=1.0, keyword=True)
    ns_steps: int = choice(5, "number of Newton-Schulz iterations, an integer from 1 to 1000", iterations)
    nesterov: bool = choice(True, "Nesterov's momentum")
    rms_rate: float | None = choice(
        0.2,
        "s, which multiplies a step with s · √max(rows, columns) (Liu et al., 2025), >= 0; None uses no factor",
        optional_number,
    )
    aspect_scale: bool = choice(
        False, "multiplies a step with √max(1, rows/columns), of the first two dims, as Keras 3.10 to 3.12 do"
    )
    stacks: bool = choice(
        False,
        "whether Muon updates variables of rank 3, too: each of their matrices in the last two dims is made orthogonal"
        " separately, as Keras 3.10 to 3.12 do",
    )
    float32_powers: bool | str = float32_powers()

    def uses_adam(self, shape: Sequence[int], names: Sequence[str]) -> bool:
        """Whether Adam updates a variable with that shape and these `names`."""
        embeddings = ["(?i)embedding"] if self.exclude_embeddings else []
        excluded = [*self.exclude_layers, *embeddings]
        is_matrix = len(shape) == 2 or (self.stacks and len(shape) == 3)
        return not is_matrix or any(re.search(pattern, name) for pattern in excluded for name in names)

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (
            Slot("m", unit="gradient", few_bits=True),
            Slot("v", unit="gradient^2", nonnegative=True, few_bits=True),
        )

    def slot_dims(self, slot: Slot, shape: Sequence[int], names: Sequence[str]) -> tuple[int, ...] | None:
        is_missing = slot.name == "v" and not self.uses_adam(shape, names)
        return None if is_missing else super().slot_dims(slot, shape, names)

    def weight_decay(self, option: float | None, shape: Sequence[int], names: Sequence[str]) -> float | None:
        return self.adam_weight_decay if self.uses_adam(shape, names) else option

    def gathers(self, slots: Collection[str]) -> bool:
        return "v" not in slots

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        adam = {
            "learning_rate": hyper["learning_rate"] * hyper["adam_lr_ratio"],
            "beta_1": hyper["adam_beta_1"],
            "beta_2": hyper["adam_beta_2"],
            "epsilon": hyper["epsilon"],
        }
        values = {"lr": hyper["learning_rate"], **{k: hyper[k] for k in ("momentum", "muon_a", "muon_b", "muon_c")}}
        return values | {ADAM + name: value for name, value in self._adam.coefficients(xp, adam, step).items()}

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        if "v" in slots:
            return self._adam.update(xp, variable, gradient, slots, _Adams(c))
        m = c["momentum"] * slots["m"] + gradient
        direction = self._orthogonal(xp, gradient + c["momentum"] * m if self.nesterov else m, c)
        return -(c["lr"] * self._factor(variable.shape)) * direction, {"m": m}

    @property
    def _adam(self) -> AdamRule:
        return AdamRule(float32_powers=self.float32_powers)

    def _factor(self, shape: Sequence[Any]) -> float:
        """Return the factor of an orthogonal step in addition to the learning rate."""
        rows, columns = int(shape[0]), int(shape[1])
        factor = 1.0 if self.rms_rate is None else self.rms_rate * math.sqrt(max(rows, columns))
        return factor * math.sqrt(max(1.0, rows / columns)) if self.aspect_scale else factor

    def _orthogonal(self, xp: Any, x: Any, c: Scalars) -> Any:
        """Return approximately U·Vᵀ of the singular value decomposition U·S·Vᵀ of each matrix in the last two dims."""
        wide = int(x.shape[-2]) <= int(x.shape[-1])
        x = x if wide else _transposed(xp, x)
        x = x / (xp.sqrt(xp.reduce_sum(xp.square(x), axis=(-2, -1), keepdims=True)) + 1e-7)
        for _ in range(self.ns_steps):
            a = xp.matmul(x, _transposed(xp, x))
            x = c["muon_a"] * x + xp.matmul(c["muon_b"] * a + c["muon_c"] * xp.matmul(a, a), x)
        return x if wide else _transposed(xp, x)


class _Adams(dict[str, Any]):
    """Adam's scalars among those of a step."""

    def __init__(self, scalars: Scalars):
        self._scalars = scalars

    def __missing__(self, name: str) -> Any:
        return self._scalars[ADAM + name]


def _transposed(xp: Any, x: Any) -> Any:
    """Swap the last two dims."""
    return xp.transpose(x) if len(x.shape) == 2 else xp.transpose(x, (0, 2, 1))
