"""The reference of the benchmarks against the float64 implementations from the papers, and its parts by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.cases import workloads
from bench.cases.algorithms import ALGORITHMS
from bench.cases.case import Case
from bench.cases.layouts import parse_mesh
from bench.cases.options import Options
from bench.cases.sparse import Rows
from bench.cases.values import gradient, parameter
from bench.cases.workloads import Tensor, Workload
from bench.peers.peer import Conventions
from bench.step import giving, reference
from tests.reference import (
    adadelta,
    adafactor,
    adagrad,
    adam,
    adamax,
    adan,
    cocob,
    common,
    conditional_gradient,
    ftrl,
    lamb,
    layerwise,
    lion,
    muon,
    nadam,
    proximal_adagrad,
    rectified_adam,
    rmsprop,
    schedule_free_adamw,
    sgd,
    yogi,
)

SMALL = Workload(
    "small", "", (Tensor("table", (12, 6), 0, table=True), Tensor("kernel", (6, 8), 1), Tensor("bias", (8,)))
)
PAPERS: dict[str, Any] = {
    "adam": adam.Adam,
    "adamw": adam.Adam,
    "sgd": sgd.SGD,
    "rmsprop": rmsprop.RMSprop,
    "adagrad": adagrad.Adagrad,
    "adadelta": adadelta.Adadelta,
    "adamax": adamax.Adamax,
    "nadam": nadam.Nadam,
    "ftrl": ftrl.Ftrl,
    "lion": lion.Lion,
    "adafactor": adafactor.Adafactor,
    "lamb": lamb.Lamb,
    "muon": muon.Muon,
    "radam": rectified_adam.RectifiedAdam,
    "adabelief": rectified_adam.AdaBelief,
    "yogi": yogi.Yogi,
    "proximal-adagrad": proximal_adagrad.ProximalAdagrad,
    "cocob": cocob.COCOB,
    "conditional-gradient": conditional_gradient.ConditionalGradient,
    "novograd": layerwise.NovoGrad,
    "lars": layerwise.LARS,
    "adan": adan.Adan,
    "schedule-free-adamw": schedule_free_adamw.ScheduleFreeAdamW,
}
DECAY_INSIDE = ("novograd", "lars", "schedule-free-adamw")
VARIANTS = [
    *(known.name for known in ALGORITHMS),
    "adam:amsgrad=true",
    "sgd:momentum=0.9",
    "sgd:momentum=0.9:nesterov=true",
    "rmsprop:momentum=0.9:centered=true",
    "rmsprop:epsilon_inside=false",
]
EVERY_OPTION = [
    Options(),
    Options(clip="value=0.01", weight_decay=0.1),
    Options(clip="norm=0.05", ema=0.9),
    Options(clip="global_norm=0.1", accumulate=3),
    Options(clip="global_norm=0.1", accumulate=2, sparse_rows=5, ema=0.5, weight_decay=0.02),
]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.cases.case.workload", lambda name: SMALL)
    monkeypatch.setattr("bench.step.giving.MOST_REPLACED", 60)  # all but the table


def made(optimizer: str, options: Options) -> Case:
    return Case("small", optimizer, parse_mesh("2"), "replicated", options=options)


def one_of(case: Case, index: int, conventions: Conventions) -> reference.Expected:
    """One tensor after the first three steps."""
    return next(
        found for _, found in reference.expected(case, [index], giving.mixes(case.options.accumulate, 3), conventions)
    )


@pytest.mark.parametrize("options", EVERY_OPTION, ids=lambda options: " ".join(options.words()) or "plain")
@pytest.mark.parametrize("optimizer", VARIANTS)
def test_steps_equal_the_papers(optimizer: str, options: Options) -> None:
    case = made(optimizer, options)
    hyper = dict(case.algorithm.hyperparameters)
    rate = hyper.pop("learning_rate")
    around = common.Options(
        **{name: value for name, value in options.keras.items() if name != "weight_decay"},
        weight_decay=0.0 if optimizer in DECAY_INSIDE else case.weight_decay,
    )
    if optimizer in DECAY_INSIDE:
        hyper["weight_decay"] = case.weight_decay
    names = [tensor.name for tensor in case.tensors]
    training = common.Training(
        PAPERS[case.algorithm.name](**hyper),
        lambda iterations: rate,
        {name: parameter(case, i) for i, name in enumerate(names)},
        around,
    )
    further = [(which,) * options.accumulate for which in (1, 1, 1, 1, 1, 1, 1, 0)]  # as after the last round
    parts = (1,) * 6 + (2, 2, 2, 4) + (1,)  # of the gradients that are given replaced, twice
    for step, part in zip((*giving.calls(options.accumulate), *further), parts, strict=True):
        for which in step:
            given = [gradient(case, i, which) for i in range(len(names))]
            arrays = [g.whole() if isinstance(g, Rows) else g for g in given]
            training.apply({n: g if n == "table" else g / part for n, g in zip(names, arrays, strict=True)})
    mixes = giving.mixes(options.accumulate, 3 + len(further), turns=2)
    together = dict(reference.expected(case, range(len(names)), mixes, Conventions()))
    for i, name in enumerate(names):
        found = together[i]
        assert len(found.positions) == case.tensors[i].elements
        np.testing.assert_allclose(found.end, training.values[name].reshape(-1), rtol=1e-9, atol=1e-12)
        assert found.judged.mean() > 0.9
        if options.ema is not None:
            assert found.average is not None
            np.testing.assert_allclose(found.average, training.averages[name].reshape(-1), rtol=1e-9, atol=1e-12)


def test_the_papers_epsilon_of_adam() -> None:
    """Algorithm 1 of Kingma & Ba (2015), written out."""
    case = made("adam", Options())
    h = case.algorithm.hyperparameters
    value, m, v = parameter(case, 2).astype(np.float64), 0.0, 0.0
    for t, which in enumerate((0, 0, 1), start=1):
        g = np.asarray(gradient(case, 2, which), np.float64)
        m, v = h["beta_1"] * m + (1 - h["beta_1"]) * g, h["beta_2"] * v + (1 - h["beta_2"]) * g * g
        m_hat, v_hat = m / (1 - h["beta_1"] ** t), v / (1 - h["beta_2"] ** t)
        value = value - h["learning_rate"] * m_hat / (np.sqrt(v_hat) + h["epsilon"])
    np.testing.assert_allclose(one_of(case, 2, Conventions(paper_epsilon=True)).end, value, rtol=1e-12)


def test_averages_start_with_the_first_step_where_a_peer_does_so() -> None:
    case = made("sgd", Options(ema=0.9))
    one = one_of(case, 2, Conventions(average_of_first_step=True))
    start, steps = parameter(case, 2).astype(np.float64), []
    value = start
    for which in (0, 0, 1):
        value = value - 0.01 * np.asarray(gradient(case, 2, which), np.float64)
        steps.append(value)
    assert one.average is not None
    np.testing.assert_allclose(one.average, 0.81 * steps[0] + 0.09 * steps[1] + 0.1 * steps[2], rtol=1e-12)


def test_lazy_rows_leave_rows_without_a_gradient_alone() -> None:
    case = made("adam", Options(sparse_rows=4, lazy_rows=True))
    both = [gradient(case, 0, which) for which in (0, 1)]
    assert all(isinstance(g, Rows) for g in both)
    found = one_of(case, 0, Conventions())
    moved = np.unique(np.nonzero(found.end != found.start)[0] // 6)
    assert list(moved) == sorted({int(row) for g in both for row in g.indices})  # type: ignore[union-attr]
    dense = made("adam", Options(sparse_rows=4))
    other = one_of(dense, 0, Conventions())
    assert np.abs(other.end - found.end).max() > 1e-4  # Adam moves a row by its old mean, lazy rows stay


def test_large_tensors_are_sampled_across_rows_and_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.cases.case.workload", workloads.workload)
    taken = reference.positions(Case("one16m", "adam", parse_mesh("2"), "replicated"), 0)
    assert 4000 < len(taken) <= 4096
    assert len(set(taken // 4096)) > 4000
    assert len(set(taken % 4096)) > 4000
    sparse = Case("embedding", "adam", parse_mesh("2"), "replicated", options=Options(sparse_rows=10))
    rows = gradient(sparse, 0, 0)
    assert isinstance(rows, Rows)
    assert rows.touched(reference.positions(sparse, 0)).sum() >= 600


def test_steps_that_jump_are_not_judged_where_rounding_decides() -> None:
    case = made("lion", Options())
    a, b = (np.asarray(gradient(case, 1, which), np.float64).reshape(-1) for which in (0, 1))
    turning = np.abs(0.1 * b + 0.9 * (1 - 0.99**2) * a)
    found = one_of(case, 1, Conventions())
    assert found.judged[turning > 1e-6].all()
