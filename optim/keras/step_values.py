"""What a step on another backend than TensorFlow computes with: variables, gradients and scalars of one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from optim.keras.backends import Backend
from optim.options.clipping import by_norms
from optim.options.master_copies import LOW_PRECISION
from optim.state.names import plain_name
from optim.step.scalars import StepScalars

Arrays = dict[str, Any]
"""Arrays by key: `slot.index` for slots, `variable.index` for model variables, and names of scalars."""
VARIABLE = "variable"


@dataclass(frozen=True, eq=False)
class Tracked:
    """One model variable that an optimizer was built on."""

    index: int
    name: str
    variable: Any

    @property
    def names(self) -> tuple[str, str]:
        """What regular expressions of options look at."""
        return self.name, plain_name(self.variable)

    @cached_property
    def wide(self) -> str:
        """The dtype in which it is updated."""
        return wide(self.variable.dtype)

    def __str__(self) -> str:
        return repr(self.name)


def wide(dtype: str) -> str:
    """At least float32, or 0.999 would round to 1 in bfloat16."""
    return "float32" if dtype in LOW_PRECISION else dtype


class Gradients:
    """All gradients of one step for `optim.options.clipping`."""

    def __init__(self, xp: Backend, arrays: Sequence[Any]):
        self._xp = xp
        self.arrays = list(arrays)

    def clip_values(self, limit: float) -> Gradients:
        xp = self._xp
        return Gradients(xp, [xp.maximum(xp.minimum(g, limit), -limit) for g in self.arrays])

    def clip_norms(self, limit: float, is_joint: bool) -> Gradients:
        return by_norms(self, limit, is_joint)

    def squared_norms(self) -> list[Any]:
        return [self._xp.reduce_sum(self._xp.square(g)) for g in self.arrays]

    def scale(self, factors: list[Any]) -> Gradients:
        pairs = zip(self.arrays, factors, strict=True)
        return Gradients(self._xp, [g * self._xp.cast(factor, dtype_of(g)) for g, factor in pairs])

    def sqrt(self, scalar: Any) -> Any:
        return self._xp.sqrt(scalar)

    def maximum(self, a: Any, b: Any) -> Any:
        return self._xp.maximum(a, b)


def dtype_of(array: Any) -> str:
    return _name_of(array.dtype)


@cache
def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


class Scalars:
    """The scalars of one step in the dtype of each variable; made where scalars may be float64."""

    def __init__(self, xp: Backend, step_scalars: StepScalars, tracked: Sequence[Tracked], is_known: bool):
        to: Callable[[Any, str], Any] = (lambda x, dtype: x) if is_known else xp.cast
        stepped = [t for t in tracked if not getattr(t.variable, "overwrite_with_gradient", False)]
        groups, decays = step_scalars._groups_of(stepped), step_scalars._decay_factors(stepped)  # type: ignore[arg-type]
        cache: dict[Any, Any] = {}

        def coefficients(group: Any, dtype: str) -> Any:
            if (group, dtype) not in cache:
                cache[group, dtype] = {n: to(v, dtype) for n, v in step_scalars.coefficients[group].items()}
            return cache[group, dtype]

        self._of = {
            t.index: (coefficients(group, t.wide), None if decay is None else to(decay, t.wide))
            for t, group, decay in zip(stepped, groups, decays, strict=True)
        }
        mean = step_scalars.ema_momentum
        self._momenta = {dtype: (to(mean, dtype), to(1.0 - mean, dtype)) for dtype in {t.wide for t in stepped}}
        self.overwrite = step_scalars.overwrite
        self._new, self._xp, self._is_known = step_scalars.new_scalars(), xp, is_known
        if not is_known:
            self._new = {name: xp.cast(value, xp.scalar_dtype) for name, value in self._new.items()}

    def of(self, tracked: Tracked) -> tuple[Mapping[str, Any], Any]:
        """The rule's coefficients for a variable, and what weight decay multiplies it with, or None."""
        return self._of[tracked.index]

    def momenta(self, tracked: Tracked) -> tuple[Any, Any]:
        """μ and 1 − μ of average ← μ·average + (1 − μ)·variable."""
        return self._momenta[tracked.wide]

    def new_scalars(self, now: Arrays) -> Arrays:
        return {name: self._xp.cast(value, dtype_of(now[name])) for name, value in self._new.items()}


def distinct(xp: Backend, arrays: Arrays) -> Arrays:
    """Arrays no two of which are one, as a compiled step could not be given both."""
    seen: set[int] = set()
    copies = {}
    for key, array in arrays.items():
        copies[key] = xp.copied(array) if id(array) in seen and xp.is_known(array) else array
        seen.add(id(array))
    return copies
