"""Run by `test_backends.py` with Keras on JAX and eight CPU devices: slots on meshes of `keras.distribution`.

Prints one JSON line for each check: its name, and its traceback if it failed. With the word `all`, each optimizer is
trained on each mesh with each placement; else each two of these meet.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import keras
import numpy as np

import optim
from optim.errors import MismatchError
from tests.test_optim.keras.check_runner import run_checks

DISTRIBUTION = keras.distribution
RANDOM = np.random.default_rng(0)
X, Y = (RANDOM.random((64, n)).astype(np.float32) for n in (16, 8))
OPTIMIZERS: dict[str, Any] = {
    "adam": lambda **more: optim.Adam(0.01, global_clipnorm=0.5, use_ema=True, **more),
    "adafactor": lambda **more: optim.Adafactor(0.01, **more),
    "muon": lambda **more: optim.Muon(0.01, **more),
    "sgd": lambda **more: optim.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2, **more),
}

PLACEMENTS = ("zero1", "like_variable")


def data_parallel() -> Any:
    return DISTRIBUTION.DataParallel(devices=DISTRIBUTION.list_devices("cpu"))


def model_parallel() -> Any:
    mesh = DISTRIBUTION.DeviceMesh((4, 2), ["batch", "model"], DISTRIBUTION.list_devices("cpu"))
    layouts = DISTRIBUTION.LayoutMap(mesh)
    layouts[".*hidden/kernel"] = DISTRIBUTION.TensorLayout([None, "model"], mesh)
    layouts[".*hidden/bias"] = DISTRIBUTION.TensorLayout(["model"], mesh)
    return DISTRIBUTION.ModelParallel(layout_map=layouts, batch_dim_name="batch")


def trained(distribution: Any, make: Any, **more: Any) -> tuple[list[float], Any]:
    DISTRIBUTION.set_distribution(distribution)
    try:
        seed = keras.initializers.GlorotUniform
        hidden = keras.layers.Dense(32, "tanh", name="hidden", kernel_initializer=seed(1))
        last = keras.layers.Dense(8, name="last", kernel_initializer=seed(2))
        model = keras.Sequential([keras.layers.Input((16,)), hidden, last])
        model.compile(optim.for_keras(make(**more)), loss="mse")
        history = model.fit(X, Y, 32, 4, shuffle=False, verbose=0).history["loss"]
        return history, model
    finally:
        DISTRIBUTION.set_distribution(None)


def check_steps_are_those_of_one_device() -> None:
    for i, (name, make) in enumerate(OPTIMIZERS.items()):
        expected, alone = trained(None, make)
        for j, where in enumerate((data_parallel, model_parallel)):
            for placement in PLACEMENTS if "all" in sys.argv else PLACEMENTS[(i + j) % 2 :][:1]:
                found, model = trained(where(), make, slot_placement=placement)
                what = f"{name} {where.__name__} {placement}"
                np.testing.assert_allclose(found, expected, rtol=2e-6, err_msg=what)
                for one, other in zip(model.optimizer.variables, alone.optimizer.variables, strict=True):
                    size = np.abs(np.array(other)).max() + 1e-30
                    np.testing.assert_allclose(np.array(one) / size, np.array(other) / size, atol=2e-5, err_msg=what)


def check_slots_follow_their_variables() -> None:
    _, model = trained(model_parallel(), OPTIMIZERS["adam"])
    for variable in model.trainable_variables:
        for slot in ("m", "v", "average"):
            found = model.optimizer.get_slot(variable, slot).value.sharding
            assert found.is_equivalent_to(variable.value.sharding, len(variable.shape)), (variable.path, slot)
    _, model = trained(model_parallel(), OPTIMIZERS["adafactor"])
    kernel = model.trainable_variables[0]
    assert model.optimizer.get_slot(kernel, "c").value.sharding.spec == jax.sharding.PartitionSpec("model")


def check_zero1_divides_memory() -> None:
    """Each slot has an eighth on each device, on one axis or on the two of a mesh; variables stay as they are."""
    whole = 4 * sum(int(np.prod(shape)) for shape in ((16, 32), (32,), (32, 8), (8,)))
    for where in (data_parallel, model_parallel):
        reports = {}
        for placement in ("like_variable", "zero1"):
            _, model = trained(where(), OPTIMIZERS["adam"], slot_placement=placement)
            reports[placement] = report = model.optimizer.memory_report()
            assert list(report.slots) == ["average", "m", "v"]
            assert set(report.slot_bytes) == {f"CPU:{i}" for i in range(8)}
        assert reports["zero1"].variables == reports["like_variable"].variables
        assert set(reports["zero1"].slot_bytes.values()) == {3 * whole // 8}, where.__name__
        if where is data_parallel:
            assert set(reports["like_variable"].slot_bytes.values()) == {3 * whole}
    specs = {v.path: model.optimizer.get_slot(v, "m").value.sharding.spec for v in model.trainable_variables}
    spec = jax.sharding.PartitionSpec
    assert specs[model.trainable_variables[0].path] == spec("batch", "model")
    assert specs[model.trainable_variables[1].path] == spec(("model", "batch"))


def check_a_place_of_ones_own() -> None:
    where = model_parallel()

    def by_columns(variable: Any, slot: str) -> Any:
        axes = [None] * (len(variable.shape) - 1) + ["batch"]
        return DISTRIBUTION.TensorLayout(axes, where.device_mesh)

    _, model = trained(where, OPTIMIZERS["adam"], slot_placement=by_columns)
    m = model.optimizer.get_slot(model.trainable_variables[0], "m")
    assert m.value.sharding.spec == jax.sharding.PartitionSpec(None, "batch")
    try:
        trained(where, OPTIMIZERS["adam"], slot_placement=lambda variable, slot: "batch")
    except MismatchError as error:
        assert "must return a keras.distribution.TensorLayout" in str(error)  # noqa: PT017
    else:
        raise AssertionError("a word was taken for a layout")


def check_files_go_from_a_mesh_to_one_device() -> None:
    import tempfile

    _, model = trained(model_parallel(), OPTIMIZERS["adam"], slot_placement="zero1")
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/m.keras")
        DISTRIBUTION.set_distribution(data_parallel())
        try:
            again = keras.models.load_model(f"{folder}/m.keras", custom_objects=optim.keras_objects())
        finally:
            DISTRIBUTION.set_distribution(None)
    for one, other in zip(again.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(np.array(one), np.array(other))
    assert again.optimizer.memory_report().slot_bytes["CPU:7"] == model.optimizer.memory_report().slot_bytes["CPU:7"]


def main() -> None:
    assert len(jax.devices()) == 8
    run_checks(globals())


if __name__ == "__main__":
    main()
