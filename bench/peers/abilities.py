"""Abilities of a peer's optimizers, as data. If a case needs more, that is the reason why the peer has no row."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.cases.algorithms import ALGORITHMS, shown
from bench.cases.options import CLIPS, clip_of

if TYPE_CHECKING:
    from bench.cases.case import Case

EVERY_ROW, TOUCHED_ROWS = "every row", "touched rows"

ALL_ALGORITHMS = frozenset(known.name for known in ALGORITHMS)

USUAL_ALGORITHMS = ALL_ALGORITHMS - {
    "radam",
    "adabelief",
    "yogi",
    "proximal-adagrad",
    "cocob",
    "conditional-gradient",
    "novograd",
    "lars",
    "adan",
    "schedule-free-adamw",
}
"""Optimizers that Keras has, too; for the others, frameworks have variants with different formulas."""


@dataclass(frozen=True)
class Abilities:
    """Attributes:
    modules: what must be installed, with the argument of `pip install`.
    algorithms: names in `bench.cases.algorithms`.
    only: arguments that have one value here and several elsewhere, by algorithm.
    clips: kinds of `--clip`. ema, accumulate: whether it has them.
    decays: whether it decays the weights of a case separately, and not through the gradient.
    placements: of slots.
    tables: how it updates a table whose gradient is a set of rows: EVERY_ROW, TOUCHED_ROWS, both or neither.
    ways: how it can be called: "eager", "function", "fit". The first is the default of `--in`.
    devices: kinds that it runs on.
    but: a reason that the other attributes cannot express.
    """

    modules: tuple[str, ...]
    install: str
    algorithms: Collection[str] = ALL_ALGORITHMS
    only: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    clips: Collection[str] = tuple(CLIPS)
    ema: bool = True
    accumulate: bool = True
    decays: Callable[[Case], bool] = lambda case: True
    placements: Collection[str] = ("like_variable",)
    tables: Callable[[Case], Collection[str]] = lambda case: (EVERY_ROW,)
    ways: tuple[str, ...] = ("eager",)
    devices: Collection[str] = ("cpu", "gpu", "tpu")
    but: Callable[[Case], str | None] = lambda case: None


def lacking(case: Case, has: Abilities) -> str | None:
    """Return the first requirement of a case that a peer lacks, as the reason in its row, or None."""
    options, algorithm = case.options, case.algorithm
    missing = [module for module in has.modules if not installed(module)]
    if missing:
        return f"{' and '.join(missing)} not installed: pip install {has.install}"
    if case.device not in has.devices:
        return f"runs on {' and '.join(has.devices)} only"
    if algorithm.name not in has.algorithms:
        return f"has no {algorithm.class_name} that can be compared"
    for argument, value in has.only.get(algorithm.name, {}).items():
        if algorithm.hyperparameters[argument] != value:
            word = shown(value)
            return f"has {argument}={word} only: compare with -o {algorithm.name}:{argument}={word}"
    if options.clip is not None and clip_of(options.clip)[0] not in has.clips:
        return f"clips by {' and '.join(has.clips) or 'nothing'} only" if has.clips else "clips no gradients"
    if options.ema is not None and not has.ema:
        return "keeps no moving average"
    if options.accumulate > 1 and not has.accumulate:
        return "accumulates no gradients"
    if options.weight_decay and not has.decays(case):
        return "it has no weight decay, or only through the gradient"
    if options.placement not in has.placements:
        return "its slots are always placed like their variables"
    if options.where is not None and options.where not in has.ways:
        return f"runs {' and '.join(has.ways)} only"
    return _tables(case, has) or has.but(case)


def _tables(case: Case, has: Abilities) -> str | None:
    if case.options.sparse_rows is None:
        return None
    tables = has.tables(case)
    if not tables:
        return "takes no sparse gradients"
    if case.options.lazy_rows and TOUCHED_ROWS not in tables:
        return "updates every row of a table"
    if not case.options.lazy_rows and EVERY_ROW not in tables:
        return "updates touched rows only: compare with --lazy-rows"
    return None


def installed(module: str) -> bool:
    """Whether a module can be found; it is not imported."""
    return importlib.util.find_spec(module) is not None


def same_either_way(case: Case) -> bool:
    """Whether a row without a gradient stays unchanged even if it is updated."""
    name = case.algorithm.name
    return name == "adagrad" or (name == "sgd" and not case.algorithm.hyperparameters["momentum"])
