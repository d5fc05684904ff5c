"""Run by `test_backend_checkpoints.py`: load a checkpoint on the backend of KERAS_BACKEND, take steps, and save.

    python -m tests.test_optim.checkpoints.resume_program SOURCE DEST FIRST_CALL CALLS DTYPE [MESH SLOT_PLACEMENT]

MESH is `4x2` or empty. Variables start at zero. Prints one JSON line: bytes of slots by device.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import keras
import numpy as np

import optim
from tests.test_optim.values import SHAPES, gradient_values

LAYOUTS = {"kernel": [None, "model"], "table": ["batch", None], "bias": ["batch"]}


def distribution(mesh: str) -> Any:
    sizes = tuple(map(int, mesh.split("x")))
    devices = keras.distribution.DeviceMesh(sizes, ["batch", "model"], keras.distribution.list_devices("cpu"))
    layouts = keras.distribution.LayoutMap(devices)
    for name, axes in LAYOUTS.items():
        layouts[name] = keras.distribution.TensorLayout(axes, devices)
    return keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")


def refuse_whole_arrays() -> None:
    """Let no divided array be gathered on one device, nor a whole one be sent to one."""
    import jax

    make, to_numpy = jax.make_array_from_callback, keras.ops.convert_to_numpy

    def make_parts(shape: Any, sharding: Any, callback: Any) -> Any:
        def part(index: Any) -> Any:
            found = callback(index)
            assert found.shape == sharding.shard_shape(shape) != shape
            return found

        return make(shape, sharding, part)

    def of_whole(value: Any) -> Any:
        assert value.sharding.is_fully_replicated, "a divided array was gathered"
        return to_numpy(value)

    jax.make_array_from_callback, keras.ops.convert_to_numpy = make_parts, of_whole


def main(source: str, dest: str, first: int, calls: int, dtype: str, mesh: str = "", placement: str = "") -> None:
    if mesh:
        keras.distribution.set_distribution(distribution(mesh))
        refuse_whole_arrays()
    variables = {name: keras.Variable(np.zeros(shape), dtype=dtype, name=name) for name, shape in SHAPES.items()}
    optimizer = optim.load_checkpoint(source, variables, slot_placement=placement or None)
    for call in range(first, first + calls):
        gradients = gradient_values(call).values()
        tensors = [None if g is None else keras.ops.convert_to_tensor(g, dtype) for g in gradients]
        optimizer.apply(tensors, list(variables.values()))
    optim.save_checkpoint(dest, optimizer, variables)
    assert "tensorflow" not in sys.modules, "TensorFlow was imported"
    print(json.dumps({"bytes": optimizer.memory_report().slot_bytes}))


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:5]), *sys.argv[5:])  # type: ignore[arg-type]
