"""`optim.Groups`: each variable moves as its own optimizer alone would move it, and what acts on all acts once."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim import schedules
from optim.errors import CheckpointError, HyperparameterError, UnknownVariableError, UnsupportedError
from optim.native import direct
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.support import executor_for, put_gradients, stepper, variable

SHAPES: Mapping[str, tuple[int, ...]] = {
    "embed/table": (8, 4),
    "block/kernel": (4, 6),
    "block/bias": (6,),
    "norm/scale": (4,),
    "out/kernel": (6, 4),
}
LAYOUTS = {"embed/table": ["model", "unsharded"], "block/kernel": ["batch", "model"], "block/bias": ["model"]}
MEMBERS: Sequence[tuple[str | None, Callable[[], Any], Sequence[str]]] = (
    ("embed", lambda: optim.Adagrad(0.1, learning_rate_multipliers={"table": 0.5}), ["embed/table"]),
    ("bias|norm", lambda: optim.Nadam(0.01), ["block/bias", "norm/scale"]),
    (None, lambda: optim.AdamW(0.02, weight_decay=0.1), ["block/kernel", "out/kernel"]),
)


def groups(members: Any = MEMBERS, **options: Any) -> optim.Groups:
    return optim.Groups([(pattern, make()) for pattern, make, _ in members], **options)


def variables(mesh: Any = None, dtype: Any = tf.float32) -> dict[str, Any]:
    draws = np.random.default_rng(0)
    made = {}
    for name, shape in SHAPES.items():
        specs = LAYOUTS.get(name, ["unsharded"] * len(shape))
        layout = (
            None if mesh is None else dtensor.Layout([s if s in mesh.dim_names else "unsharded" for s in specs], mesh)
        )
        made[name] = variable(draws.normal(size=shape), layout, name, dtype)
    return made


def gradients(call: int, names: Sequence[str] = tuple(SHAPES)) -> dict[str, np.ndarray]:
    draws = np.random.default_rng(call + 1)
    every = {name: draws.normal(size=shape) for name, shape in SHAPES.items()}
    return {name: every[name] for name in names}


def pairs(call: int, of: Mapping[str, Any], names: Sequence[str] = tuple(SHAPES)) -> list[tuple[Any, Any]]:
    return put_gradients(gradients(call, names), of)


def train(
    optimizer: Any, of: Mapping[str, Any], names: Sequence[str] = tuple(SHAPES), mode: str = "", steps: int = 3
) -> None:
    step = stepper(optimizer, mode)
    start = int(optimizer.iterations.numpy())
    for call in range(start, start + steps):
        step(pairs(call, of, names))


def apart(members: Any = MEMBERS, mesh: Any = None, mode: str = "", steps: int = 3, **options: Any) -> dict[str, Any]:
    """What each member alone makes of its variables."""
    of = variables(mesh)
    for _, make, names in members:
        made = type(make()).from_config({**make().get_config(), **options})
        train(made, of, names, mode, steps)
    return of


def assert_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    for name in one:
        np.testing.assert_array_equal(value_of(one[name]), value_of(other[name]), name)


@pytest.mark.parametrize("mode", ["native", "local", "portable", "native_function", "function"])
def test_each_variable_moves_as_its_own_optimizer_moves_it(mode: str) -> None:
    of = variables()
    train(groups(executor=executor_for(mode)), of, mode=mode)
    assert_same(of, apart(mode=mode, executor=executor_for(mode)))


@pytest.mark.parametrize(
    "options",
    [
        {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
        {"gradient_accumulation_steps": 2},
        {"loss_scale": 4.0},
        {"clipnorm": 0.5, "clipvalue": 0.4},
        {"jit_compile": True},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.quick(2)
def test_options_of_the_whole_act_as_they_do_on_each(options: Any) -> None:
    of = variables()
    train(groups(**options), of, steps=4)
    assert_same(of, apart(steps=4, **options))


@pytest.mark.parametrize("mode", ["native", "portable", "native_function"])
def test_one_norm_clips_the_gradients_of_all_groups(mode: str) -> None:
    """Against the same gradients scaled by numpy."""
    rate, limit = 0.1, 0.7
    of = variables(dtype=tf.float64)
    start = {name: value_of(v) for name, v in of.items()}
    optimizer = optim.Groups([("kernel", optim.SGD(rate)), (None, optim.SGD(2 * rate))], global_clipnorm=limit)
    stepper(optimizer, mode)(pairs(0, of))
    given = gradients(0)
    norm = np.sqrt(sum(np.sum(g**2) for g in given.values()))
    for name, gradient in given.items():
        factor = rate if "kernel" in name else 2 * rate
        np.testing.assert_allclose(value_of(of[name]), start[name] - factor * gradient * limit / norm, rtol=1e-14)


@pytest.mark.parametrize("mode", ["native", "native_function"])
def test_a_matrix_rule_and_an_elementwise_rule_share_a_step(mode: str) -> None:
    members = (
        ("kernel", lambda: optim.Muon(0.02), ["block/kernel", "out/kernel"]),
        (None, lambda: optim.AdamW(0.01), ["embed/table", "block/bias", "norm/scale"]),
    )
    of = variables()
    optimizer = groups(members)
    train(optimizer, of, mode=mode)
    assert_same(of, apart(members, mode=mode))
    kernels = optimizer.executor_report().kernels
    assert kernels["norm/scale"] == "native"


@pytest.mark.parametrize("mode", ["native"])
def test_the_kernel_is_called_once_for_each_group(mode: str, monkeypatch: Any) -> None:
    of, optimizer = variables(), groups()
    train(optimizer, of, steps=1)
    calls = []
    original = direct.update
    monkeypatch.setattr(direct, "update", lambda group, *rest: calls.append(group) or original(group, *rest))
    train(optimizer, of, steps=1)
    assert len(set(calls)) == len(MEMBERS)


def test_rows_are_left_alone_where_a_member_asks_for_it() -> None:
    of = variables()
    optimizer = optim.Groups([("embed", optim.Adam(0.1, lazy_rows=["table"])), (None, optim.Adam(0.1))])
    before = value_of(of["embed/table"])
    for _ in range(2):
        slices = tf.IndexedSlices(tf.ones([2, 4]), tf.constant([1, 3]), tf.constant([8, 4]))
        rest = [(tf.ones(SHAPES[name]), of[name]) for name in SHAPES if name != "embed/table"]
        optimizer.apply_gradients([(slices, of["embed/table"]), *rest])
    moved = np.any(value_of(of["embed/table"]) != before, axis=1)
    assert moved.tolist() == [row in (1, 3) for row in range(8)]


def test_each_group_has_its_own_learning_rate() -> None:
    schedule = schedules.ExponentialDecay(0.5, 1, 0.5)
    of = variables()
    start = {name: value_of(v) for name, v in of.items()}
    optimizer = optim.Groups(
        [("kernel", optim.SGD(schedule)), ("bias", optim.SGD(lambda: 0.25)), (None, optim.SGD(0.125))]
    )
    ones = [(tf.ones(SHAPES[name]), of[name]) for name in SHAPES]
    for _ in range(2):
        optimizer.apply_gradients(ones)
    moved = {name: float((start[name] - value_of(v)).max()) for name, v in of.items()}
    assert moved["block/kernel"] == pytest.approx(0.75, rel=1e-5)
    assert moved["block/bias"] == pytest.approx(0.5, rel=1e-5)
    assert moved["norm/scale"] == pytest.approx(0.25, rel=1e-5)
    with pytest.raises(TypeError, match=r"members\[i\].learning_rate"):
        optimizer.learning_rate = 0.1
    optimizer.members[2].learning_rate = 0.0
    optimizer.apply_gradients(ones)
    assert float((start["norm/scale"] - value_of(of["norm/scale"])).max()) == pytest.approx(0.25, rel=1e-5)


@pytest.mark.parametrize("way", ["set", "assign", "function"])
def test_setting_the_learning_rate_moves_that_of_all_groups(way: str) -> None:
    optimizer = optim.Groups([("a", optim.SGD(0.4)), ("b", optim.Adam(0.2)), (None, optim.SGD(0.1))])
    if way == "set":
        optimizer.learning_rate = 0.05
    elif way == "assign":
        optimizer.learning_rate.assign(0.05)
    else:
        tf.function(lambda: optimizer.learning_rate.assign(0.05))()
    assert [float(m.learning_rate) for m in optimizer.members] == pytest.approx([0.2, 0.1, 0.05], rel=1e-6)
    optimizer.learning_rate = 0.0
    with pytest.raises(HyperparameterError, match="learning_rate is 0"):
        optimizer.learning_rate = 0.1


def test_hyperparameters_of_members_act_from_the_next_step_on() -> None:
    of, optimizer = variables(), optim.Groups([("kernel", optim.SGD(0.1)), (None, optim.SGD(0.1))])
    step = stepper(optimizer, "")
    function = tf.function(lambda gs: optimizer.apply_gradients(list(zip(gs, of.values(), strict=True))))
    ones = [tf.ones(shape) for shape in SHAPES.values()]
    for take in (lambda: step(list(zip(ones, of.values(), strict=True))), lambda: function(ones)):
        optimizer.members[0].weight_decay = None
        take()
        optimizer.members[0].weight_decay = 10.0  # p · (1 − 10 · 0.1), then the step
        take()
        np.testing.assert_allclose(value_of(of["block/kernel"]), np.full(SHAPES["block/kernel"], -0.1), rtol=1e-6)
        assert not np.allclose(value_of(of["norm/scale"]), -0.1)


def test_a_config_holds_all_groups() -> None:
    optimizer = groups(clipnorm=1.0, use_ema=True, name="mine")
    config = optimizer.get_config()
    again = optim.Groups.from_config(json.loads(json.dumps(config)))
    assert again.get_config() == config
    assert [type(m) for m in again.members] == [optim.Adagrad, optim.Nadam, optim.AdamW]
    assert again.patterns == ("embed", "bias|norm", None)
    of, other = variables(), variables()
    train(optimizer, of)
    train(again, other)
    assert_same(of, other)


class Signum(optim.SGD):
    """A class that only the program knows."""


def test_a_class_of_the_program_is_named_by_custom_objects(tmp_path: Path) -> None:
    optimizer = optim.Groups([(None, Signum(0.1))])
    with pytest.raises(HyperparameterError, match="custom_objects"):
        optim.Groups.from_config(optimizer.get_config())
    made = optim.Groups.from_config(optimizer.get_config(), {"Signum": Signum})
    assert type(made.members[0]) is Signum
    of = variables()
    train(optimizer, of, steps=1)
    optim.save_checkpoint(tmp_path / "c", optimizer, of)
    assert type(optim.load_checkpoint(tmp_path / "c", of, custom_objects={"Signum": Signum}).members[0]) is Signum


def test_the_optimizers_given_stay_as_they_are() -> None:
    given = optim.AdamW(0.1, weight_decay=0.2)
    before = given.get_config()
    optimizer = optim.Groups([(None, given)])
    of = variables()
    train(optimizer, of)
    optimizer.learning_rate = 0.5
    assert given.get_config() == before
    assert not given.built
    assert optimizer.members[0] is not given


def test_slots_are_those_of_the_groups() -> None:
    of, optimizer = variables(), groups()
    train(optimizer, of)
    assert optimizer.slot_names == ["accumulator", "m", "v"]
    assert optimizer.get_slot(of["embed/table"], "accumulator").shape == SHAPES["embed/table"]
    with pytest.raises(UnknownVariableError, match="has no slot 'm'"):
        optimizer.get_slot(of["embed/table"], "m")
    member = optimizer.member_of(of["out/kernel"])
    assert member is optimizer.members[2]
    size = 4 * (4 * 6 + 6 * 4)
    assert sum(member.memory_report().slot_bytes.values()) == 2 * size
    assert sum(member.memory_report().variables.values()) == size
    total = sum(int(np.prod(shape)) for shape in SHAPES.values())
    assert sum(optimizer.memory_report().slot_bytes.values()) == 4 * (32 + 2 * (total - 32))
    names = {v.name for v in optimizer.variables}
    assert len(names) == len(optimizer.variables) == 1 + 3 + 1 + 1 + 2 * 4


def test_a_copy_continues_as_the_original() -> None:
    of, optimizer = variables(), groups(use_ema=True)
    train(optimizer, of)
    optimizer.learning_rate = 0.005
    both = copy.deepcopy({"optimizer": optimizer, "of": of})
    train(optimizer, of)
    train(both["optimizer"], both["of"])
    assert_same(of, both["of"])


@pytest.mark.parametrize("restore", ["dtopt", "tensorflow"])
def test_a_checkpoint_continues_where_it_was_saved(restore: str, tmp_path: Path) -> None:
    of, optimizer = variables(), groups(use_ema=True, gradient_accumulation_steps=2)
    train(optimizer, of, steps=3)
    optimizer.members[0].learning_rate = 0.07
    again = variables()
    if restore == "dtopt":
        optim.save_checkpoint(tmp_path / "c", optimizer, of)
        resumed = optim.load_checkpoint(tmp_path / "c", again)
    else:
        path = tf.train.Checkpoint(optimizer=optimizer, variables=of).write(str(tmp_path / "c"))
        resumed = groups(use_ema=True, gradient_accumulation_steps=2)
        tf.train.Checkpoint(optimizer=resumed, variables=again).restore(path)
    for call in range(3, 8):
        optimizer.apply_gradients(pairs(call, of))
        resumed.apply_gradients(pairs(call, again))
    assert_same(of, again)
    info_rate = [float(m.learning_rate) for m in resumed.members]
    assert info_rate == [float(m.learning_rate) for m in optimizer.members]


class Halving(schedules.LearningRateSchedule):
    def __call__(self, step: Any) -> Any:
        return 0.5 ** tf.cast(step, tf.float64)

    def get_config(self) -> dict[str, Any]:
        return {}


def test_rates_that_a_checkpoint_cannot_hold_are_refused(tmp_path: Path) -> None:
    of = variables()
    for number, member in enumerate((optim.SGD(0.1), optim.SGD(Halving()))):
        optimizer = optim.Groups([("kernel", optim.SGD(0.1)), (None, member)])
        optimizer.build(list(of.values()))
        optim.save_checkpoint(tmp_path / str(number), optimizer, of)
    with pytest.raises(CheckpointError, match=r"members\[i\].learning_rate"):
        optim.load_checkpoint(tmp_path / "0", of, learning_rate=0.2)
    with pytest.raises(CheckpointError, match=r"group 1 .*Halving"):
        optim.load_checkpoint(tmp_path / "1", of)
    path = tf.train.latest_checkpoint(str(tmp_path / "1"))
    tf.train.Checkpoint(optimizer=optimizer).restore(path).assert_existing_objects_matched()


def test_a_member_may_be_called_for_one_variable() -> None:
    of, optimizer = variables(), groups()
    optimizer.build(list(of.values()))
    alone = variables()
    single = optim.AdamW(0.02, weight_decay=0.1)
    single.build([alone["out/kernel"]])
    gradient = tf.ones(SHAPES["out/kernel"])
    optimizer.update_step(gradient, of["out/kernel"])
    single.update_step(gradient, alone["out/kernel"])
    assert_same({"out": of["out/kernel"]}, {"out": alone["out/kernel"]})


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: optim.Groups([]), HyperparameterError, "is empty"),
        (lambda: optim.Groups({"a": optim.SGD()}), HyperparameterError, "pairs"),
        (lambda: optim.Groups([("a",)]), HyperparameterError, "pairs"),
        (lambda: optim.Groups([(1, optim.SGD())]), HyperparameterError, "regular expression or None"),
        (lambda: optim.Groups([("(", optim.SGD())]), HyperparameterError, "is not a regular expression"),
        (lambda: optim.Groups([("a", optim.SGD()), ("a", optim.SGD())]), HyperparameterError, "twice"),
        (lambda: optim.Groups([(None, optim.SGD()), ("a", optim.SGD())]), HyperparameterError, "to the end"),
        (lambda: optim.Groups([(None, "sgd")]), UnsupportedError, "str is not an optimizer"),
        (lambda: optim.Groups([(None, groups())]), UnsupportedError, "not an optimizer of one algorithm"),
        (lambda: optim.Groups([(None, optim.legacy.v2.SGD())]), UnsupportedError, "not an optimizer"),
        (lambda: optim.Groups([(None, optim.SGD(clipnorm=1.0))]), HyperparameterError, r"\[...\], clipnorm=1.0"),
        (lambda: optim.Groups([(None, optim.SGD(use_ema=True))]), HyperparameterError, "use_ema=True"),
        (lambda: optim.Groups([(None, optim.SGD(loss_scale_factor=2.0))]), HyperparameterError, "loss_scale=2.0"),
        (lambda: optim.Groups([(None, optim.SGD())], weight_decay=0.1), HyperparameterError, "weight_decay belongs"),
        (lambda: optim.Groups([(None, optim.SGD())], learning_rate=0.1), HyperparameterError, "learning_rate belongs"),
        (lambda: optim.Groups([(None, optim.SGD())], clip=0.1), TypeError, "unexpected keyword"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_when_it_is_made(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_a_member_with_steps_or_a_step_of_its_own_is_refused() -> None:
    class Own(optim.Optimizer):
        def update_step(self, gradient: Any, variable: Any) -> None:
            variable.assign_sub(gradient)

    trained = optim.SGD()
    trained.apply_gradients([(tf.ones(2), tf.Variable(tf.ones(2)))])
    with pytest.raises(HyperparameterError, match="has taken steps"):
        optim.Groups([(None, trained)])
    with pytest.raises(UnsupportedError, match="its own update_step"):
        optim.Groups([(None, Own(learning_rate=0.1))])


def test_variables_and_patterns_without_each_other_are_refused() -> None:
    of = variables()
    with pytest.raises(HyperparameterError, match="no pattern matches 'block/bias', 'norm/scale'"):
        optim.Groups([("kernel", optim.SGD()), ("embed", optim.SGD())]).build(list(of.values()))
    with pytest.raises(HyperparameterError, match="no variable is left for 'kernal'"):
        optim.Groups([("kernal", optim.SGD()), (None, optim.SGD())]).build(list(of.values()))
    with pytest.raises(HyperparameterError, match="no variable is left for 'out/kernel'"):
        optim.Groups([("kernel", optim.SGD()), ("out/kernel", optim.SGD()), (None, optim.SGD())]).build(
            list(of.values())
        )
    optimizer = optim.Groups([("kernel|bias|norm", optim.SGD()), ("embed", optim.SGD())])
    optimizer.build(list(of.values()))
    with pytest.raises(HyperparameterError, match="no pattern matches 'late'"):
        optimizer.build([tf.Variable(1.0, name="late")])
    train(optimizer, of)  # as before


def test_what_belongs_to_the_whole_is_refused_on_a_member_and_the_other_way_round() -> None:
    optimizer = groups()
    for act in (
        lambda: optimizer.members[0].apply_gradients([(tf.ones(2), tf.Variable(tf.ones(2)))]),
        lambda: optimizer.members[0].build([tf.Variable(1.0)]),
        lambda: setattr(optimizer.members[0], "clipnorm", 1.0),
        lambda: setattr(optimizer, "weight_decay", 1.0),
        lambda: setattr(optimizer, "learning_rate", schedules.ExponentialDecay(0.5, 1, 0.5)),
    ):
        with pytest.raises(UnsupportedError):
            act()
    with pytest.raises(AttributeError, match=r"members\[i\].weight_decay"):
        _ = optimizer.weight_decay


MESH_MEMBERS: Any = (
    *MEMBERS[:2],
    ("out", lambda: optim.Muon(0.02), ["out/kernel"]),
    (None, lambda: optim.AdamW(0.02, weight_decay=0.1), ["block/kernel"]),
)


@pytest.mark.parametrize("mode", ["native", "native_function"])
@pytest.mark.parametrize("placement", ["like_variable", "zero1"])
@pytest.mark.quick(1)
def test_groups_step_on_a_mesh_as_on_one_device(mode: str, placement: str, mesh_2x2: Any) -> None:
    of, alone = variables(mesh_2x2), variables()
    train(groups(slot_placement=placement, global_clipnorm=1.0), of, mode=mode)
    train(groups(global_clipnorm=1.0), alone, mode=mode)
    for name in of:
        np.testing.assert_allclose(value_of(of[name]), value_of(alone[name]), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mode", ["native"])
def test_whole_matrices_and_shards_share_a_step_on_a_mesh(mode: str, mesh_2x2: Any) -> None:
    of = variables(mesh_2x2)
    optimizer = groups(MESH_MEMBERS)
    train(optimizer, of)
    alone = apart(MESH_MEMBERS, mesh_2x2)
    for name in of:
        np.testing.assert_allclose(value_of(of[name]), value_of(alone[name]), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["native"])
def test_training_resumes_on_another_mesh(mode: str, mesh_2x2: Any, mesh_2: Any, tmp_path: Path) -> None:
    of = variables(mesh_2x2)
    optimizer = groups(slot_placement="zero1", use_ema=True)
    train(optimizer, of)
    optim.save_checkpoint(tmp_path / "c", optimizer, of)
    train(optimizer, of)
    for mesh in (mesh_2, None):
        other = variables(mesh)
        resumed = optim.load_checkpoint(tmp_path / "c", other, mesh=mesh)
        train(resumed, other)
        assert_same(of, other)


def test_slots_in_fewer_bits_are_those_of_the_groups_that_have_them() -> None:
    kernel, bias = tf.Variable(tf.ones([64, 64]), name="kernel"), tf.Variable(tf.ones([64]), name="bias")
    optimizer = optim.Groups([("bias", optim.SGD(0.1)), (None, optim.AdamW())], slot_dtype="bfloat16")
    optimizer.apply_gradients([(tf.ones([64, 64]), kernel), (tf.ones([64]), bias)])
    assert optimizer.get_slot(kernel, "m").dtype == tf.bfloat16
    with pytest.raises(HyperparameterError, match="would have no effect"):
        optim.Groups([("bias", optim.SGD(0.1)), (None, optim.SGD(0.2))], slot_dtype="bfloat16")
