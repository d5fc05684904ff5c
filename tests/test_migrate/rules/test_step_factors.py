"""The list of all that decides a step: complete, answered for each target, and compared in both directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import migrate
from migrate.live import adapt, step_answers
from migrate.rules import step_factors as factors
from optim.errors import DtoptError
from tests.test_migrate.confirm import confirmed
from tests.test_migrate.live import live_models
from tests.test_migrate.live.live_models import BIAS, KERNEL, SCHEDULE, CannotDoItError

MAXIMUM = {"class_name": "MaxNorm", "config": {"max_value": 1.0, "axis": 0}}
SLOW = (factors.TORCH, factors.OPTAX)
"""Frameworks that are tried by steps, or not among the locked packages."""
ALL = factors.LIVE
ROUNDING_THEMSELVES = tuple(framework for framework in ALL if framework != factors.OPTIM)
"""Those that round each part of a step in bfloat16 to that."""


@dataclass(frozen=True)
class Case:
    """Two sources, or live optimizers, that differ in one entry: what both have, and what one of them has more.

    `always`: framework -> which of the two ways it has without being asked for it, so that it has no other.
    `exceptions`: frameworks that step differently in any case, for another reason.
    `more`: framework -> what both have there besides.
    """

    factor: str
    on: Mapping[str, Any]
    both: Mapping[str, Any] = field(default_factory=dict)
    always: Mapping[str, bool] = field(default_factory=dict)
    exceptions: tuple[str, ...] = ()
    more: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def options(self, framework: str, has: bool) -> dict[str, Any]:
        return {**self.both, **self.more.get(framework, {}), **(self.on if has else {})}


DECAYED = {"weight_decay": 0.1}
COUPLED = {**DECAYED, "decoupled_weight_decay": False}
CASES = {
    "nesterov": Case(factors.RULE, {"nesterov": True}),
    "rate": Case(factors.RATE, {"learning_rate": 0.02}),
    "schedule": Case(factors.RATE, {"learning_rate": SCHEDULE}),
    "clipnorm": Case(factors.CLIPPING, {"clipnorm": 0.5}),
    "clipvalue": Case(factors.CLIPPING, {"clipvalue": 0.5}),
    "global_clipnorm": Case(factors.CLIPPING, {"global_clipnorm": 0.5}),
    "clip_order": Case(
        factors.CLIPPING, {"clip_order": "norm_first"}, {"clipnorm": 0.5, "clipvalue": 0.1}, {}, (factors.TF_KERAS,)
    ),
    "adaptive clipping": Case(
        factors.CLIPPING, {"adaptive_grad_clip": {"clipping": 0.125, "eps": 0.001, "exclude": ["bias"]}}
    ),
    "decay": Case(factors.DECAY, DECAYED),
    "coupled decay": Case(factors.DECAY, COUPLED),
    "place of decay": Case(factors.DECAY, {"decoupled_weight_decay": False}, DECAYED),
    "rate in decay": Case(factors.DECAY, {"learning_rate_in_weight_decay": False}, DECAYED),
    "accumulation": Case(factors.ACCUMULATION, {"gradient_accumulation_steps": 2}),
    "averages": Case(factors.AVERAGES, {"use_ema": True}),
    "means": Case(factors.AVERAGES, {"stochastic_average": {"start_averaging": 0, "average_period": 1}}),
    "lookahead": Case(factors.LOOKAHEAD, {"lookahead": {"sync_period": 2, "slow_step_size": 0.5}}),
    "cautious": Case(factors.CAUTIOUS, {"cautious": True}),
    "copies": Case(factors.COPIES, {"master_copies": True}, {"dtype": "bfloat16"}, {}, ROUNDING_THEMSELVES),
    "rounding": Case(factors.BITS, {"stochastic_rounding": True}, {"dtype": "bfloat16"}, {}, ROUNDING_THEMSELVES),
    "frozen": Case(factors.TRAINED, {"frozen": (KERNEL, BIAS)}, {"file": ".keras"}),
    "constraint": Case(factors.CONSTRAINT, {"constraint": MAXIMUM}, {"file": ".keras"}),
    "another constraint": Case(
        factors.CONSTRAINT,
        {"constraint": {"class_name": "MaxNorm", "config": {"max_value": 2.0, "axis": 0}}},
        {"file": ".h5", "constraint": MAXIMUM},
    ),
    "excluded": Case(factors.DECAYED, {"weight_decay_exclude": ["bias"]}, DECAYED),
    "excluded from coupled": Case(factors.DECAYED, {"weight_decay_exclude": ["bias"]}, COUPLED),
    "multiplier": Case(factors.MULTIPLIER, {"learning_rate_multipliers": {"kernel": 0.5}}),
    "unadapted": Case(factors.EXCEPTED, {"exclude_from_layer_adaptation": ["bias"]}, {"cls": "Lamb"}),
    "no Muon": Case(factors.EXCEPTED, {"exclude_layers": ["f.kernel"]}, {"cls": "Muon"}),
    "rows": Case(
        factors.LAZY,
        {"lazy_rows": ["embeddings"]},
        {"table": True},
        {factors.LEGACY: True, factors.KERAS3: False, factors.TF_KERAS: False},
    ),
    "slots of rows": Case(
        factors.LAZY,
        {"lazy_rows_keep_slots": False},
        {"table": True, "cls": "Nadam", "lazy_rows": ["embeddings"]},
        {},
        tuple(framework for framework in ALL if framework != factors.OPTIM),
    ),
    "repeated": Case(
        factors.REPEATED,
        {"repeated_rows": ["square"]},
        {"table": True, "cls": "Adagrad", "epsilon_inside": True},
        {factors.KERAS3: True, factors.TF_KERAS: False, factors.TORCH: False},
        (factors.LEGACY,),
        {factors.TORCH: {"epsilon_inside": False}},
    ),
    "scale": Case(factors.LOSS_SCALE, {"loss_scale": "dynamic"}),
    "scale around a model's": Case(factors.LOSS_SCALE, {"loss_scale": "dynamic"}, {"file": ".keras"}),
    "initial accumulator": Case(
        factors.FIRST,
        {"initial_accumulator_value": 0.5},
        {"cls": "Adagrad", "steps": 0, "file": ".h5"},
        {},
        (factors.LEGACY, factors.TORCH),
    ),
    "first average": Case(
        factors.FIRST,
        {"ema_start": "first_step"},
        {"use_ema": True, "steps": 0},
        {factors.KERAS3: True, factors.TF_KERAS: False},
    ),
    "float64": Case(factors.DTYPE, {"dtype": "float64"}),
    "float64 without slots": Case(factors.DTYPE, {"dtype": "float64"}, {"momentum": 0.0}),
    "powers": Case(factors.ROUNDING, {"float32_powers": True}, {"cls": "RectifiedAdam"}),
    "method": Case(factors.METHODS, {"changed": True}),
}
PARAMETERS = [
    pytest.param(name, framework, marks=[pytest.mark.breadth] * (framework in SLOW))
    for name in CASES
    for framework in ALL
]


# The list.


def test_each_entry_has_an_answer_for_each_target() -> None:
    words = {v for k, v in vars(factors).items() if k.isupper() and isinstance(v, str) and " " in v}
    for factor in factors.FACTORS:
        assert set(factor.answers) == {*factors.LIVE, *factors.FILES}, factor.name
        assert set(factor.answers.values()) <= words, factor.name


def test_each_argument_of_optim_is_in_one_entry() -> None:
    from optim.options.settings import OPTIONS

    named = [argument for factor in factors.FACTORS for argument in factor.arguments]
    assert sorted(named) == sorted(set(named))
    assert set(OPTIONS) - set(named) - factors.NO_STEP == set()
    assert set(named) & factors.NO_STEP == set()


def test_each_entry_is_tried() -> None:
    assert {case.factor for case in CASES.values()} == {factor.name for factor in factors.FACTORS}


@pytest.mark.parametrize("framework", [f for f in ALL if f not in SLOW])
def test_each_live_optimizer_answers_what_the_list_asks_of_it(framework: str) -> None:
    optimizer, _ = live_models.live(framework, {})
    asked = {f for f in factors.OF_VARIABLES if factors.BY_NAME[f].answers[framework] == factors.ASKED}
    live, _ = adapt(optimizer)
    assert live.generation == framework
    assert set(live.asks) == asked
    assert set(factors.OF_VARIABLES) - asked <= set(step_answers.UNUSED)


# What it is for.


@pytest.fixture(name="source", scope="module")
def sources(tmp_path_factory: Any) -> Any:
    paths: dict[str, str] = {}

    def source(options: Mapping[str, Any]) -> str:
        key = repr(sorted(options.items()))
        if key not in paths:
            paths[key] = live_models.source(tmp_path_factory.mktemp("source"), options)
        return paths[key]

    return source


def _ways(case: Case, framework: str) -> Iterator[tuple[bool, tuple[Any, Any]]]:
    """Live optimizers that can be made: whether each has what the case is about."""
    is_any = False
    for way in (False, True):
        if case.always.get(framework, way) is not way:
            continue
        try:
            yield way, live_models.live(framework, case.options(framework, way))
            is_any = True
        except (CannotDoItError, ValueError):
            pass
    if not is_any:  # nothing of it, so that neither source may be exact
        yield None, live_models.live(framework, {})  # type: ignore[misc]


def _restored(path: str, live: tuple[Any, Any], **hints: Any) -> tuple[str, tuple[str, ...]]:
    try:
        report = migrate.restore(path, *live, **hints)
    except DtoptError as error:
        return "refused", (str(error),)
    return report.fidelity, report.reasons


@pytest.mark.parametrize(("name", "framework"), PARAMETERS)
@pytest.mark.quick(15)
def test_a_difference_is_never_exact_and_no_difference_is(name: str, framework: str, source: Any) -> None:
    if framework in SLOW:
        pytest.importorskip(framework, reason=f"{framework} is not installed")
    case = CASES[name]
    results = {}
    for has in (False, True):
        if name == "method" and has:  # of a live optimizer alone
            continue
        path = source(case.options(framework, has))
        for way, live in _ways(case, framework):
            results[has, way] = _restored(path, live)
    alike = {ways: ways[0] is ways[1] and framework not in case.exceptions for ways in results}
    wrong = {ways: result for ways, result in results.items() if (result[0] == "exact") != alike[ways]}
    assert wrong == {}


QUICK = (factors.TRAINED, factors.CONSTRAINT, factors.CLIPPING)
"""Entries that are tried through the files of Keras each time."""
FILE_CASES = [
    pytest.param(name, target, marks=[pytest.mark.breadth] * (target != "slots" and case.factor not in QUICK))
    for name, case in CASES.items()
    if case.factor not in (factors.METHODS, factors.EXCEPTED, factors.FIRST)
    and not {"table", "dtype"} & {*case.both, *case.on}
    for target in factors.FILES
]
LOADING = {"keras": factors.KERAS3, "tf-keras": factors.TF_KERAS, "slots": factors.OPTIM}
SUFFIXES = {"keras": ".keras", "tf-keras": ".h5", "slots": ""}


@pytest.mark.parametrize(("name", "target"), FILE_CASES)
@pytest.mark.quick(6)
def test_an_exact_file_answers_as_its_source(name: str, target: str, source: Any, tmp_path: Path) -> None:
    """What is restored from a target is exact into what is as its source, and into nothing else."""
    case = CASES[name]
    is_noted = factors.BY_NAME[case.factor].answers[target] == factors.NOTED
    of_model = {"file": ".keras"} if target != "slots" or is_noted else {}
    for has in (False, True):
        options = {**case.options("", has), **of_model}
        dest = str(tmp_path / f"{has}{SUFFIXES[target]}")
        try:
            report = migrate.migrate_checkpoint(source(options), dest, to=target)
        except (CannotDoItError, DtoptError, ValueError):  # Keras has it not, or no file of a model
            continue
        if is_noted:
            word = {factors.CONSTRAINT: "constraint", factors.LOSS_SCALE: "loss scale"}[case.factor]
            is_there = "constraint" in options or "loss_scale" in options
            assert (word in " ".join(report.warnings)) == is_there, report.warnings
            for way, live in _ways(case, factors.KERAS3):
                exact = _restored(dest, live, overrides=confirmed(dest))[0] == "exact"
                assert exact == (has is way) or not is_there, (has, way)
        elif report.fidelity == "exact":
            for way, live in _ways(case, LOADING[target]):
                fidelity, reasons = _restored(dest, live, overrides=confirmed(dest))
                assert (fidelity == "exact") == (has is way), (has, way, reasons)
