"""The reference for every peer: `optim`'s rules in float64 NumPy, with the options around them.

`tests/test_bench/step/test_reference.py` compares it with implementations from the papers that share no code with
`optim`. Only the elements at given positions of a tensor are computed, unless the rule needs the whole tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.cases.options import clip_of
from bench.cases.sparse import Rows
from bench.cases.values import gradient, parameter
from bench.step import giving
from optim.rule import AS_VARIABLE

if TYPE_CHECKING:
    from bench.cases.case import Case
    from bench.peers.peer import Conventions
    from bench.step.giving import Mix

MOST_ELEMENTS = 4096
"""Elements to compare per tensor, if the rule updates elements one by one."""

MOST_WHOLE = 500_000_000
"""Most elements times further steps to compute if a rule needs whole tensors: some seconds."""

ADAMS = {"adam": "beta_2", "adamw": "beta_2", "muon": "adam_beta_2"}
"""Rules with Adam's epsilon, and their name of its β₂."""


def _reduction(function: Any) -> Any:
    return lambda x, axis=None, keepdims=False: function(x, axis=axis, keepdims=keepdims)


_SHARED = ("sqrt", "square", "abs", "sign", "maximum", "minimum", "where", "ones_like", "expand_dims", "matmul")
XP = SimpleNamespace(
    **{name: getattr(np, name) for name in (*_SHARED, "transpose")},
    reduce_sum=_reduction(np.sum),
    reduce_mean=_reduction(np.mean),
)
"""NumPy under the names that rules use."""


@dataclass(frozen=True)
class Expected:
    """The expected values of one tensor.

    Attributes: flat positions that were computed; the parameter at these, before and after; its average, if it has one;
      whether each can be judged (rounding decides the sign of the step of the others).
    """

    positions: np.ndarray
    start: np.ndarray
    end: np.ndarray
    average: np.ndarray | None
    judged: np.ndarray


def is_whole(case: Case) -> bool:
    """Whether the rule needs whole tensors."""
    return not case.algorithm.rule.elementwise


def able(case: Case, steps: int) -> list[int]:
    """Return the tensors that the reference can afford: all, or the small ones first if the rule needs whole
    tensors."""
    sizes = [tensor.elements for tensor in case.tensors]
    if not is_whole(case):
        return list(range(len(sizes)))
    indices, left = [], MOST_WHOLE
    for index in sorted(range(len(sizes)), key=sizes.__getitem__):
        left -= sizes[index] * max(0, steps - len(giving.calls(1)))
        if sizes[index] <= case.algorithm.largest_checked and left >= 0:
            indices.append(index)
    return sorted(indices)


def positions(case: Case, index: int, place: float = 0.0) -> np.ndarray:
    """Return the flat positions to compute; `place` in [0, 1) chooses where they begin.

    They are evenly spaced. The distance is odd, so that rows of even length are not sampled in the same columns only.
    With sparse gradients they include some of the rows.
    """
    size = case.tensors[index].elements
    if is_whole(case):
        return np.arange(size)
    stride = -(-size // MOST_ELEMENTS) | 1
    spread = np.arange(int(place * min(stride, size)), size, stride)
    gradients = [gradient(case, index, which) for which in (0, 1)]
    touched = [rows.positions(MOST_ELEMENTS // 4) for rows in gradients if isinstance(rows, Rows)]
    return np.unique(np.concatenate([spread, *touched])) if touched else spread


def clip_factors(case: Case, mixes: Iterable[Mix]) -> dict[Mix, list[float]]:
    """Return the factor of each tensor's mean gradient for each mix, after clipping by value."""
    distinct = list(dict.fromkeys(mixes))
    if case.options.clip is None or case.options.clip.startswith("value"):
        return dict.fromkeys(distinct, [1.0] * len(case.tensors))
    kind, limit = clip_of(case.options.clip)
    replaced_tensors = giving.replaced_tensors(case)
    norms = [_norms(case, index, distinct, index in replaced_tensors) for index in range(len(case.tensors))]
    factors = {}
    for place, mix in enumerate(distinct):
        squares = [norm[place] ** 2 for norm in norms]
        joint = [sqrt(sum(squares))] * len(norms) if kind == "global_norm" else [sqrt(square) for square in squares]
        factors[mix] = [limit / norm if norm > limit else 1.0 for norm in joint]
    return factors


def _norms(case: Case, index: int, mixes: Sequence[Mix], is_replaced: bool) -> list[float]:
    """Return the norms of the mean gradient of a tensor for each mix; `is_replaced`: whether the tensor gets new
    gradients."""
    both = [gradient(case, index, which) for which in (0, 1)]
    arrays = [(g.whole() if isinstance(g, Rows) else g).reshape(-1) for g in both]
    a, b = (float(np.einsum("i,i", g, g, dtype=np.float64)) for g in arrays)
    product = any(mix.first and mix.second for mix in mixes)
    mixed = float(np.einsum("i,i", *arrays, dtype=np.float64)) if product else 0.0
    weights = [(mix.first, mix.replaced if is_replaced else mix.second) for mix in mixes]
    return [sqrt(x * x * a + y * y * b + 2 * x * y * mixed) for x, y in weights]


def expected(
    case: Case, indices: Sequence[int], mixes: Sequence[Mix], conventions: Conventions, place: float = 0.0
) -> Iterator[tuple[int, Expected]]:
    """Yield the tensors after some steps, one by one. If elements are updated one by one, all are computed together.

    Args:
      mixes: the gradients of each step; conventions: the peer's; place: as in `positions`.
    """
    factors = clip_factors(case, mixes)
    tables = [case.is_sparse(case.tensors[index]) for index in range(len(case.tensors))]
    if is_whole(case):
        batches = [[index] for index in indices]
    else:
        batches = [batch for kind in (False, True) if (batch := [i for i in indices if tables[i] == kind])]
    for batch in batches:
        paper = conventions.paper_epsilon and not (conventions.uncorrected_epsilon_of_tables and tables[batch[0]])
        places = [positions(case, index, place) for index in batch]
        yield from _batch(case, batch, places, mixes, factors, conventions, paper)


def _batch(
    case: Case,
    batch: Sequence[int],
    places: Sequence[np.ndarray],
    mixes: Sequence[Mix],
    factors: Mapping[Mix, Sequence[float]],
    conventions: Conventions,
    paper: bool,
) -> Iterator[tuple[int, Expected]]:
    """Compute tensors with their chosen elements concatenated, or a single tensor in its own shape."""
    gradients = [[gradient(case, index, which) for which in (0, 1)] for index in batch]
    start = _joined([_chosen(case, parameter(case, i), at) for i, at in zip(batch, places, strict=True)])
    values = [
        _joined([_chosen(case, both[which], at) for both, at in zip(gradients, places, strict=True)])
        for which in (0, 1)
    ]
    touched = [_touched(case, both, at) for both, at in zip(gradients, places, strict=True)]
    hit = [_joined([one[which] for one in touched if one]) for which in (0, 1)] if case.options.lazy_rows else None
    sizes = [len(at) for at in places]
    replaced_tensors = giving.replaced_tensors(case)
    is_replaced = [float(index in replaced_tensors) for index in batch]

    def spread(of_tensors: Sequence[float]) -> Any:
        return np.repeat(of_tensors, sizes) if len(batch) > 1 else of_tensors[0]

    scale = {mix: spread([by_tensor[index] for index in batch]) for mix, by_tensor in factors.items()}
    work = _Work(case, batch[0], mixes, hit, spread(is_replaced), scale, conventions, paper)
    end, average = work.train(start, values)
    judged = np.ones(end.shape, dtype=bool)
    if case.algorithm.jumps:  # a step whose sign changes with the sixth digit of its gradients is not judged
        other, _ = work.train(start, [values[0] * (1 + 2e-6), values[1] * (1 - 2e-6)])
        judged = np.abs(other - end) < 1e-3 * np.max(np.abs(end - start))
    flat = [array.reshape(-1) for array in (start, end, average, judged)]
    edges = np.cumsum([0, *sizes])
    for index, at, low, high in zip(batch, places, edges, edges[1:], strict=False):
        part = [array[low:high] for array in flat]
        yield index, Expected(at, part[0], part[1], part[2] if case.options.ema is not None else None, part[3])


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    wide = [array if array.dtype == bool else array.astype(np.float64) for array in arrays]
    return wide[0] if len(wide) == 1 else np.concatenate(wide)


def _chosen(case: Case, values: np.ndarray | Rows, at: np.ndarray) -> np.ndarray:
    """Return the elements at flat positions, or the whole array if a rule needs it."""
    if is_whole(case):
        return values.whole() if isinstance(values, Rows) else values
    return values.at(at) if isinstance(values, Rows) else values.reshape(-1)[at]


def _touched(case: Case, both: Sequence[np.ndarray | Rows], at: np.ndarray) -> list[np.ndarray] | None:
    """Return which of the positions each gradient touches, for lazy rows."""
    if not case.options.lazy_rows:
        return None
    return [g.touched(at) if isinstance(g, Rows) else np.ones(len(at), dtype=bool) for g in both]


@dataclass(frozen=True)
class _Work:
    """Steps of one batch.

    Attributes: as of `_batch`; `index`: of its first tensor; touched: for lazy rows, which elements each gradient
      touches; replaced: 1 for elements that get new gradients, 0 for others; scale: of clipping.
    """

    case: Case
    index: int
    mixes: Sequence[Mix]
    touched: Sequence[np.ndarray] | None
    replaced: Any
    scale: Mapping[Mix, Any]
    conventions: Conventions
    paper: bool

    def train(self, value: np.ndarray, gradients: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the parameter and its average after the steps: gather, clip, decay, update, average."""
        case, options = self.case, self.case.options
        rule, hyper = case.algorithm.rule, dict(case.algorithm.hyperparameters)
        slots, scalars = _new_slots(case, self.index, value), dict(rule.scalars)
        decay = {"weight_decay": case.weight_decay} if rule.places_weight_decay else {}
        average = value
        for step, mix in enumerate(self.mixes):
            second = mix.second + (mix.replaced - mix.second) * self.replaced
            mean = mix.first * gradients[0] + second * gradients[1]
            if options.clip is not None and options.clip.startswith("value"):
                limit = clip_of(options.clip)[1]
                mean = np.clip(mean, -limit, limit)
            values = hyper | scalars | _epsilon(case, step + 1, self.paper) | decay
            c = rule.coefficients(XP, values, float(step + 1))
            scalars = {name: float(c[name]) for name in scalars}
            rate = 0.0 if decay else c.get("decay_rate", hyper["learning_rate"])
            decayed = value * (1.0 - case.weight_decay * rate)
            change, new = rule.update(XP, decayed, self.scale[mix] * mean, slots, c)
            if self.touched is None:
                value, slots = decayed + change, new
            else:
                hit = (self.touched[0] & (mix.first > 0)) | (self.touched[1] & (mix.second > 0))
                value = np.where(hit, decayed + change, value)
                slots = {name: np.where(hit, new[name], slots[name]) for name in slots}
            momentum = options.ema or 0.0
            average = momentum * average + (1.0 - momentum) * value
            if step == 0 and self.conventions.average_of_first_step:
                average = value
        return value, average


def _new_slots(case: Case, index: int, value: np.ndarray) -> dict[str, np.ndarray]:
    slots = {}
    tensor = case.tensors[index]
    dims_of = case.algorithm.slots_of(tensor)
    for slot in case.algorithm.rule.slots:
        dims = dims_of.get(slot.name)
        if dims is not None:
            shape = tuple(tensor.shape[dim] for dim in dims) if is_whole(case) else value.shape
            initial = value if slot.initial == AS_VARIABLE else slot.initial
            slots[slot.name] = np.array(np.broadcast_to(initial, shape), np.float64)
    return slots


def _epsilon(case: Case, step: int, paper: bool) -> dict[str, float]:
    """Return epsilon for the step. Adam's rule adds ε to √v; with ε·√(1 − β₂ᵗ) it matches the paper, which adds ε to
    √v̂."""
    hyper, beta = case.algorithm.hyperparameters, ADAMS.get(case.algorithm.name)
    if not paper or beta is None:
        return {}
    return {"epsilon": hyper["epsilon"] * sqrt(1.0 - hyper[beta] ** step)}
