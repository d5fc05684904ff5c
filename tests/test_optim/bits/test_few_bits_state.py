"""State in few bits on meshes and in checkpoints, with tables of rows, what it occupies, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import optim
from optim.errors import HyperparameterError, MismatchError, UnsupportedError
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.bits.test_few_bits import assert_same, bits_of, gradients_of, train
from tests.test_optim.cases import marked
from tests.test_optim.support import put, stepper, variable

ON_MESH: dict[str, dict[str, Any]] = {
    "slots": {"slot_dtype": "bfloat16", "rounding_seed": 4},
    "zero1": {"slot_dtype": "bfloat16", "slot_placement": "zero1"},
    "variables": {"stochastic_rounding": True, "dtype": tf.bfloat16},
    "codes": {"slot_dtype": "int8"},
    "zero1 codes": {"slot_dtype": "int8", "slot_placement": "zero1"},
}


@pytest.mark.parametrize(
    ("name", "mode"),
    marked(
        [(name, mode) for name in ON_MESH for mode in ("portable", "function", "native", "native_function")],
        lambda name, mode: (
            (name, mode)
            in (("slots", "function"), ("zero1", "native"), ("variables", "native"), ("zero1 codes", "native_function"))
        ),
    ),
)
@pytest.mark.quick(1)
def test_a_mesh_gives_the_bits_of_one_device(name: str, mode: str, mesh_2x2: Any) -> None:
    from tensorflow.experimental import dtensor

    options = dict(ON_MESH[name])
    dtype = options.pop("dtype", tf.float32)
    sharded = dtensor.Layout(["batch", "model"], mesh_2x2)
    places = {
        "kernel": dtensor.Layout(["model", "unsharded"], mesh_2x2) if "zero1" in name else sharded,
        "bias": dtensor.Layout.replicated(mesh_2x2, 1),
        "table": dtensor.Layout(["unsharded", "unsharded", "model"], mesh_2x2),
    }
    optimizer = optim.Adam(0.01, mesh=mesh_2x2, **options)
    variables = train(optimizer, mode, dtype, places=places)
    options.pop("slot_placement", None)
    plain = optim.Adam(0.01, **options)
    assert_same(bits_of(optimizer, variables), bits_of(plain, train(plain, "portable", dtype)))


@pytest.mark.breadth
def test_codes_of_a_mesh_load_without_one(mesh_2x2: Any, tmp_path: Path) -> None:
    from tensorflow.experimental import dtensor

    places = {
        "kernel": dtensor.Layout(["model", "unsharded"], mesh_2x2),
        "bias": dtensor.Layout.replicated(mesh_2x2, 1),
        "table": dtensor.Layout(["unsharded", "unsharded", "model"], mesh_2x2),
    }
    optimizer = optim.Adam(0.01, mesh=mesh_2x2, slot_dtype="int8", slot_placement="zero1")
    variables = train(optimizer, "native_function", steps=2, places=places)
    optim.save_checkpoint(tmp_path / "saved", optimizer, variables)
    new = _start()
    loaded = optim.load_checkpoint(tmp_path / "saved", new)
    assert_same(bits_of(loaded, new), bits_of(optimizer, variables))


def test_replicas_on_a_mesh_stay_alike(mesh_2x2: Any) -> None:
    from tensorflow.experimental import dtensor

    layout = dtensor.Layout.replicated(mesh_2x2, 2)
    weights = variable(np.ones((8, 4)), layout, "weights", tf.bfloat16)
    optimizer = optim.SGD(0.001, stochastic_rounding=True)
    for _ in range(3):
        optimizer.apply_gradients([(put(np.ones((8, 4)), layout, tf.bfloat16), weights)])
    parts = [part.numpy() for part in dtensor.unpack(weights.read_value())]
    assert all(np.array_equal(part, parts[0]) for part in parts)
    assert len(set(parts[0].reshape(-1).tolist())) > 1


# Tables of rows.


@pytest.mark.parametrize(
    ("make", "mode"),
    [  # TensorFlow divides by a root in other ways in functions, by which Adagrad's steps differ without these options
        *((optim.Adam, mode) for mode in ("function", "native", "native_function")),
        *((optim.Adagrad, mode) for mode in ("native", "native_function")),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
@pytest.mark.parametrize(
    "options",
    [
        {"slot_dtype": "bfloat16"},
        {"slot_dtype": "int8"},
        {"slot_dtype": "bfloat16", "lazy_rows": ["table"]},
        {"stochastic_rounding": True, "dtype": tf.bfloat16},
        {"slot_dtype": "bfloat16", "repeated_rows": ["square"]},
        {"slot_dtype": "int8", "repeated_rows": ["square"]},
    ],
    ids=str,
)
@pytest.mark.quick(4)
def test_rows_give_the_same_bits(make: Any, options: dict[str, Any], mode: str) -> None:
    if make is optim.Adagrad and options == {"slot_dtype": "int8", "repeated_rows": ["square"]}:
        make = optim.Adam  # such tables are updated by ops in a function, too
    options = dict(options)
    dtype = options.pop("dtype", tf.float32)

    def run(mode: str) -> dict[str, np.ndarray]:
        table = tf.Variable(tf.cast(gradients_of(0)["kernel"], dtype), name="table")
        executor = "portable" if mode in ("portable", "function") else "auto"
        optimizer = make(0.01, executor=executor, **options)
        optimizer.build([table])
        step = stepper(optimizer, mode)
        for call in range(3):
            values = tf.cast(gradients_of(call + 1)["kernel"][:4], dtype)
            step([(tf.IndexedSlices(values, tf.constant([5, 69, 0, 31 + call]), tf.constant([70, 100])), table)])
        return bits_of(optimizer, {"table": table})

    assert_same(run(mode), run("portable"))


# Checkpoints.


def _start(dtype: Any = tf.float32) -> dict[str, Any]:
    return {name: variable(v, None, name, dtype) for name, v in gradients_of(0).items()}


def _step(optimizer: Any, variables: dict[str, Any], calls: Any) -> None:
    for call in calls:
        gradients = gradients_of(1 + call)
        optimizer.apply_gradients([(tf.cast(gradients[n], v.dtype), v) for n, v in variables.items()])


STORED: dict[str, dict[str, Any]] = {
    "int8": {"slot_dtype": "int8"},
    "bfloat16": {"slot_dtype": "bfloat16", "rounding_seed": 2},
    "rounds": {"stochastic_rounding": True, "dtype": tf.bfloat16},
}


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("way", ["slots", "tensorflow", "copy"])
@pytest.mark.quick(2)
def test_a_resume_gives_the_same_bits(name: str, way: str, tmp_path: Path) -> None:
    options = dict(STORED[name])
    dtype = options.pop("dtype", tf.float32)
    variables = _start(dtype)
    optimizer = optim.Adam(0.01, **options)
    _step(optimizer, variables, range(3))
    new = _start(dtype)
    if way == "slots":
        optim.save_checkpoint(tmp_path / "saved", optimizer, variables)
        resumed = optim.load_checkpoint(tmp_path / "saved", new)
    elif way == "tensorflow":
        path = tf.train.Checkpoint(optimizer=optimizer, model=tf.train.Checkpoint(**variables)).save(tmp_path / "saved")
        resumed = optim.Adam(0.01, **options)
        resumed.build(list(new.values()))
        tf.train.Checkpoint(optimizer=resumed, model=tf.train.Checkpoint(**new)).restore(path).assert_consumed()
    else:
        resumed = copy.deepcopy(optimizer)
        new = dict(zip(variables, (t.variable for t in resumed._state.tracked), strict=True))
    _step(optimizer, variables, range(3, 6))
    _step(resumed, new, range(3, 6))
    assert_same(bits_of(resumed, new), bits_of(optimizer, variables))


@pytest.mark.parametrize("saved", [None, "bfloat16", "int8"])
@pytest.mark.parametrize("wanted", [None, "bfloat16", "int8"])
def test_a_checkpoint_loads_with_another_slot_dtype(saved: str | None, wanted: str | None, tmp_path: Path) -> None:
    variables = _start()
    optimizer = optim.Adam(0.01, slot_dtype=saved)
    _step(optimizer, variables, range(3))
    optim.save_checkpoint(tmp_path / "saved", optimizer, variables)
    loaded = optim.load_checkpoint(tmp_path / "saved", variables, slot_dtype=wanted)
    assert loaded.slot_dtype == wanted
    tolerance = {None: 0.0, "bfloat16": 2**-8, "int8": 0.01}
    for slot in ("m", "v"):
        found, goal = (decoded(each, variables["kernel"], slot) for each in (loaded, optimizer))
        limit = max(tolerance[saved], tolerance[wanted]) if saved != wanted else 0.0
        assert np.abs(found - goal).max() <= limit * np.abs(goal).max()
    _step(loaded, variables, range(3, 5))


def decoded(optimizer: Any, var: Any, slot: str) -> np.ndarray:
    """The float32 numbers that a slot stands for."""
    from optim.bits import codes

    found = optimizer.get_slot(var, slot)
    if found.dtype.name not in (codes.SIGNED, codes.UNSIGNED):
        return tf.cast(found, tf.float32).numpy()
    return codes.decode(found.numpy(), optimizer.get_slot(var, f"{slot}_scale").numpy())


def test_what_a_checkpoint_has_is_described(tmp_path: Path) -> None:
    variables = _start()
    optimizer = optim.Adam(0.01, slot_dtype="int8")
    _step(optimizer, variables, range(1))
    optim.save_checkpoint(tmp_path / "saved", optimizer, variables)
    info = optim.describe_checkpoint(tmp_path / "saved")
    assert info.slots["m"]["kernel"] == (70, 100)
    assert info.slots["m_scale"] == {"kernel": (4,), "table": (21,)}
    assert info.config["slot_dtype"] == "int8"


# Memory.


def test_the_report_shows_the_bytes() -> None:
    weights = tf.Variable(tf.zeros([64, 4096]), name="weights")
    sizes = {}
    for slot_dtype in (None, "bfloat16", "int8"):
        optimizer = optim.Adam(0.01, slot_dtype=slot_dtype)
        optimizer.build([weights])
        (sizes[slot_dtype],) = optimizer.memory_report().slot_bytes.values()
    count = 64 * 4096
    assert sizes == {None: 8 * count, "bfloat16": 4 * count, "int8": 2 * count + 2 * 4 * count // 2048}


# What it is for.


@pytest.mark.parametrize("mode", ["portable", "native"])
def test_small_steps_add_up_in_bfloat16_variables(mode: str) -> None:
    """1 − 100 · 0.001 on average, where rounding to nearest never leaves 1."""
    executor = "portable" if mode == "portable" else "auto"
    nearest, rounded = (tf.Variable(tf.ones([2000], tf.bfloat16)) for _ in range(2))
    for rounds, weights in ((False, nearest), (True, rounded)):
        optimizer = optim.SGD(0.001, stochastic_rounding=rounds, executor=executor)
        for _ in range(100):
            optimizer.apply_gradients([(tf.ones([2000], tf.bfloat16), weights)])
    assert set(nearest.numpy().astype(float)) == {1.0}
    values = rounded.numpy().astype(np.float64)
    # A step moves by the spacing 2⁻⁸ below 1 with probability 0.256: the variance of 100 is 100 · p · (1 − p) · 2⁻¹⁶.
    deviation = np.sqrt(100 * 0.256 * 0.744) * 2**-8
    assert abs(values.mean() - 0.9) < 5 * deviation / np.sqrt(values.size)
    assert 0.8 * deviation < values.std() < 1.2 * deviation


def _loss_after(make: Any, steps: int, dtype: Any = tf.float32, **options: Any) -> float:
    """Of a network with 2 x 8,192 weights that learns a function of 32 numbers."""
    random = np.random.default_rng(5)
    inputs = tf.constant(random.normal(size=(512, 32)), tf.float32)
    goal = tf.sin(tf.reduce_sum(inputs[:, :4], 1, keepdims=True)) + inputs[:, 4:5] * inputs[:, 5:6]
    first = tf.Variable(tf.cast(random.normal(size=(32, 256)) / 6, dtype))
    second = tf.Variable(tf.cast(random.normal(size=(256, 32)) / 16, dtype))
    third = tf.Variable(tf.cast(random.normal(size=(32, 1)) / 6, dtype))
    weights = [first, second, third]
    optimizer = make(slot_dtype=options.pop("slot_dtype", None), **options)
    optimizer.build(weights)

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            wide = [tf.cast(each, tf.float32) for each in weights]
            hidden = tf.nn.relu(tf.nn.relu(inputs @ wide[0]) @ wide[1])
            loss = tf.reduce_mean((hidden @ wide[2] - goal) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    losses = [float(step()) for _ in range(steps)]
    return float(np.mean(losses[-20:]))


@pytest.mark.parametrize(
    ("slot_dtype", "mode"),
    marked([("bfloat16", "native"), ("int8", "native")], lambda slot_dtype, mode: slot_dtype == "int8"),
)
def test_the_loss_is_that_of_float32(slot_dtype: str, mode: str) -> None:
    """Closer to it than runs of float32 are with learning rates that are a tenth apart."""
    whole, near = (_loss_after(optim.Adam, 300, learning_rate=rate) for rate in (0.002, 0.0022))
    found = _loss_after(optim.Adam, 300, learning_rate=0.002, slot_dtype=slot_dtype)
    assert whole < 0.05
    assert abs(np.log(found / whole)) < max(abs(np.log(near / whole)), 0.2)


@pytest.mark.breadth
@pytest.mark.parametrize("mode", ["native"])
def test_bfloat16_variables_learn_like_their_copies(mode: str) -> None:
    losses = {}
    for name in ("stochastic_rounding", "master_copies", "none"):
        options = {} if name == "none" else {name: True}
        losses[name] = _loss_after(optim.Adam, 600, tf.bfloat16, learning_rate=0.0003, **options)
    assert losses["stochastic_rounding"] < 0.5 * losses["none"]
    assert losses["stochastic_rounding"] < 1.5 * losses["master_copies"]


# Refused.


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: optim.Adam(slot_dtype="int4"), "slot_dtype must be"),
        (lambda: optim.Adam(slot_dtype="float32"), "slot_dtype must be"),
        (lambda: optim.SGD(slot_dtype="int8"), "no slot"),
        (lambda: optim.Ftrl(slot_dtype="bfloat16"), "no slot"),
        (lambda: optim.Adam(slot_dtype="int8", lazy_rows=["table"]), "lazy_rows"),
        (lambda: optim.Adam(stochastic_rounding=1), "True or False"),
        (lambda: optim.Adam(stochastic_rounding=True, master_copies=True), "exclude"),
        (lambda: optim.Adam(stochastic_rounding=True, rounding_seed=-1), "integer"),
        (lambda: optim.Adam(stochastic_rounding=True, rounding_seed=2**32), "integer"),
        (lambda: optim.Adam(rounding_seed=3), "no effect"),
        (lambda: optim.Adam(slot_dtype="int8", rounding_seed=3), "no effect"),
    ],
)
def test_what_cannot_act_is_refused(make: Any, text: str) -> None:
    with pytest.raises(HyperparameterError, match=text):
        make()


def test_a_step_of_ones_own_refuses_them() -> None:
    class Own(optim.Optimizer):
        def update_step(self, gradient: Any, variable: Any) -> None:
            variable.assign_sub(gradient)

    for options in ({"slot_dtype": "bfloat16"}, {"stochastic_rounding": True}):
        with pytest.raises(HyperparameterError, match="no effect"):
            Own(learning_rate=0.1, **options)


def test_variables_that_cannot_are_refused_when_it_is_built() -> None:
    with pytest.raises(MismatchError, match="float64"):
        optim.Adam(slot_dtype="bfloat16").build([tf.Variable([1.0], dtype=tf.float64)])


def test_they_are_fixed_and_in_the_config() -> None:
    optimizer = optim.Adam(slot_dtype="bfloat16", stochastic_rounding=True, rounding_seed=7)
    config = optimizer.get_config()
    assert (config["slot_dtype"], config["stochastic_rounding"], config["rounding_seed"]) == ("bfloat16", True, 7)
    assert optim.Adam.from_config(config).get_config() == config
    for name, value in (("slot_dtype", None), ("stochastic_rounding", False), ("rounding_seed", 1)):
        with pytest.raises(UnsupportedError, match="fixed"):
            setattr(optimizer, name, value)


def test_a_rule_of_ones_own_says_which_slots() -> None:
    class Rule(optim.Rule):
        learning_rate = optim.Hyperparameter(0.01, "the size of a step")
        slots = (optim.Slot("m", unit="gradient", few_bits=True), optim.Slot("n", unit="gradient"))

        def update(self, xp: Any, variable: Any, gradient: Any, slots: Any, c: Any) -> Any:
            m = 0.5 * slots["m"] + gradient
            return -c["learning_rate"] * m, {"m": m, "n": slots["n"] + gradient}

    class Own(optim.RuleOptimizer, rule=Rule):
        """A rule of one's own."""

    weights = tf.Variable(tf.ones([4096]))
    optimizer = Own(0.1, slot_dtype="int8")
    optimizer.apply_gradients([(tf.ones([4096]), weights)])
    assert optimizer.get_slot(weights, "m").dtype == tf.int8
    assert optimizer.get_slot(weights, "n").dtype == tf.float32
    np.testing.assert_allclose(value_of(weights), 0.9, rtol=1e-6)


GROUPS = {"int8": {"slot_dtype": "int8"}, "bfloat16": {"slot_dtype": "bfloat16", "rounding_seed": 3}}


@pytest.mark.parametrize("mode", ["native", "native_function"])
@pytest.mark.parametrize("name", GROUPS)
def test_groups_share_the_options(name: str, mode: str) -> None:
    found = []
    for how in (mode, "portable"):
        members = [("bias", optim.Lion(0.01)), (None, optim.Adam(0.01))]
        optimizer = optim.Groups(members, executor="portable" if how == "portable" else "auto", **GROUPS[name])
        found.append(bits_of(optimizer, train(optimizer, how)))
    assert_same(*found)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: optim.Groups([(None, optim.Adam(slot_dtype="int8"))]), "slot_dtype"),
        (lambda: optim.Groups([(None, optim.Adam(stochastic_rounding=True))]), "stochastic_rounding"),
        (lambda: optim.Groups([(None, optim.SGD())], slot_dtype="int8"), "no slot"),
        (lambda: optim.Groups([(None, optim.Adam(lazy_rows=["a"]))], slot_dtype="int8"), "lazy_rows"),
        (lambda: optim.Groups([(None, optim.Adam())], rounding_seed=3), "no effect"),
    ],
)
def test_groups_refuse_what_cannot_act(make: Any, text: str) -> None:
    with pytest.raises(HyperparameterError, match=text):
        make()
