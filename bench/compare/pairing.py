"""Pair the rows of two results and report changes, or why they must not be compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isinf
from typing import Any

from bench.compare import statistics
from bench.compare.measurements import Measurement, Name, measurements
from bench.compare.statistics import Ratio
from bench.errors import IncomparableError, OptionError
from bench.measuring import stats
from bench.results.document import Result

MACHINE = ("identity", "machine", "cpu", "cpus", "cpus_allowed", "threads")
"""Members of the context that must agree, if both results have them. The name of a host is ignored, because containers
get a new one each time.
"""

SETTINGS = ("system", "governor", "memory_bytes", "huge_pages", "python", "packages", "variables")
"""Members of the context whose differences are shown with the numbers."""

USUAL = ("seed", "threads", "device", "dtype", "accumulate", "placement", "cache", "clip", "layout")
"""Members of names that are not printed if they are the same."""


@dataclass(frozen=True)
class Change:
    """One quantity in both results.

    Attributes:
      name: the independent variables; unit: "s" or "steps"; first, second: medians, None if not measured.
      ratio: second over first, None if it cannot be computed, with the reason.
      gate: whether the second is slower by more than `fail_above`: "above" for certain, "below" for certain, "unclear";
        None without a gate or a ratio.
      broken: measured in the first result and failed in the second.
      reruns: the commands of the first and of the second row.
    """

    name: Name
    unit: str
    first: float | None
    second: float | None
    ratio: Ratio | None
    reason: str | None
    gate: str | None
    broken: bool
    reruns: tuple[str, str]


@dataclass(frozen=True)
class Comparison:
    """Two results of one kind.

    Attributes:
      kind: of both; changes: rows that both contain; only_first, only_second: names that the other lacks.
      forced: why they should not be compared, under `force`; else empty.
      notes: other differences between the runs, and reasons to question them.
      fail_above: the gate, as a fraction, or None.
    """

    kind: str
    changes: tuple[Change, ...]
    only_first: tuple[Name, ...]
    only_second: tuple[Name, ...]
    forced: tuple[str, ...]
    notes: tuple[str, ...]
    fail_above: float | None

    @property
    def outcome(self) -> str:
        """One word: "broken" if a row failed that did not fail before, "nothing" if no pair has a ratio, "regression",
        "noisy" if the gate cannot be judged, "ok".
        """
        if any(change.broken for change in self.changes):
            return "broken"
        if not any(change.ratio for change in self.changes):
            return "nothing"
        gates = {change.gate for change in self.changes}
        return "regression" if "above" in gates else "noisy" if "unclear" in gates else "ok"


def compare(first: Result, second: Result, *, fail_above: float | None = None, force: bool = False) -> Comparison:
    """Compare the second result with the first.

    Args:
      fail_above: a fraction, such as 0.05: a time that is longer by more than it is a regression.
      force: compare although the machines, threads, workload versions or kinds differ, and list why not in `forced`.

    Raises: IncomparableError, which names all differences.
    """
    obstacles = _obstacles(first, second)
    if first.kind != second.kind and force:
        raise IncomparableError(
            f"one result is of the kind {first.kind!r} and the other of {second.kind!r}: they share no row"
        )
    if obstacles and not force:
        raise IncomparableError(
            f"these results must not be compared: {'; '.join(obstacles)}. Measure both on one machine with the same"
            " options, or give --force to see the numbers marked"
        )
    ones, twos = (measurements(result, apart_from=("threads",) if force else ()) for result in (first, second))
    changes = tuple(_change(ones[name], twos[name], fail_above) for name in ones if name in twos)
    return Comparison(
        first.kind,
        changes,
        tuple(name for name in ones if name not in twos),
        tuple(name for name in twos if name not in ones),
        tuple(obstacles),
        tuple(_notes(first, second)),
        fail_above,
    )


def _obstacles(first: Result, second: Result) -> list[str]:
    if first.kind != second.kind:
        return [f"kind is {first.kind!r} in one and {second.kind!r} in the other"]
    contexts = first.context, second.context
    reasons = [_differs(name, *contexts) for name in MACHINE if all(context.get(name) for context in contexts)]
    ones, twos = measurements(first), measurements(second)
    reasons += [
        f"{label(name)} is another version: {_in_words(ones[name].version)}, then {_in_words(twos[name].version)}"
        for name in ones
        if name in twos and ones[name].version != twos[name].version
    ]
    return [text for text in reasons if text]


def _differs(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    one, two = first.get(name), second.get(name)
    return "" if one == two else f"{name} is {one} in one and {two} in the other"


def _in_words(name: Name) -> str:
    return ", ".join(f"{member} {value}" for member, value in name)


def label(name: Name, leave_out: Collection[str] = ()) -> str:
    """Format a name in words: the values of the first two members, then the others that are set."""
    first = [str(value) for _, value in name[:2]]
    rest = [f"{member}={value}" for member, value in name[2:] if value not in (None, False) and member not in leave_out]
    return " ".join([*first, *rest])


NAMED = ("workload", "optimizer", "peer", "mesh")
"""Members whose values are clear without their names."""


def short(names: Sequence[Name]) -> list[str]:
    """Return the parts of names that differ; a single name is whole."""
    differ = [key for key, _ in names[0] if len({dict(name).get(key) for name in names}) > 1] if names else []
    if not differ:
        return [label(name, USUAL) for name in names]
    parts = [[(key, dict(name).get(key)) for key in differ] for name in names]
    return [" ".join(str(v) if key in NAMED else f"{key}={v}" for key, v in name) for name in parts]


def common(names: Sequence[Name]) -> str:
    """Return the parts that `short` leaves out of several names."""
    if len(names) < 2:
        return ""
    same = tuple(pair for pair in names[0] if all(pair in name for name in names))
    return " ".join(
        str(v) if key in NAMED else f"{key}={v}" for key, v in same if key not in USUAL and v not in (None, False)
    )


def _change(one: Measurement, two: Measurement, fail_above: float | None) -> Change:
    reason = _no_ratio(one, two)
    ratio = None if reason else _ratio(one, two)
    gate = None
    if fail_above is not None:
        gate = _gate(ratio, 1 + fail_above) if ratio else "above" if two.misses > one.misses else None
    broken = one.status == "ok" and two.status == "failed"
    return Change(one.name, one.unit, one.median, two.median, ratio, reason, gate, broken, (one.rerun, two.rerun))


def _gate(ratio: Ratio, limit: float) -> str:
    if ratio.low is None or ratio.high is None:
        return "unclear"
    return "above" if ratio.low > limit else "below" if ratio.high <= limit else "unclear"


def _no_ratio(one: Measurement, two: Measurement) -> str | None:
    for which, row in (("first", one), ("second", two)):
        if not row.values:
            return f"{row.status} in the {which} result: {row.reason}"
    if one.misses != two.misses:
        return f"the target was missed {one.misses} times of {len(one.values)}, then {two.misses} of {len(two.values)}"
    return None if _paired_steps(one, two) or one.unit != "steps" else "the target was reached in neither result"


def _ratio(one: Measurement, two: Measurement) -> Ratio:
    if one.unit != "steps":
        return statistics.ratio(one.series, two.series)
    steps_ratio = stats.estimate([b / a for a, b in _paired_steps(one, two)])
    word = stats.verdict(steps_ratio.low, steps_ratio.high, stats.SAME)
    return Ratio(
        steps_ratio.median, steps_ratio.low, steps_ratio.high, steps_ratio.median, None, False, steps_ratio.rounds, word
    )


def _paired_steps(one: Measurement, two: Measurement) -> list[tuple[float, float]]:
    """Pair steps to the target by seed: a seed gives the same numbers in both runs."""
    pairs = zip(one.values, two.values, strict=False)
    return [(a, b) for a, b in pairs if one.unit == "steps" and not isinf(a) and not isinf(b)]


def _notes(first: Result, second: Result) -> list[str]:
    notes = [_differs(name, first.context, second.context) for name in SETTINGS if name != "packages"]
    ones, twos = first.context.get("packages", {}), second.context.get("packages", {})
    notes += [_differs(name, ones, twos) for name in sorted({*ones, *twos})]
    for which, result in (("first", first), ("second", second)):
        if result.context.get("busy"):
            notes.append(f"the machine was busy before the {which} run (load {result.context['load']:.1f})")
        if result.interrupted:
            notes.append(f"the {which} run was interrupted")
    return [text for text in notes if text]


def threshold(text: str) -> float:
    """Parse `5%` or `0.05` as 0.05. Raises: OptionError."""
    try:
        value = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1000.0:
        raise OptionError(f"cannot read {text!r}; write a percentage such as 5%")
    return value
