"""Flat lists of every generation: what was put in comes out under its variable, and what does not fit is refused."""

from __future__ import annotations

import inspect
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optim
from migrate.algorithms import ALGORITHMS, find
from migrate.algorithms.spec import Block
from migrate.bytes.arrays import LazyArray
from migrate.errors import AmbiguousError, DamagedFileError, MissingHintError
from migrate.evidence.interpret import interpret
from migrate.generations import having
from migrate.lists import orders
from migrate.matching import strategies
from migrate.state import OptimizerState, Stored, StoredVariable
from optim.bytes.ranges import Extent
from optim.errors import DtoptError, MismatchError
from tests.helpers.examples import drawn
from tests.helpers.timing import assert_cheaper, least

GENERATIONS = ("keras1", "keras2", "keras2.3", "optimizer_v1", "optimizer_v2", "experimental", "optimizer", "keras3")
CONFIGS = {
    "SGD": {"learning_rate": 0.25, "momentum": 0.9, "nesterov": False},
    "Adam": {"learning_rate": 0.25, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "amsgrad": False},
    "Adadelta": {"learning_rate": 0.25, "rho": 0.95, "epsilon": 1e-7, "decay": 0.0},
    "RMSprop": {"learning_rate": 0.25, "momentum": 0.0, "centered": False, "epsilon": 1e-7},
    "Nadam": {"learning_rate": 0.25, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7},
    "Adamax": {"learning_rate": 0.25, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7},
}
SHAPES = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), min_size=1, max_size=5, unique=True)


def _read(arrays: list[np.ndarray], name: str, config: dict[str, Any], generation: str, shapes: Any) -> OptimizerState:
    weights = tuple(
        (f"weights[{i}]", LazyArray(a.shape, a.dtype.name, lambda a=a: a, f"weights[{i}]"))  # type: ignore[misc]
        for i, a in enumerate(arrays)
    )
    return interpret(
        Stored("list", None, (), None, (), weights=weights),
        optimizer_config={"class_name": name, "config": config},
        variables=[{"name": f"v{i}", "shape": list(s)} for i, s in enumerate(shapes)],
        generation=generation,
    )


def _lay_out(
    order: Any, algorithm: Any, shapes: Any, seed: int
) -> tuple[list[np.ndarray], dict[tuple[str, str], np.ndarray]]:
    """A list in an order, with a negative number in every slot that may have one."""
    rng = np.random.default_rng(seed)
    arrays: list[np.ndarray] = []
    truth: dict[tuple[str, str], np.ndarray] = {}
    for item in order:
        if isinstance(item, Block):
            for i, shape in enumerate(shapes):
                for slot in item.slots:
                    value = np.abs(rng.normal(size=shape)).astype(np.float32) + np.float32(0.1)
                    if not algorithm.slot(slot).nonnegative:
                        value.flat[0] = -1
                    arrays.append(np.zeros(1, np.float32) if item.placeholder else value)
                    if not item.placeholder:
                        truth[slot, f"v{i}"] = value
        else:
            arrays.append(np.array(7, np.int64) if item == "iterations" else np.array(0.25, np.float32))
    return arrays, truth


@drawn(40)
@given(
    shapes=SHAPES,
    generation=st.sampled_from(GENERATIONS),
    name=st.sampled_from(sorted(CONFIGS)),
    amsgrad=st.booleans(),
    data=st.data(),
)
def test_every_order_round_trips(shapes: Any, generation: str, name: str, amsgrad: bool, data: Any) -> None:
    config = {**CONFIGS[name], "iterations": 7}
    if name == "Adam":
        config["amsgrad"] = amsgrad and generation != "keras1"  # which has no such argument
    if name == "RMSprop" and generation not in having(lambda generation: generation.is_native):
        config |= {"momentum": 0.5, "centered": generation != "experimental"}
    algorithm = find(name)
    order = data.draw(st.sampled_from(orders.candidates(algorithm, generation, config)))
    arrays, truth = _lay_out(order, algorithm, shapes, len(shapes))
    try:
        state = _read(arrays, name, config, generation, shapes)
    except AmbiguousError:
        # Two orders of Adadelta, whose slots are both sums of squares, coincide for some shapes; never a wrong answer.
        assert name == "Adadelta"
        return
    got = {(slot, v): a.load() for slot, owners in state.slots.items() for v, a in owners.items()}
    assert got.keys() == truth.keys()
    assert all(np.array_equal(got[key], truth[key]) for key in truth)
    assert state.iterations == 7


@drawn(30)
@given(
    shapes=SHAPES,
    generation=st.sampled_from(GENERATIONS),
    name=st.sampled_from(sorted(CONFIGS)),
    drop=st.integers(0, 30),
)
def test_a_list_one_short_is_never_read_wrongly(shapes: Any, generation: str, name: str, drop: int) -> None:
    """Without one weight a list is refused, or that weight was the step counter of an order that has none."""
    config = CONFIGS[name]
    algorithm = find(name)
    order = orders.candidates(algorithm, generation, config)[0]
    arrays, truth = _lay_out(order, algorithm, shapes, 1)
    lost = drop % len(arrays)
    try:
        state = _read(arrays[:lost] + arrays[lost + 1 :], name, config, generation, shapes)
    except DtoptError:
        return
    got = {(slot, v): a.load() for slot, owners in state.slots.items() for v, a in owners.items()}
    assert arrays[lost].shape in ((), (1,))
    assert all(np.array_equal(got[key], truth[key]) for key in truth)


def test_one_shape_in_two_orders_is_decided_by_signs_or_refused() -> None:
    shapes = [(2, 2)] * 3
    algorithm = find("Adam")
    slot_major, var_major = (
        o for o in orders.candidates(algorithm, "experimental", CONFIGS["Adam"]) if len(o) < 3 and "iterations" not in o
    )
    for order in (slot_major, var_major):
        arrays, truth = _lay_out(order, algorithm, shapes, 0)
        state = _read(arrays, "Adam", {**CONFIGS["Adam"], "iterations": 3}, "experimental", shapes)
        assert all(np.array_equal(state.slots[s][v].load(), a) for (s, v), a in truth.items())
    positive = [np.full((2, 2), i, np.float32) for i in range(6)]
    with pytest.raises(AmbiguousError, match="more than one order"):
        _read(positive, "Adam", CONFIGS["Adam"], "experimental", shapes)


def test_a_list_of_the_new_optimizer_given_as_the_old_one_is_refused() -> None:
    """Variable-major m, v read as slot-major would put m where v belongs, and train to NaN."""
    algorithm, shapes = find("Adam"), [(2, 2)] * 4
    arrays, _ = _lay_out(orders.candidates(algorithm, "optimizer", CONFIGS["Adam"])[0], algorithm, shapes, 0)
    with pytest.raises(MismatchError, match="negative"):
        _read(arrays, "Adam", CONFIGS["Adam"], "optimizer_v2", shapes)


def test_variables_that_joined_later_have_their_slots_at_the_end() -> None:
    shapes = [(2, 3), (3,), (5, 5), (5,), (3, 4), (4,)]
    rng = np.random.default_rng(0)
    m, v = ([rng.normal(size=s).astype(np.float32) ** p for s in shapes] for p in (1, 2))
    early, late = [0, 1, 4, 5], [2, 3]
    arrays = [np.array(9), *(m[i] for i in early), *(v[i] for i in early), *(m[i] for i in late), *(v[i] for i in late)]
    state = _read(arrays, "Adam", CONFIGS["Adam"], "optimizer_v2", shapes)
    assert all(np.array_equal(state.slots["m"][f"v{i}"].load(), m[i]) for i in range(6))
    assert all(np.array_equal(state.slots["v"][f"v{i}"].load(), v[i]) for i in range(6))


def test_a_restored_list_is_read_where_shapes_tell_and_refused_where_they_do_not() -> None:
    """After tf.train.Checkpoint.restore the variables stand in the order of restoring, not of the model."""
    m, v = np.full((2, 3), -1, np.float32), np.ones((2, 3), np.float32)
    arrays = [m, v, m[0], v[0], np.array(4)]
    state = _read(arrays, "Adam", CONFIGS["Adam"], "optimizer_v2", [(3,), (2, 3)])
    assert np.array_equal(state.slots["m"]["v1"].load(), m)
    assert set(state.matched.values()) == {"shape"}
    with pytest.raises(AmbiguousError, match="restored"):
        _read([m, v, m, v, np.array(4)], "Adam", CONFIGS["Adam"], "optimizer_v2", [(2, 3), (2, 3)])


def test_the_message_names_the_generation_that_would_fit() -> None:
    arrays = [np.ones((2, 2), np.float32), np.ones((2, 2), np.float32)]
    with pytest.raises(MismatchError, match="keras1 or keras2 or optimizer_v1"):
        _read(arrays, "Adadelta", CONFIGS["Adadelta"], "keras2.3", [(2, 2)])


def test_lost_iterations_are_exact_without_decay_and_approximate_with_it() -> None:
    arrays = [np.ones((2, 2), np.float32), np.ones((2, 2), np.float32)]
    plain = _read(arrays, "Adadelta", CONFIGS["Adadelta"], "keras2", [(2, 2)])
    assert (plain.iterations, plain.fidelity) == (0, "exact")
    decayed = _read(arrays, "Adadelta", {**CONFIGS["Adadelta"], "decay": 0.1}, "keras2", [(2, 2)])
    assert (decayed.iterations, decayed.fidelity) == (0, "approximate")
    counted = _read(arrays, "Adadelta", {**CONFIGS["Adadelta"], "decay": 0.1, "iterations": 12}, "keras2", [(2, 2)])
    assert (counted.iterations, counted.fidelity) == (12, "exact")


@pytest.mark.parametrize("count", [np.array(-1), np.array(1.5, np.float32), np.array(np.nan, np.float32)])
def test_an_impossible_step_counter_is_refused(count: np.ndarray) -> None:
    with pytest.raises(DamagedFileError, match="step counter"):
        _read([count, np.ones(3, np.float32)], "SGD", CONFIGS["SGD"], "keras1", [(3,)])


def test_missing_hints_are_asked_for_all_at_once() -> None:
    weights = (("weights[0]", LazyArray((), "int64", lambda: np.array(1), "weights[0]")),)
    with pytest.raises(MissingHintError, match=r"--optimizer-config.*--generation.*--variables"):
        interpret(Stored("list", None, (), None, (), weights=weights))


def test_every_algorithm_is_complete() -> None:
    for algorithm in ALGORITHMS:
        accepted = inspect.signature(getattr(optim, algorithm.name)).parameters
        slots = [slot.name for slot in algorithm.slots]
        for generation in algorithm.generations - {"tf1"}:
            config = {**algorithm.defaults(generation), "epsilon": 1e-7}
            arguments = algorithm.arguments(config, generation)
            assert set(arguments) <= set(accepted), algorithm.name
            assert set(algorithm.wanted(arguments, frozenset(slots))[1]) <= set(slots)
            for order in orders.candidates(algorithm, generation, config):
                assert {s for item in order if isinstance(item, Block) for s in item.slots} <= set(slots)


@pytest.mark.parametrize("kind", ["gaps", "zeros"])
@pytest.mark.parametrize("average", [False, True])
def test_adafactors_lists(kind: str, average: bool) -> None:
    """Two generations' ways with r and c of variables below rank 2."""
    shapes = [(2, 3), (3,), (2, 2, 4), (), (5, 1)]
    rng = np.random.default_rng(0)

    def positive(shape: tuple[int, ...]) -> np.ndarray:
        return rng.uniform(0.1, 1.0, shape).astype(np.float32)

    arrays = [np.array(7, np.int64)]
    averages = [positive(shape) for shape in shapes] if average else []
    truth: dict[tuple[str, str], np.ndarray] = {("average", f"v{i}"): a for i, a in enumerate(averages)}
    arrays += averages
    for i, shape in enumerate(shapes):
        if len(shape) > 1:
            r, c = positive(shape[:-1]), positive((*shape[:-2], shape[-1]))
            arrays += [r, c]
            truth |= {("r", f"v{i}"): r, ("c", f"v{i}"): c}
        elif kind == "zeros":
            arrays += [np.zeros((), np.float32)] * 2
        arrays.append(positive(shape))
        if len(shape) < 2:
            truth["v", f"v{i}"] = arrays[-1]
    config = {"learning_rate": 0.25, "use_ema": average, "ema_momentum": 0.9}
    state = _read(arrays, "Adafactor", config, "optimizer", shapes)
    got = {(slot, v): a.load() for slot, owners in state.slots.items() for v, a in owners.items()}
    assert got.keys() == truth.keys()
    assert all(np.array_equal(got[key], truth[key]) for key in truth)
    assert sorted(state.unmapped) == ["v/v0", "v/v2", "v/v4"]
    with pytest.raises(DtoptError):
        _read(arrays[:-1], "Adafactor", config, "optimizer", shapes)


AVERAGED_SUMS = {"learning_rate": 0.1, "momentum": 0.9, "use_ema": True, "gradient_accumulation_steps": 2}


@pytest.mark.parametrize("by_variable", [True, False])
def test_averages_and_gathered_gradients_in_the_orders_of_keras_3(by_variable: bool) -> None:
    """Up to Keras 3.9 the average and the gathered gradient of each variable stand together, and later apart."""
    shapes = [(3,), (2,)]
    both = [[(slot, v) for v in (0, 1)] for slot in ("average", "accumulated_gradient")]
    owners = [owner for pair in (zip(*both, strict=True) if by_variable else both) for owner in pair]
    owners += [("m", 0), ("m", 1)]
    truth = {(slot, f"v{v}"): np.full(shapes[v], i + 1, np.float32) for i, (slot, v) in enumerate(owners)}
    state = _read([np.array(3), np.array(0.1, np.float32), *truth.values()], "SGD", AVERAGED_SUMS, "keras3", shapes)
    got = {(slot, v): a.load() for slot, per in state.slots.items() for v, a in per.items()}
    assert got.keys() == truth.keys()
    assert all(np.array_equal(got[key], truth[key]) for key in truth)
    assert (state.iterations, state.scalars["accumulated_steps"]) == (1, 1)
    assert state.hyperparameters["count_calls"] is True


def test_averages_and_gathered_gradients_of_one_shape_are_told_apart_by_the_release() -> None:
    weights = [np.array(3), np.array(0.1, np.float32), *np.ones((6, 2), np.float32)]
    with pytest.raises(AmbiguousError, match=r"\(average, accumulated_gradient\) of each variable"):
        _read(weights, "SGD", AVERAGED_SUMS, "keras3", [(2,), (2,)])
    possible = orders.candidates(find("SGD"), "keras3", AVERAGED_SUMS)
    old, new = (orders.of_release(possible, release) for release in ((3, 9, 2), (3, 10, 0)))
    assert len(old) == len(new) == 1
    assert set(possible) == {*old, *new}
    assert orders.of_release(possible, ()) == possible


def _layers(shapes: list[list[tuple[int, ...]]]) -> list[StoredVariable]:
    return [
        StoredVariable(f"layer_{i}/{j}", None, shape, "float32", True)
        for i, layer in enumerate(shapes)
        for j, shape in enumerate(layer)
    ]


@pytest.mark.parametrize("seed", range(60))
def test_another_choice_is_found_where_there_is_one(seed: int) -> None:
    """Against all subsets of the layers."""
    random = np.random.default_rng(seed)
    shapes = [[(int(n),) for n in random.integers(1, 3, random.integers(1, 3))] for _ in range(7)]
    variables = _layers(shapes)
    layers = [[v for v in variables if v.name.startswith(f"layer_{i}/")] for i in range(7)]
    subsets = [
        [v for layer, taken in zip(layers, which, strict=True) if taken for v in layer]
        for which in product((False, True), repeat=7)
    ]
    chosen = subsets[int(random.integers(1, len(subsets)))]
    fits = [s for s in subsets if [v.shape for v in s] == [v.shape for v in chosen]]
    choice = strategies.another_choice(chosen, variables)
    assert (choice is not None) == (len(fits) > 1)
    assert choice is None or (choice in fits and choice != chosen)


def test_choosing_among_layers_takes_time_in_proportion_to_them() -> None:
    """Keras 3 lists slots without names: 2,000 layers took 30 s."""

    def seconds(layers: int) -> float:
        variables = _layers([[(4, 16), (16,)]] * layers)
        return least(lambda: strategies.another_choice(variables, variables), 3)

    assert_cheaper(lambda: seconds(1200), lambda: seconds(150), factor=24)


def test_the_beginnings_of_arrays_show_another_order(tmp_path: Path) -> None:
    """Where signs decide nothing, no more of a large array is read."""
    negative = np.r_[-np.ones(1), np.ones(orders.BEGINNING)].astype("f4")
    for values, whole, wanted in (
        (negative, False, False),
        (negative[::-1], False, True),
        (negative[::-1], True, False),
    ):
        (tmp_path / "numbers").write_bytes(values.tobytes())
        extent = Extent(str(tmp_path / "numbers"), 0, values.nbytes, "v")
        array = LazyArray(values.shape, "float32", partial(np.asarray, values), "v", extent)
        resolution = orders.Resolved((), {}, {"v": [array]}, [])
        assert orders.plausible(resolution, find("Adam"), whole=whole) is wanted
