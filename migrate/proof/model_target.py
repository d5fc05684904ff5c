"""`verify` targets that Keras itself loads, without using how they were made.

Arrays: read again from the file; each must equal one of the source's, bit for bit, or a slot times one factor. Meaning:
steps by the formulas of the source's and the target's releases. Truth: Keras loads the file in a separate process and
makes a step (`loaded`).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np

from migrate.bytes.arrays import LazyArray
from migrate.bytes.messages import some
from migrate.proof import parity, parity_sample, stepping
from migrate.state import OptimizerState, StoredVariable
from optim.errors import UnsupportedError

FORMATS = {"keras": "keras", "h5": "tf_keras"}
"""Readers of these targets, and the library that loads them."""
SCALES = (1.0, 100.0)
"""Scales of gradients: small, and large enough for every clipping to have an effect."""
LATER = (0, 1, 10, 100, 1000, 100_000)
"""Steps after which learning rates are compared."""
SAME = 1e-5
"""A factor this close to one counts as one: the numbers must then be equal bit for bit."""
OPTIONS = ("use_ema", "ema_momentum", "gradient_accumulation_steps", "amsgrad")
FAMILY = {"AdamW": "Adam"}
Print = tuple[tuple[int, ...], str, bytes]
"""Shape, dtype and digest of the bytes of an array."""


_PRINTS: WeakKeyDictionary[LazyArray, Print] = WeakKeyDictionary()


def print_of(array: LazyArray) -> Print:
    """Identify an array; each is read once for that."""
    if array not in _PRINTS:
        data = np.ascontiguousarray(array.load()).reshape(-1).view(np.uint8).data
        _PRINTS[array] = (array.shape, array.dtype, hashlib.blake2b(data, digest_size=16).digest())
    return _PRINTS[array]


@dataclass(frozen=True)
class Compared:
    """`renamed` is the target under the source's names; `worst` the error of its formula's step, relative to the
    limit."""

    differences: tuple[str, ...]
    notes: tuple[str, ...]
    renamed: OptimizerState
    worst: float | None


def compared(source: OptimizerState, target: OptimizerState, known: tuple[str, ...]) -> Compared:
    """Return every difference between a source and a target as read by its reader.

    Args:
      known: why the migration is approximate; a step may then differ, which is noted.
    """
    pairs, problems = _paired(source, target)
    renamed = _renamed(target, pairs)
    notes: list[str] = []
    problems += _slots(source, renamed, notes)
    if FAMILY.get(source.algorithm, source.algorithm) != FAMILY.get(target.algorithm, target.algorithm):
        problems.append(f"the target's optimizer is {target.algorithm}, the source's {source.algorithm}")
    if source.iterations != target.iterations:
        problems.append(
            f"iterations is {target.iterations}, not {source.iterations} (source: {source.iterations_source})"
        )
    other, worst = [], None
    if not problems:
        other = list(_option_differences(source, target))
        try:
            other += _rate_differences(source, target)
            worst = max(_step_error(source, renamed, scale) for scale in SCALES)
            if not worst <= 1:
                other.append(
                    f"by the formulas of both releases a step from the target differs from the source's own by"
                    f" {worst:.3g} times the rounding tolerance"
                )
        except UnsupportedError as error:
            notes.append(str(error))
    if known:
        notes += [f"{text}; the migration is approximate: {some(known, between='; ')}" for text in other]
        other = []
    return Compared((*problems, *other), tuple(notes), renamed, worst)


def _paired(source: OptimizerState, target: OptimizerState) -> tuple[dict[str, str], list[str]]:
    """Target's variable -> source's with the same value; equal ones by their slots, then by name and trained flag, then
    in order."""
    free: dict[Print, list[StoredVariable]] = {}
    for variable in source.variables:
        if variable.array is not None:
            free.setdefault(print_of(variable.array), []).append(variable)
    seen = set(free)
    theirs = {v.name: print_of(v.array) for v in target.variables if v.array is not None}
    is_trained = {v.name: bool(v.trainable) for v in target.variables}
    slots = [_prints_of_slots(state) for state in (source, target)]
    pairs: dict[str, str] = {}
    for exact in (True, False):
        for name, fingerprint in theirs.items():
            twins = free.get(fingerprint, []) if name not in pairs else []
            fits = [v for v in twins if not exact or slots[0].get(v.name) == slots[1].get(name)]
            chosen = min(fits, key=partial(_strangeness, source, name, is_trained[name]), default=None)
            if chosen is not None:
                twins.remove(chosen)
                pairs[name] = chosen.name
    problems = [f"{name} has the values of the source's {source_name}" for name, source_name in _swapped(pairs).items()]
    left = [v for group in free.values() for v in group]
    strange = [v for v in target.variables if v.name not in pairs and v.array is not None]
    strange = [v for v in strange if theirs[v.name] not in seen and v.dtype.startswith(("float", "bfloat"))]
    problems += [
        f"{v.name} is trained in only one of source and target ({pairs[v.name]} in the source)"
        for v in target.variables
        if v.name in pairs and _is_trained(source, pairs[v.name]) not in (None, is_trained[v.name])
    ]
    for variable in left:
        like = next((v for v in strange if v.shape == variable.shape), None)
        if like is None or like.array is None or variable.array is None:
            problems.append(f"{variable.name} is missing (source: {_place(variable.array)})")
            continue
        strange.remove(like)
        pairs[like.name] = variable.name
        problems.append(f"{like.name} {difference(variable.array, like.array)} (source: {variable.name})")
    return pairs, [*problems, *(f"{v.name} is in no source" for v in strange)]


def _swapped(pairs: Mapping[str, str]) -> dict[str, str]:
    """Return the pairs that exchange the values of names that both sides have.

    If names differ, as of layers within layers, one name may mean another variable on the other side: then the source's
    variable of that name is in the target under a name that the source does not have.
    """

    def returns(name: str) -> bool:
        at = pairs[name]
        while at in pairs and at != name:
            at = pairs[at]
        return at == name

    return {name: source_name for name, source_name in pairs.items() if name != source_name and returns(name)}


def _strangeness(source: OptimizerState, name: str, is_trained: bool, v: StoredVariable) -> tuple[bool, bool]:
    """Key for the similarity of a source's variable with the target's of that name; the smallest is the best."""
    return _layer_and_role(v.name) != _layer_and_role(name), _is_trained(source, v.name) not in (None, is_trained)


def _layer_and_role(name: str) -> str:
    return "/".join(name.split(":")[0].split("/")[-2:])


def _prints_of_slots(state: OptimizerState) -> dict[str, dict[str, Print]]:
    prints: dict[str, dict[str, Print]] = {}
    for slot, per in state.slots.items():
        for name, array in per.items():
            prints.setdefault(name, {})[slot] = print_of(array)
    return prints


def _is_trained(state: OptimizerState, name: str) -> bool | None:
    if any(name in per for per in state.slots.values()):
        return True
    flag = next(v.trainable for v in state.variables if v.name == name)
    return None if flag and any(state.slots.values()) else flag


def _renamed(target: OptimizerState, pairs: Mapping[str, str]) -> OptimizerState:
    return replace(
        target,
        variables=tuple(replace(v, name=pairs.get(v.name, v.name)) for v in target.variables),
        slots={slot: {pairs.get(n, n): array for n, array in per.items()} for slot, per in target.slots.items()},
    )


def _slots(source: OptimizerState, target: OptimizerState, notes: list[str]) -> Iterator[str]:
    names = list(dict.fromkeys((*source.slots, *target.slots)))
    for slot in names:
        have, get = source.slots.get(slot, {}), target.slots.get(slot, {})
        if not get:
            notes.append(f"slot {slot} is not stored there; the step shows whether it matters")
            continue
        factors = set()
        for name in dict.fromkeys((*have, *get)):
            if name not in get:
                yield f"slot {slot} of {name} is missing (source: {_place(have[name])})"
            elif name not in have:
                if not _may_be_initial(get[name], target, name):
                    yield f"slot {slot} of {name} is in no source"
            elif not (problem := difference(have[name], get[name])):
                factors |= {"1"} if np.any(have[name].load()) else set()
            else:
                factor = _factor(have[name], get[name])
                if factor is None:
                    yield f"slot {slot} of {name} {problem} (source: {_place(have[name])})"
                else:
                    factors.add(f"{factor:.5g}")
        if len(factors) > 1:
            yield f"slot {slot} is multiplied by {some(sorted(factors))}, in each variable by another number"
        elif factors - {"1"}:
            notes.append(f"slot {slot} is multiplied by {factors.pop()}; the step shows whether that is right")


def _may_be_initial(array: LazyArray, state: OptimizerState, name: str) -> bool:
    values = np.asarray(array.load())
    if values.size == 0 or np.all(values == values.flat[0]):
        return True
    variable = next(v.array for v in state.variables if v.name == name)
    return variable is not None and print_of(variable) == print_of(array)


def _factor(want: LazyArray, got: LazyArray) -> float | None:
    """The factor by which an array was multiplied, or None, or if it is one except for rounding."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return None
    a, b = (stepping.numbers(array).ravel() for array in (want, got))
    if not (np.all(np.isfinite(a)) and np.all(np.isfinite(b)) and a.any()):
        return None
    factor = float(a @ b / (a @ a))
    close = np.abs(b - factor * a) <= 4 * np.finfo(np.float32).eps * np.abs(factor * a)
    return factor if factor and abs(factor - 1.0) > SAME and np.all(close) else None


def difference(want: LazyArray, got: LazyArray) -> str:
    """Describe how two arrays differ in shape, dtype or any bit; empty if they do not."""
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
    if print_of(want) == print_of(got):
        return ""
    one, other = (np.asarray(array.load()) for array in (want, got))
    return f"differs in {int(np.sum(one != other))} of {want.size} numbers"


def _place(array: LazyArray | None) -> str:
    return "" if array is None else array.stored_as


def _option_differences(source: OptimizerState, target: OptimizerState) -> Iterator[str]:
    averaged = source.hyperparameters.get("use_ema") or target.hyperparameters.get("use_ema")
    for key in OPTIONS:
        have, get = (state.hyperparameters.get(key) for state in (source, target))
        if (key != "ema_momentum" or averaged) and (have or None) != (get or None):
            yield f"the target has {key} = {get!r}, the source {have!r}"


def number_differences(expected: OptimizerState, target: OptimizerState, source: OptimizerState) -> Iterator[str]:
    """Compare the optimizer-wide numbers with those derived from the source now, to the last bit of a float32.

    Args:
        expected: the source in the target's form; source: unchanged.
    """
    rate = "learning_rate"
    have, get = ({rate: s.hyperparameters.get(rate), **s.scalars} for s in (expected, target))
    have |= dict(_of_loss_scale(source, target))
    get |= {name: np.asarray(target.unmapped[name].load()).item() for name in have if name in target.unmapped}
    for name in dict.fromkeys((*have, *get)):
        one, other = (numbers.get(name) for numbers in (have, get))
        is_number = isinstance(one, (int, float)) or isinstance(other, (int, float))
        if is_number and (None in (one, other) or np.float32(one) != np.float32(other)):
            yield f"the target has {name} = {other!r}, but from the source it should be {one!r}"


def _of_loss_scale(source: OptimizerState, target: OptimizerState) -> Iterator[tuple[str, float]]:
    """Keras 3's wrapper has an unused counter and rate, the steps since its last change, and its scale: those of the
    source if it has them, else initial ones."""
    places = [f"optimizer/vars/{i}" for i in range(4)]
    if target.source is None or any(place not in target.unmapped for place in places):
        return
    settings = (target.source.optimizer_config or {}).get("config", {})
    values = [0, 0.0, 0, settings.get("initial_scale")]
    if source.source is not None:
        named = {name.rpartition("/")[2]: array for name, array in source.unmapped.items()}
        by_keras3 = source.source_traits.lists_loss_scale
        names = ("step_counter", "dynamic_scale") if by_keras3 else ("good_steps", "current_loss_scale")
        kept = [source.unmapped.get(place, named.get(name)) for place, name in zip(places[2:], names, strict=True)]
        values[2:] = [v if a is None else np.asarray(a.load()).item() for a, v in zip(kept, values[2:], strict=True)]
    yield from zip(places, values, strict=True)


def _rate_differences(source: OptimizerState, target: OptimizerState) -> Iterator[str]:
    ours, theirs = (stepping.parity_source(state) for state in (source, target))
    for later in LATER:
        have, get = (parity.rate(replace(s, iterations=source.iterations + later)) for s in (ours, theirs))
        if abs(have - get) > 1e-6 * max(abs(have), abs(get)):
            yield f"the learning rate in {later} steps is {get:.7g}, in the source {have:.7g}"
            return


def _step_error(source: OptimizerState, target: OptimizerState, scale: float) -> float:
    check_single(source)
    chosen, _ = parity_sample.sample(source)
    owners = trained(source)
    chosen = {name: pieces for name, pieces in chosen.items() if name in owners}
    source, target = (parity_sample.reduced(state, chosen) for state in (source, target))
    ours, theirs = (stepping.parity_source(state) for state in (source, target))
    gradients = {v.name: partial(stepping.random, v.name, v.shape, v.dtype, scale) for v in source.variables}
    clips = [parity.gradient_scale(side, gradients) for side in (ours, theirs)]
    worst = 0.0
    for v in source.variables:
        start = stepping.numbers(v.array) if v.array is not None else gradients[v.name]()
        steps = [
            parity.step(side, start, clip(gradients[v.name]()), slots_of(state, v.name))
            for side, clip, state in zip((ours, theirs), clips, (source, target), strict=True)
        ]
        (want, magnitude), (got, _) = steps
        worst = max(worst, stepping.error(got, want, magnitude * (1 + rounded(ours) / 1e-6), rounded_to(v.dtype)))
    return worst


def rounded_to(dtype: str) -> str:
    """The dtype to which a variable's step is rounded: Keras has the learning rate and losses in its floatx."""
    return "float32" if dtype == "float64" else dtype


def check_single(state: OptimizerState) -> None:
    """Raise UnsupportedError if no single step can be compared."""
    if state.hyperparameters.get("gradient_accumulation_steps"):
        raise UnsupportedError("gradients are accumulated over several batches, so no single step is compared")


def trained(state: OptimizerState) -> list[str]:
    """Names of the variables that a step changes."""
    owners = dict.fromkeys(itertools.chain.from_iterable(state.slots.values()))
    return list(owners) or [v.name for v in state.variables if v.trainable]


def slots_of(state: OptimizerState, name: str) -> dict[str, np.ndarray]:
    """Slots of one variable, in float64."""
    return {slot: stepping.numbers(per[name]) for slot, per in state.slots.items() if name in per}


def rounded(source: parity.Source) -> float:
    """Relative error of 1 - β for a β rounded to float32: some releases compute it in float32, others do not."""
    betas = (source.get(key) for key in ("beta_1", "beta_2", "rho"))
    return sum(2.0**-24 / (1.0 - beta) for beta in betas if 0.0 < beta < 1.0)
