"""Optimizers that programs of TensorFlow 1.15 built of plain ops: the rule that they are, or none."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate.errors import MissingHintError
from migrate.graphs.identify import Identifier, Identity
from migrate.graphs.nodes import Nodes
from migrate.graphs.writers import alone_written
from optim.bytes import protos
from tests.helpers import next_steps
from tests.places import PLAIN_OPS
from tests.test_migrate.graphs.test_native_graphs import ANOTHER

FOLDER = PLAIN_OPS
KNOWN = {
    "adam": {"beta_1": 0.9, "beta_2": 0.99, "epsilon": 1e-6, "learning_rate": 0.05, "global_clipnorm": 1.5},
    "powers": {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-8, "learning_rate": 0.05},
    "first": {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-8, "learning_rate": 0.05},
    "momentum": {"momentum": 0.9, "learning_rate": 0.05, "learning_rate_in_momentum": True, "nesterov": False},
    "velocity": {"momentum": 0.7, "learning_rate_in_momentum": False, "nesterov": False},
    "nesterov": {"momentum": 0.7, "learning_rate_in_momentum": False, "nesterov": True},
    "rmsprop": {"rho": 0.9, "epsilon": 1e-3, "learning_rate": 0.01, "epsilon_inside": False},
    "inside": {"rho": 0.9, "epsilon": 1e-3, "learning_rate": 0.01, "epsilon_inside": True},
    "adagrad": {"epsilon": 1e-4, "learning_rate": 0.1, "epsilon_inside": False},
    "adadelta": {"rho": 0.9, "epsilon": 1e-5, "learning_rate": 1.0},
    "adamax": {"beta_1": 0.9, "beta_2": 0.99, "epsilon": 1e-7, "learning_rate": 0.02},
}
COUNTED = ("adam", "powers", "first", "velocity", "nesterov", "adamax")
TRAINED = ["net/w0", "net/w1", "net/w2"]


def _source(name: str) -> Path:
    return FOLDER / name / "source" / "model.ckpt"


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.quick(2)
def test_the_next_steps_of_a_known_rule_are_those_of_tensorflow(name: str, tmp_path: Path) -> None:
    report = migrate.migrate_checkpoint(_source(name), tmp_path / "new")
    assert report.fidelity == "exact", report.reasons
    state = migrate.read(_source(name))
    assert state.iterations == (3 if name in COUNTED else 0)
    for key, number in KNOWN[name].items():
        assert state.hyperparameters[key] == (number if isinstance(number, bool) else pytest.approx(number)), key
    assert {tuple(sorted(per)) for per in state.slots.values()} == {tuple(TRAINED)}
    oracle = np.load(FOLDER / name / "oracle.npz")
    assert next_steps.of_slots(tmp_path / "new", oracle, 6, TRAINED) < next_steps.NEAR
    checked = migrate.verify(_source(name), tmp_path / "new")
    assert checked.parity is not None
    assert checked.parity < 1


def test_a_step_that_no_rule_takes_is_named() -> None:
    with pytest.raises(MissingHintError, match="class_name=CLASS"):
        migrate.read(_source("ahead"))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("racing", "'mul_6' reads 'state/cache/net/w0' before or after 'Assign' changes it"),
        ("apart", "no op in the graph waits for all of .*: they may not run in one step"),
    ],
)
def test_ops_in_no_certain_order_are_said(name: str, reason: str) -> None:
    state = migrate.read(_source(name))
    assert state.fidelity == "approximate"
    assert [r for r in state.reasons if re.search(reason, r)]


def _altered(case: str, folder: Path, **more: Any) -> Path:
    """A copy with another node in its graph."""
    shutil.copytree(FOLDER / case / "source", folder / "source")
    meta = folder / "source" / "model.ckpt.meta"
    proto = protos.SaverMetaGraph.FromString(meta.read_bytes())
    proto.graph_def.node.add(**more)
    meta.write_bytes(proto.SerializeToString())
    return folder / "source" / "model.ckpt"


@pytest.mark.parametrize(
    "node",
    [
        {"op": "AssignSub", "input": ["net/w1", "gradients/mul_grad/Mul"]},
        {"op": "Assign", "input": ["net/w1", "clip_by_global_norm/clip_by_global_norm/_0"]},
        {"op": "Assign", "input": ["state/first/net/w0", "net/w0"]},
        {"op": "AssignAdd", "input": ["t", "Const"]},
    ],
)
@pytest.mark.quick(2)
def test_another_op_that_changes_what_a_step_does_is_no_exact_case(node: dict[str, Any], tmp_path: Path) -> None:
    source = _altered("adam", tmp_path, name="more", **node)
    with contextlib.suppress(MissingHintError):
        assert migrate.read(source).fidelity == "approximate"


def _graph(name: str) -> Any:
    return protos.SaverMetaGraph.FromString(_source(name).with_suffix(".ckpt.meta").read_bytes())


def _identity(proto: Any) -> list[Identity]:
    nodes = Nodes(proto.graph_def.node)
    return Identifier(nodes, {name: [write] for name, write in alone_written(nodes).items()}).of(TRAINED[0])


def _alterations(proto: Any) -> Iterator[tuple[str, Any]]:
    """The graph with one op of an update changed: its kind, the order of its inputs, one input, or a number."""
    nodes = Nodes(proto.graph_def.node)
    (identity,) = _identity(proto)
    written = alone_written(nodes)
    ends = [written[variable].op for variable in (TRAINED[0], *identity.slots.values())]
    rates = [
        setting.output for setting in identity.hyper.values() if setting.number is None
    ]  # `schedules` reads their ops
    behind = {name for end in ends for name in nodes.ancestors(end, [*identity.gradient, *rates], to_gradients=True)}
    for place, node in enumerate(proto.graph_def.node):
        if node.name not in behind - nodes.variables:
            continue
        for kind in ("op", "order", "input", "number"):
            other = type(proto).FromString(proto.SerializeToString())
            if _alter(other.graph_def.node[place], kind, TRAINED[0] + "/read"):
                yield f"{kind} of {node.name}", other


def _alter(node: Any, kind: str, variable: str) -> bool:
    data = [input_name for input_name in node.input if not input_name.startswith("^")]
    if kind == "op" and node.op in ANOTHER:
        node.op = ANOTHER[node.op]
    elif kind == "order" and node.op in ("Sub", "RealDiv", "Pow") and data[0] != data[1]:
        node.input[:2] = [data[1], data[0]]
    elif kind == "input" and node.op in ANOTHER and data[-1] != variable:
        node.input[len(data) - 1] = variable
    elif kind == "number" and node.op == "Const":
        tensor = next(attribute.value.tensor for attribute in node.attr if attribute.key == "value")
        if not tensor.float_val:
            return False
        tensor.float_val[0] = tensor.float_val[0] * 3 + 1
    else:
        return False
    return True


@pytest.mark.parametrize(
    "name",
    ["adam", "nesterov", *(pytest.param(n, marks=pytest.mark.breadth) for n in KNOWN if n not in ("adam", "nesterov"))],
)
@pytest.mark.breadth
def test_every_altered_op_of_an_update_is_noticed(name: str) -> None:
    proto = _graph(name)
    right, count = _identity(proto), 0
    assert len(right) == 1
    for what, other in _alterations(proto):
        assert _identity(other) != right, what
        count += 1
    assert count > 6


@pytest.mark.parametrize("late", [5, 2_000])
def test_a_number_that_a_later_step_chooses_is_no_constant(late: int, tmp_path: Path) -> None:
    """A momentum of 0.7 until some step, and of 0.5 from then on."""
    shutil.copytree(FOLDER / "velocity" / "source", tmp_path / "source")
    proto, nodes = _graph("velocity"), Nodes(_graph("velocity").graph_def.node)
    momenta = [n for n in nodes.by_name if nodes.constant(n) == float(np.float32(0.7))]
    assert len(momenta) == 3
    for node in proto.graph_def.node:
        node.input[:] = ["chosen" if input_name in momenta else input_name for input_name in node.input]
    for name, dtype, field, number in (("late", 9, "int64_val", late), ("later", 1, "float_val", 0.5)):
        tensor = proto.graph_def.node.add(name=name, op="Const").attr.add(key="value").value.tensor
        tensor.dtype = dtype
        getattr(tensor, field).append(number)
    proto.graph_def.node.add(name="is_early", op="Less", input=["global_step/read", "late"])
    proto.graph_def.node.add(name="chosen", op="Select", input=["is_early", momenta[0], "later"])
    (tmp_path / "source" / "model.ckpt.meta").write_bytes(proto.SerializeToString())
    with pytest.raises(MissingHintError):
        migrate.read(tmp_path / "source" / "model.ckpt")
