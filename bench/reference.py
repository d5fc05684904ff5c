"""The steps that every peer is judged by: `optim`'s rules in float64 NumPy, with the options around them.

`tests/test_bench/test_reference.py` holds them against implementations from the papers that share nothing with
`optim`. Of a tensor only the elements at given positions are computed, unless the rule needs it whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.case import gradient, parameter
from bench.options import clip_of
from bench.sparse import Rows
from bench.traffic import made_orthogonal
from optim.rule import slot_dims

if TYPE_CHECKING:
    from bench.case import Case
    from bench.peer import Conventions

MOST_ELEMENTS = 4096
"""Compared of each tensor whose elements are updated one by one."""


def _reduction(function: Any) -> Any:
    return lambda x, axis=None, keepdims=False: function(x, axis=axis, keepdims=keepdims)


_SHARED = ("sqrt", "square", "abs", "sign", "maximum", "minimum", "where", "ones_like", "expand_dims", "matmul")
XP = SimpleNamespace(
    **{name: getattr(np, name) for name in (*_SHARED, "transpose")},
    reduce_sum=_reduction(np.sum),
    reduce_mean=_reduction(np.mean),
)
"""NumPy under the names that rules use."""


def calls(accumulate: int) -> tuple[tuple[int, ...], ...]:
    """Which gradient each call of each step gets: A, A, B; of n that are accumulated the last of the second step
    differs from the others, so that their mean counts.

    With one gradient alone a wrong beta would not show: Adam hardly sees |g|.
    """
    if accumulate == 1:
        return ((0,), (0,), (1,))
    return ((0,) * accumulate, (0,) * (accumulate - 1) + (1,), (1,) * accumulate)


def mixes(accumulate: int) -> list[tuple[float, float]]:
    """The weights of gradients 0 and 1 in the mean of each step."""
    return [(step.count(0) / accumulate, step.count(1) / accumulate) for step in calls(accumulate)]


@dataclass(frozen=True)
class Expected:
    """Attributes: flat positions that were computed; the parameter there, before and after; its average, if
    there is one; whether each can be judged (elsewhere rounding decides the step's sign)."""

    positions: np.ndarray
    start: np.ndarray
    end: np.ndarray
    average: np.ndarray | None
    judged: np.ndarray


def is_whole(case: Case) -> bool:
    """Whether tensors must be computed whole."""
    return not case.algorithm.rule.elementwise


def can_check(case: Case, index: int) -> bool:
    """Whether the reference can afford this tensor."""
    return not is_whole(case) or case.tensors[index].elements <= case.algorithm.largest_checked


def positions(case: Case, index: int) -> np.ndarray:
    """Flat positions to compute: evenly spread, an odd distance apart so that rows of even length are not met in the
    same columns only; of sparse gradients some of the rows as well."""
    size = case.tensors[index].elements
    if is_whole(case):
        return np.arange(size)
    spread = np.arange(0, size, -(-size // MOST_ELEMENTS) | 1)
    given = [gradient(case, index, which) for which in (0, 1)]
    touched = [rows.positions(MOST_ELEMENTS // 4) for rows in given if isinstance(rows, Rows)]
    return np.unique(np.concatenate([spread, *touched])) if touched else spread


def clip_factors(case: Case) -> list[list[float]]:
    """What each step multiplies the mean gradient of each tensor with, after clipping by value."""
    steps = mixes(case.options.accumulate)
    if case.options.clip is None or case.options.clip.startswith("value"):
        return [[1.0] * len(case.tensors)] * len(steps)
    kind, limit = clip_of(case.options.clip)
    norms = [_norms(case, index, steps) for index in range(len(case.tensors))]
    found = []
    for step in range(len(steps)):
        squares = [norm[step] ** 2 for norm in norms]
        joint = [sqrt(sum(squares))] * len(norms) if kind == "global_norm" else [sqrt(square) for square in squares]
        found.append([limit / norm if norm > limit else 1.0 for norm in joint])
    return found


def _norms(case: Case, index: int, steps: Sequence[tuple[float, float]]) -> list[float]:
    """Norms of the mean gradient of a tensor in each step."""
    both = [gradient(case, index, which) for which in (0, 1)]
    arrays = [(g.whole() if isinstance(g, Rows) else g).reshape(-1) for g in both]
    a, b = (float(np.einsum("i,i", g, g, dtype=np.float64)) for g in arrays)
    mixed = float(np.einsum("i,i", *arrays, dtype=np.float64)) if len(set(steps)) > 2 else 0.0
    return [sqrt(x * x * a + y * y * b + 2 * x * y * mixed) for x, y in steps]


def expected(case: Case, index: int, factors: Sequence[Sequence[float]], conventions: Conventions) -> Expected:
    """What a tensor is after the steps.

    Args:
      factors: from `clip_factors`.
      conventions: the peer's.
    """
    at = positions(case, index)
    start = _chosen(case, parameter(case, index), at).astype(np.float64)
    both = [gradient(case, index, which) for which in (0, 1)]
    values = [_chosen(case, g, at).astype(np.float64) for g in both]
    touched = _touched(case, both, at)
    of_tensor = [step[index] for step in factors]
    end, average = _train(case, index, start, values, touched, of_tensor, conventions)
    judged = np.ones(end.shape, dtype=bool)
    if case.algorithm.jumps:  # a step whose sign changes with the sixth digit of its gradients is not judged
        nudged = [values[0] * (1 + 2e-6), values[1] * (1 - 2e-6)]
        other, _ = _train(case, index, start, nudged, touched, of_tensor, conventions)
        judged = np.abs(other - end) < 1e-3 * np.max(np.abs(end - start))
    kept = case.options.ema is not None
    flat = [array.reshape(-1) for array in (start, end, average, judged)]
    return Expected(at, flat[0], flat[1], flat[2] if kept else None, flat[3])


def _chosen(case: Case, values: np.ndarray | Rows, at: np.ndarray) -> np.ndarray:
    """The elements at flat positions, or the whole array where a rule needs it."""
    if is_whole(case):
        return values.whole() if isinstance(values, Rows) else values
    return values.at(at) if isinstance(values, Rows) else values.reshape(-1)[at]


def _touched(case: Case, both: Sequence[np.ndarray | Rows], at: np.ndarray) -> list[np.ndarray] | None:
    """For lazy rows: which of the positions each gradient touches."""
    if not case.options.lazy_rows:
        return None
    return [g.touched(at) if isinstance(g, Rows) else np.ones(len(at), dtype=bool) for g in both]


def _train(
    case: Case,
    index: int,
    value: np.ndarray,
    gradients: Sequence[np.ndarray],
    touched: Sequence[np.ndarray] | None,
    factors: Sequence[float],
    conventions: Conventions,
) -> tuple[np.ndarray, np.ndarray]:
    """The parameter and its average after the steps: gather, clip, decay, update, average."""
    rule, hyper = case.algorithm.rule, dict(case.algorithm.hyperparameters)
    slots, scalars = _new_slots(case, index, value), dict(rule.scalars)
    average = value
    for step, (a, b) in enumerate(mixes(case.options.accumulate)):
        mean = a * gradients[0] + b * gradients[1]
        if case.options.clip is not None and case.options.clip.startswith("value"):
            limit = clip_of(case.options.clip)[1]
            mean = np.clip(mean, -limit, limit)
        given = hyper | scalars | _epsilon(case, step + 1, conventions.paper_epsilon)
        c = rule.coefficients(XP, given, float(step + 1))
        scalars = {name: float(c[name]) for name in scalars}
        decayed = value * (1.0 - case.weight_decay * hyper["learning_rate"])
        change, new = rule.update(XP, decayed, factors[step] * mean, slots, c)
        if touched is None:
            value, slots = decayed + change, new
        else:
            hit = (touched[0] & (a > 0)) | (touched[1] & (b > 0))
            value = np.where(hit, decayed + change, value)
            slots = {name: np.where(hit, new[name], slots[name]) for name in slots}
        mix = case.options.ema or 0.0
        average = mix * average + (1.0 - mix) * value
        if step == 0 and conventions.average_of_first_step:
            average = value
    return value, average


def _new_slots(case: Case, index: int, value: np.ndarray) -> dict[str, np.ndarray]:
    found = {}
    tensor = case.tensors[index]
    for slot in case.algorithm.rule.slots:
        dims = slot_dims(slot.like, len(tensor.shape))
        if dims is not None and not (slot.name == "v" and made_orthogonal(case, tensor)):
            shape = tuple(tensor.shape[dim] for dim in dims) if is_whole(case) else value.shape
            found[slot.name] = np.full(shape, slot.initial)
    return found


def _epsilon(case: Case, step: int, paper: bool) -> dict[str, float]:
    """Adam's rule adds ε to √v; with ε·√(1 − β₂ᵗ) in its place it computes what the paper's ε beside √v̂ does."""
    hyper = case.algorithm.hyperparameters
    if not paper or case.algorithm.name not in ("adam", "adamw"):
        return {}
    return {"epsilon": hyper["epsilon"] * sqrt(1.0 - hyper["beta_2"] ** step)}
