"""Savers' checkpoints of programs that step in a `tf.cond`, on several devices, or with what workers gave."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import migrate
from optim.bytes import protos
from optim.errors import HyperparameterError
from tests.test_migrate.graphs.test_scopes import SCOPED, goes_on, source


@pytest.mark.parametrize(
    "name",
    [
        "guarded",
        "scaled",
        "scaled_clipped",
        "limited",
        "limited_below",
        "every",
        "mirrored",
        "mirrored_old",
        "synced",
        "collective",
        "workers",
    ],
)
def test_steps_on_conditions_and_devices_go_on(name: str, tmp_path: Path) -> None:
    state = migrate.read(source(name))
    assert (state.fidelity, state.iterations) == ("exact", 3), state.reasons
    goes_on(name, tmp_path)


def test_that_steps_are_taken_at_some_calls_only_is_said() -> None:
    (warning,) = migrate.read(source("every")).warnings
    assert "updates variables only at calls chosen by" in warning
    assert not migrate.read(source("guarded")).warnings


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("calls", "at other steps than variables are updated"),
        (
            "gathered",
            "'sum0' holds gradients, which are not migrated: the next step uses them unless the program clears them",
        ),
        ("smoothed", "gradients pass through 'mean0' before they reach the optimizer"),
        (
            "rounded",
            "'DistributedMomentumOptimizer_Allreduce/cond/Cast_1' rounds gradients before they reach the optimizer",
        ),
    ],
)
def test_what_depends_on_more_than_the_last_gradients_is_never_exact(name: str, reason: str) -> None:
    state = migrate.read(source(name))
    assert state.fidelity == "approximate"
    assert reason in " ".join(state.reasons)


def test_a_program_that_clears_what_it_gathered_loses_nothing() -> None:
    assert migrate.read(source("gathered"), overrides={"gathered": None}).fidelity == "exact"
    with pytest.raises(HyperparameterError, match="gathered is 3; only --set gathered=none is possible"):
        migrate.read(source("gathered"), overrides={"gathered": 3})


@pytest.mark.parametrize("hint", [{}, {"overrides": {"untrained": ["net/w1"]}}, {"variables": ["net/w0", "net/w2"]}])
def test_slots_that_are_lost_are_not_those_of_what_was_never_trained(hint: dict[str, Any]) -> None:
    """The graph updates the variable, whatever a person says of it."""
    if "variables" in hint:
        hint = {"variables": [{"name": name, "shape": [3, 2]} for name in hint["variables"]]}
    state = migrate.read(source("lost"), **hint)
    assert state.fidelity == "approximate"
    assert "net/w1: trained in the graph, but without the slots that others have" in " ".join(state.reasons)


def _node(nodes: Any, name: str) -> Any:
    return next(node for node in nodes if node.name == name)


def _other_test(nodes: Any) -> None:
    """The condition asks whether what is fed is finite."""
    test = next(node for node in nodes if node.op == "IsFinite" and node.input[0] == "global_norm/global_norm")
    test.input[0] = "Placeholder"


def _other_side(nodes: Any) -> None:
    """Variables are updated where the norm is not finite."""
    for node in nodes:
        if node.op in ("Switch", "RefSwitch"):
            continue
        inputs = [str(input_name) for input_name in node.input]
        del node.input[:]
        for input_name in inputs:
            name, _, place = input_name.partition(":")
            is_switch = any(n.name == name and n.op in ("Switch", "RefSwitch") for n in nodes)
            node.input.append({"": f"{name}:1", "1": name}[place] if is_switch and input_name[0] != "^" else input_name)


def _counts_before(nodes: Any) -> None:
    """The step is raised at each call."""
    counts = _node(nodes, "cond/Momentum")
    counts.input[0] = "global_step"
    _node(nodes, "cond/Momentum/value").ClearField("input")


def _never_runs(nodes: Any) -> None:
    """What `apply_gradients` returns no longer waits for one of its kernels."""
    update = _node(nodes, "cond/Momentum/update")
    del update.input[next(i for i, input_name in enumerate(update.input) if "net/w1" in input_name)]


def _without(nodes: Any, name: str, before: str) -> None:
    node = _node(nodes, name)
    del node.input[list(node.input).index(f"^{before}")]


def _comes_out_early(nodes: Any) -> None:
    _without(nodes, "cond/control_dependency", "cond/Momentum")


def _no_kernel(nodes: Any) -> None:
    kernel = _node(nodes, "cond/Momentum/update_net/w1/ApplyMomentum")
    kernel.op = "NoOp"
    del kernel.input[:]


def _slot_of_another_condition(nodes: Any) -> None:
    """One slot is let through where the loss scale doubles."""
    kernel = next(node for node in nodes if node.op == "ApplyAdam")
    _node(nodes, str(kernel.input[2]).partition(":")[0]).input[1] = "cond_1/cond/pred_id"


def _gathered_for_ever(nodes: Any) -> None:
    zero = next(node for node in nodes if node.op == "Assign" and node.input[1].startswith("cond/zeros_like"))
    zero.op = "NoOp"
    del zero.input[:]


def _gathered_late(nodes: Any) -> None:
    """Calls are counted, and with that the step taken, before all gradients are there."""
    for node in nodes:
        late = [input_name for input_name in node.input if input_name.startswith("^AssignAdd")]
        if late and node.op in ("Const", "Identity", "AssignAdd") and not node.name.startswith(("cond", "Momentum")):
            node.input.remove(late[0])


def _mirror_without_momentum(nodes: Any) -> None:
    kernel = next(node for node in nodes if node.op == "ResourceApplyAdam" and "replica_1" in node.name)
    kernel.input[1], kernel.input[2] = str(kernel.input[2]), str(kernel.input[1])


def _mirror_of_other_gradient(nodes: Any) -> None:
    of = {node.name: node for node in nodes if node.op == "ResourceApplyAdam" and "replica_1" in node.name}
    first, *_, last = of.values()
    first.input[9], last.input[9] = str(last.input[9]), str(first.input[9])


def _mirror_that_stays(nodes: Any) -> None:
    kernel = next(node for node in nodes if node.op == "ResourceApplyAdam" and "replica_1" in node.name)
    kernel.op = "NoOp"
    del kernel.input[:]


def _adasum(nodes: Any) -> None:
    reduced = next(node for node in nodes if node.op == "HorovodAllreduce")
    next(attribute for attribute in reduced.attr if attribute.key == "reduce_op").value.i = 2


def _other_factor(nodes: Any) -> None:
    reduced = next(node for node in nodes if node.op == "HorovodAllreduce")
    next(attribute for attribute in reduced.attr if attribute.key == "postscale_factor").value.f = 0.5


def _other_broadcast(nodes: Any) -> None:
    sent = {node.input[0]: node for node in nodes if node.op == "HorovodBroadcast"}
    sent["net/w0/read"].input[0] = "net/w2/read"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("guarded", _other_test),
        ("guarded", _other_side),
        ("every", _counts_before),
        ("guarded", _never_runs),
        ("guarded", _comes_out_early),
        ("guarded", _no_kernel),
        ("scaled", _slot_of_another_condition),
        ("every", _gathered_for_ever),
        ("every", _gathered_late),
        ("mirrored", _mirror_without_momentum),
        ("mirrored", _mirror_of_other_gradient),
        ("mirrored", _mirror_that_stays),
        ("workers", _adasum),
        ("workers", _other_factor),
        ("workers", _other_broadcast),
    ],
)
def test_an_altered_condition_or_device_is_never_exact(
    name: str, change: Callable[[Any], None], tmp_path: Path
) -> None:
    shutil.copytree(SCOPED / name / "source", tmp_path / "copy")
    meta = tmp_path / "copy" / "model.ckpt.meta"
    proto = protos.SaverMetaGraph.FromString(meta.read_bytes())
    change(proto.graph_def.node)
    meta.write_bytes(proto.SerializeToString())
    config = {"learning_rate": 0.05}
    hint = {"class_name": "AdamOptimizer" if name == "mirrored" else "MomentumOptimizer", "config": config}
    state = migrate.read(tmp_path / "copy" / "model.ckpt", optimizer_config=hint if name == "mirrored" else None)
    assert state.fidelity == "approximate", state.reasons


def test_a_loss_scale_that_is_trainable_by_mistake_decides_no_side(tmp_path: Path) -> None:
    """As NVlabs/stylegan has it, `tf.Variable(64.0)`, which falls where gradients are not finite."""
    shutil.copytree(SCOPED / "guarded" / "source", tmp_path / "copy")
    meta = tmp_path / "copy" / "model.ckpt.meta"
    proto = protos.SaverMetaGraph.FromString(meta.read_bytes())
    guard = next(node for node in proto.graph_def.node if node.op == "RefSwitch").input[1]
    half = proto.graph_def.node.add(name="half", op="Const").attr.add(key="value").value.tensor
    half.dtype = 1
    half.float_val.append(0.5)
    for name, op, inputs in (
        ("scale", "VariableV2", []),
        ("cond/scale", "RefSwitch", ["scale", guard]),
        ("cond/AssignSub", "AssignSub", ["cond/scale", "half"]),
    ):
        proto.graph_def.node.add(name=name, op=op, input=inputs)
    trained = next(
        collection for collection in proto.collection_def if collection.key == "trainable_variables"
    ).value.bytes_list
    trained.value.append(protos.Variable(variable_name="scale:0").SerializeToString())
    meta.write_bytes(proto.SerializeToString())
    assert migrate.read(tmp_path / "copy" / "model.ckpt").fidelity == "exact"
