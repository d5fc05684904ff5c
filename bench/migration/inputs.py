"""Make inputs of any size: a tf.keras `.h5`, a TensorFlow checkpoint and a `.keras`, as their frameworks write them.

`python -m bench.migration.inputs FORMAT PATH ROWS` makes one. TensorFlow writes its checkpoint itself; the other two
are HDF5 files written here. One tensor at a time is in memory.
"""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

WIDTH = 4096
LAYERS = 8
"""Size of the dense layer of each input, with its kernel, its bias and two slots of both."""
ITERATIONS = 10
ADAM: dict[str, Any] = {
    "class_name": "Adam",
    "config": {"learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7},
}


def rows_for(size: int) -> int:
    """Return the rows of a kernel in an input of about `size` bytes."""
    return max(1, size // (3 * LAYERS * WIDTH * 4))


def tensors(rows: int) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield (slot or "", variable, values), one at a time."""
    import numpy as np

    block = np.random.default_rng(0).standard_normal((rows, WIDTH), np.float32)
    for slot in ("", "m", "v"):
        for i in range(LAYERS):
            block += np.float32(1)
            yield slot, f"dense_{i}/kernel", np.abs(block)
            yield slot, f"dense_{i}/bias", np.abs(block[0])


def layer_names() -> list[str]:
    return [f"dense_{i}" for i in range(LAYERS)]


def sequential(**more: Any) -> dict[str, Any]:
    layers = [{"class_name": "Dense", "config": {"name": name, "trainable": True}, **more} for name in layer_names()]
    return {"class_name": "Sequential", "config": {"name": "sequential", "layers": layers}, **more}


def make_h5(path: Path, rows: int) -> None:
    """Write the file as tf.keras 2.4 does."""
    import h5py
    import numpy as np

    with h5py.File(path, "w") as file:
        config = {**ADAM["config"], "name": "Adam", "decay": 0.0, "amsgrad": False}
        training = {"loss": "mse", "optimizer_config": {"class_name": "Adam", "config": config}}
        file.attrs.update({"keras_version": "2.4.0", "backend": "tensorflow"})
        file.attrs.update({"training_config": json.dumps(training), "model_config": json.dumps(sequential())})
        model, optimizer = file.create_group("model_weights"), file.create_group("optimizer_weights")
        model.attrs["layer_names"] = [name.encode() for name in layer_names()]
        names = ["Adam/iter:0"]
        optimizer["Adam/iter:0"] = np.int64(ITERATIONS)
        for slot, variable, values in tensors(rows):
            layer = variable.split("/")[0]
            if slot:
                names.append(f"Adam/{variable}/{slot}:0")
                optimizer[names[-1]] = values
            else:
                group = model.require_group(layer)
                group.attrs["weight_names"] = [f"{layer}/{part}:0".encode() for part in ("kernel", "bias")]
                group[f"{variable}:0"] = values
        optimizer.attrs["weight_names"] = [name.encode() for name in names]


def make_checkpoint(prefix: Path, rows: int) -> None:
    """Write the checkpoint as tf.train.Checkpoint(model=..., optimizer=tf.keras.optimizers.Adam) of TF 2.4 does.

    The tensors are written one by one through TensorFlow's own operation, then merged.
    """
    import numpy as np
    import tensorflow as tf

    parts = prefix.parent / "parts"
    graph = _Graph()
    written: list[str] = []

    def save(key: str, value: Any) -> None:
        written.append(str(parts / f"{len(written)}" / "part"))
        Path(written[-1]).parent.mkdir(parents=True)
        tf.raw_ops.SaveV2(prefix=written[-1], tensor_names=[key], shape_and_slices=[""], tensors=[value])

    save(graph.iterations(), np.array(ITERATIONS, np.int64))
    for slot, name, values in tensors(rows):
        save(graph.slot(name, slot) if slot else graph.variable(name), values)
    save("_CHECKPOINTABLE_OBJECT_GRAPH", tf.constant(graph.proto.SerializeToString()))
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=written, destination_prefix=str(prefix), delete_old_dirs=False)
    shutil.rmtree(parts)


class _Graph:
    """The object graph of such a checkpoint; each method adds a value and returns its key."""

    def __init__(self) -> None:
        from tensorflow.core.protobuf import trackable_object_graph_pb2

        self.proto = trackable_object_graph_pb2.TrackableObjectGraph()
        self._numbers: dict[str, int] = {"": 0}
        self.proto.nodes.add()

    def iterations(self) -> str:
        return self._value(self._node("optimizer/iter"), "Adam/iter", "optimizer/iter")

    def variable(self, name: str) -> str:
        return self._value(self._node(f"model/{name}"), name, f"model/{name}")

    def slot(self, name: str, slot: str) -> str:
        number = len(self.proto.nodes)
        self.proto.nodes.add()
        self.proto.nodes[self._node("optimizer")].slot_variables.add(
            original_variable_node_id=self._node(f"model/{name}"), slot_name=slot, slot_variable_node_id=number
        )
        return self._value(number, f"Adam/{name}/{slot}", f"model/{name}/.OPTIMIZER_SLOT/optimizer/{slot}")

    def _node(self, path: str) -> int:
        if path not in self._numbers:
            parent, _, name = path.rpartition("/")
            above = self._node(parent)
            self._numbers[path] = len(self.proto.nodes)
            self.proto.nodes.add()
            self.proto.nodes[above].children.add(node_id=self._numbers[path], local_name=name)
        return self._numbers[path]

    def _value(self, number: int, name: str, path: str) -> str:
        key = f"{path}/.ATTRIBUTES/VARIABLE_VALUE"
        self.proto.nodes[number].attributes.add(name="VARIABLE_VALUE", full_name=name, checkpoint_key=key)
        return key


def make_keras(path: Path, rows: int) -> None:
    """Write the file as Keras 3.8 does."""
    import h5py
    import numpy as np

    weights = path.with_suffix(".weights.h5")
    with h5py.File(weights, "w") as file:
        variables_group = file.create_group("optimizer/vars")
        variables_group["0"], variables_group["1"] = np.int64(ITERATIONS), np.float32(0.001)
        for slot, variable, values in tensors(rows):
            layer, part = variable.split("/")
            if slot:
                number = 2 + 2 * (2 * int(layer[6:]) + (part == "bias")) + (slot == "v")
                variables_group[str(number)] = values
            else:
                group = "dense" if layer == "dense_0" else layer
                file.require_group(f"layers/{group}/vars")["0" if part == "kernel" else "1"] = values
    compiled = {"optimizer": {"module": "keras.optimizers", **ADAM, "registered_name": None}, "loss": "mse"}
    config = {**sequential(module="keras", registered_name=None), "compile_config": compiled}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": "3.8.0"}))
        archive.writestr("config.json", json.dumps(config))
        archive.write(weights, "model.weights.h5")
    weights.unlink()


@dataclass(frozen=True)
class Input:
    """Attributes: name, as `--format` takes it; file; make; needs_config: whether a reader needs the optimizer's config
    separately.
    """

    name: str
    file: str
    make: Callable[[Path, int], None]
    needs_config: bool = False


INPUTS: tuple[Input, ...] = (
    Input("h5", "model.h5", make_h5),
    Input("checkpoint", "ckpt-1", make_checkpoint, needs_config=True),
    Input("keras", "model.keras", make_keras),
)


def main(name: str, path: str, rows: str) -> None:
    next(known for known in INPUTS if known.name == name).make(Path(path), int(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
