"""Learning rates that a graph of TensorFlow 1 computes from its step, and no schedule of Keras's is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import migrate
import optim
from migrate.errors import MissingHintError
from migrate.graphs import formulas, schedules
from migrate.proof import parity, parity_formula
from migrate.state import OptimizerState
from optim.bytes import protos
from optim.schedules import Formula
from tests.places import SCOPED
from tests.test_migrate.graphs.small_graphs import small_graph


def rate(name: str) -> Formula:
    schedule = migrate.read(SCOPED / name / "source" / "model.ckpt").hyperparameters["learning_rate"]
    assert schedule["class_name"] == "Formula"
    return Formula(**schedule["config"])


def test_a_warm_up_by_cond_and_pieces_by_one_hot() -> None:
    warm, manual = ([float(rate(name)(step)) for step in range(10)] for name in ("warm", "manual"))
    assert warm == pytest.approx([0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.01, 0.001, 0.001], rel=2e-7)
    assert manual == pytest.approx([0.1] * 4 + [0.05] * 2 + [0.02] + [0.015] * 3, rel=2e-7)


@pytest.mark.parametrize("op", sorted({*formulas.TAKEN, "SelectV2", "Max", "Min", "Sum", "OneHot"}))
def test_an_op_gives_the_same_here_and_in_the_proof(op: str) -> None:
    takes = Formula.TAKES[op].split()
    dtypes = formulas.TAKEN.get(op, ("float32",))
    for dtype in dtypes:
        numbers: list[Any] = [7, 3] if dtype.startswith("int") else [True, False] if dtype == "bool" else [2.7, 0.4]
        constants: list[list[Any]] = [["Const", dtype, number] for number in numbers[: len(takes)]]
        if op == "SelectV2":
            constants = [["Const", "bool", False], *constants[:2]]
        elif op == "OneHot":
            constants = [["Const", "int32", 1], ["Const", "int32", 3], *constants[:2]]
        elif takes[-1] == "axis":
            constants = [["Const", dtype, [0.5, 2.0, 1.25]], ["Const", "int32", [0]]]
        operations = [*constants, [op, *range(len(constants))]]
        if op == "OneHot":
            operations += [["Const", "int32", 0], ["Sum", len(constants), len(constants) + 1]]
        if op in formulas.TESTS or dtype != "float32":
            operations.append(["Cast", len(operations) - 1, "float32"])
        want = parity_formula.rate(operations, 0)
        assert float(Formula(operations)(0)) == pytest.approx(want, rel=1e-6)
        assert Formula(operations).at(0) == pytest.approx(want, rel=1e-6)


def test_the_proof_computes_a_formula_by_itself() -> None:
    for name in ("warm", "manual"):
        schedule = rate(name)
        config = {"class_name": "Formula", "config": schedule.get_config()}
        assert [parity.schedule(config, step) for step in range(10)] == [float(schedule(step)) for step in range(10)]


def altered(name: str, folder: Path, change: Callable[[dict[str, Any]], None], **hints: Any) -> OptimizerState:
    shutil.copytree(SCOPED / name / "source", folder / "copy")
    meta = folder / "copy" / "model.ckpt.meta"
    proto = protos.SaverMetaGraph.FromString(meta.read_bytes())
    change({node.name: node for node in proto.graph_def.node})
    meta.write_bytes(proto.SerializeToString())
    return migrate.read(folder / "copy" / "model.ckpt", **hints)


def _op(name: str, op: str) -> Callable[[dict[str, Any]], None]:
    return lambda nodes: setattr(nodes[name], "op", op)


def _input(name: str, place: int, to: str) -> Callable[[dict[str, Any]], None]:
    def change(nodes: dict[str, Any]) -> None:
        nodes[name].input[place] = to

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("warm", _op("train/truediv", "RandomUniform")),
        ("warm", _op("train/truediv", "Placeholder")),
        ("warm", _op("train/cond/Merge", "AddV2")),  # of two sides of which one is not there
        ("warm", _input("train/cond/Merge", 0, "train/cond/Switch_1:1")),  # both of one side
        ("warm", _input("train/truediv", 1, "train/Cast_1/x")),  # a whole number among floats
        ("warm", _op("train/mul", "Atan2")),
        ("manual", _op("train/one_hot", "Pack")),
        ("manual", _input("train/one_hot", 1, "train/one_hot/on_value")),
        ("manual", _op("train/Maximum", "SquaredDifference")),
    ],
)
def test_what_is_no_formula_of_the_step_is_asked_for(
    name: str, change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    state = altered(name, tmp_path, change)
    assert state.fidelity == "approximate"
    reasons = " ".join(state.reasons)
    assert "learning_rate: 'train/" in reasons
    assert reasons.count("learning_rate") == 2  # said once, with what settles it, and not that the default may be right
    assert """Set it with --set 'learning_rate={"class_name": CLASS, "config": {...}}'""" in reasons


def test_no_number_settles_a_rate_that_the_graph_makes_from_the_step(tmp_path: Path) -> None:
    """As facenet decays a rate that it feeds, whose value is known to who trained, but not the decay."""
    decay = {"initial_learning_rate": 0.02, "decay_steps": 2, "decay_rate": 0.5, "staircase": True}
    rates = [0.02, {"class_name": "ExponentialDecay", "config": decay}]
    change = _op("train/truediv", "Placeholder")
    number, schedule = (
        altered("warm", tmp_path / str(i), change, overrides={"learning_rate": rate}) for i, rate in enumerate(rates)
    )
    assert (number.fidelity, schedule.fidelity) == ("approximate", "exact")
    assert "steps change what it is made of, and 0.02 is one number" in " ".join(number.reasons)


def test_a_number_settles_a_rate_that_a_program_feeds(tmp_path: Path) -> None:
    def change(nodes: dict[str, Any]) -> None:
        place = {"ApplyMomentum": 2, "ResourceApplyMomentum": 2}
        for node in nodes.values():
            if node.op in place:
                node.input[2] = "train/truediv"
        nodes["train/truediv"].op = "Placeholder"
        nodes["train/truediv"].ClearField("input")

    asked = altered("warm", tmp_path / "a", change)
    assert "Set it with --set learning_rate=VALUE" in " ".join(asked.reasons)
    assert altered("warm", tmp_path / "b", change, overrides={"learning_rate": 0.02}).fidelity == "exact"


@pytest.mark.parametrize(
    ("nodes", "number"),
    [
        ([("rate", "Mul", ["1.5", "0.1"])], float(np.float32(1.5) * np.float32(0.1))),
        ([("half", "RealDiv", ["0.1", "1.5"]), ("rate", "Sqrt", ["half"])], 0.2581989),
        ([("rate", "RealDiv", ["0.1", "0.0"])], None),
        ([("rate", "Exp", ["0.1"])], None),  # which TensorFlow may round otherwise
        ([("rate", "Mul", ["0.1", "fed"]), ("fed", "Placeholder", [])], None),
    ],
)
def test_what_constants_alone_make_is_a_number(nodes: list[tuple[str, str, list[str]]], number: float | None) -> None:
    constants = [(name, "Const", list[str]()) for name in ("0.1", "1.5", "0.0")]
    assert schedules.read(small_graph(*constants, *nodes), "rate") == (
        number if number is None else pytest.approx(number)
    )


def test_a_step_that_may_be_raised_before_its_rate_is_read_is_doubted(tmp_path: Path) -> None:
    """As of a `tf.group` of `minimize(loss)` and `assign_add(step, 1)`: which comes first, no graph says."""

    def change(nodes: dict[str, Any]) -> None:
        raises = next(node for node in nodes.values() if node.op == "AssignAdd")
        for node in (raises, nodes[raises.input[1]]):
            kept = [input_name for input_name in node.input if not input_name.startswith("^")]
            node.ClearField("input")
            node.input.extend(kept)

    state = altered("warm", tmp_path, change)
    assert state.fidelity == "approximate"
    assert "does not wait for all of the step" in " ".join(state.reasons)


def test_a_momentum_that_the_graph_computes_is_said_to_be_one(tmp_path: Path) -> None:
    def change(nodes: dict[str, Any]) -> None:
        for node in nodes.values():
            if node.op.endswith("ApplyMomentum"):
                node.input[4] = node.input[2]

    with pytest.raises(MissingHintError, match=r"slots of momentum .* 'train/.*' \(Merge\) in the graph computes it"):
        altered("warm", tmp_path, change)


def test_a_momentum_of_zero_that_the_graph_has_is_one(tmp_path: Path) -> None:
    """MomentumOptimizer(rate, 0.0) keeps slots that no step reads."""

    def change(nodes: dict[str, Any]) -> None:
        for name in {node.input[4] for node in nodes.values() if node.op.endswith("ApplyMomentum")}:
            tensor = next(attribute for attribute in nodes[name].attr if attribute.key == "value").value.tensor
            tensor.float_val[:] = [0.0]

    state = altered("warm", tmp_path, change)
    assert state.hyperparameters["momentum"] == 0.0
    assert state.hyperparameters["momentum_slot"]


@pytest.mark.parametrize(("flag", "value"), [("update_slots", False), ("multiply_linear_by_lr", True)])
def test_a_kernel_that_steps_otherwise_than_its_class_is_doubted(flag: str, value: bool, tmp_path: Path) -> None:
    """As those that `tf.contrib.opt.RegAdagradOptimizer` makes in `avoid_updating_slots`."""

    def set_to(to: bool) -> Callable[[dict[str, Any]], None]:
        def change(nodes: dict[str, Any]) -> None:
            for node in nodes.values():
                if "ApplyFtrl" in node.op:
                    attributes = [attribute for attribute in node.attr if attribute.key == flag] or [
                        node.attr.add(key=flag)
                    ]
                    attributes[0].value.b = to

        return change

    assert altered("ftrl", tmp_path / "usual", set_to(not value)).fidelity == "exact"
    state = altered("ftrl", tmp_path / "other", set_to(value))
    assert state.fidelity == "approximate"
    assert f"has {flag} = {value}" in " ".join(state.reasons)


def test_live_optimizers_of_another_rate_say_so_and_slots_take_that_of_the_present_step() -> None:
    source = SCOPED / "warm" / "source" / "model.ckpt"
    state = migrate.read(source)
    (slot,) = state.slots.values()
    for same in (True, False):
        live = {name: tf.Variable(np.zeros(array.shape, np.float32)) for name, array in slot.items()}
        config = {} if same else {"learning_rate": 0.01, "learning_rate_in_momentum": True}
        report = migrate.restore(source, optim.SGD.from_config({**state.hyperparameters, **config}), live)
        assert (report.fidelity == "exact") == same
    assert "Formula of 25 operations in the source and 0.01" in " ".join(report.reasons)
    assert "that of step 3 is used" in " ".join(report.reasons)
    assert "optim.SGD.from_config(migrate.read(source).hyperparameters)" in " ".join(report.reasons)


def test_a_live_schedule_of_ones_own_is_asked_for_its_rate() -> None:
    """By which the slots of a momentum are multiplied where Keras has the rate inside: it was refused."""
    import keras
    import tf_keras

    class Rate(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
        def __call__(self, step: Any) -> Any:
            return 0.02 * tf.cast(step, tf.float32)

        def get_config(self) -> dict[str, Any]:
            return {}

    class OldRate(tf_keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
        __call__, get_config = Rate.__call__, Rate.get_config

    source = SCOPED / "warm" / "source" / "model.ckpt"
    (slot,) = migrate.read(source).slots.values()
    name, stored = next(iter(slot.items()))
    lives = [keras.optimizers.SGD(Rate(), 0.9), tf_keras.optimizers.SGD(OldRate(), 0.9)]
    lives += [tf_keras.optimizers.legacy.SGD(OldRate(), 0.9)]
    for live in lives:
        variables = {
            n: tf.Variable(np.zeros(array.shape, np.float32), name=n.replace("/", "_")) for n, array in slot.items()
        }
        report = migrate.restore(source, live, variables)
        assert report.fidelity == "approximate"
        assert "in the source and the schedule" in " ".join(report.reasons)
        scaled = -0.06 * stored.load()
        assert any(
            np.allclose(np.asarray(v), scaled, rtol=1e-5) for v in _weights(live) if tuple(v.shape) == stored.shape
        )
        assert name in variables


def _weights(optimizer: Any) -> list[Any]:
    return list(optimizer.variables() if callable(optimizer.variables) else optimizer.variables)
