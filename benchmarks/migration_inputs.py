"""Inputs of any size for the migration benchmark: a tf.keras `.h5`, a TensorFlow checkpoint and a `.keras`."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from migrate.object_graph import VALUE
from migrate.protos import ObjectGraph
from migrate.tensor_bundle import GRAPH_KEY, BundleWriter

WIDTH = 4096
LAYERS = 8
"""A dense layer of each input, with its kernel, its bias and two slots of both."""
ADAM = {"class_name": "Adam", "config": {"learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}}


def rows_for(size: int) -> int:
    """Rows of a kernel in an input of about `size` bytes."""
    return max(1, size // (3 * LAYERS * WIDTH * 4))


def tensors(rows: int) -> Iterator[tuple[str, str, np.ndarray]]:
    """(slot or "", variable, values), one at a time."""
    block = np.random.default_rng(0).standard_normal((rows, WIDTH), np.float32)
    for slot in ("", "m", "v"):
        for i in range(LAYERS):
            block += np.float32(1)
            yield slot, f"dense_{i}/kernel", np.abs(block)
            yield slot, f"dense_{i}/bias", np.abs(block[0])


def layer_names() -> list[str]:
    return [f"dense_{i}" for i in range(LAYERS)]


def sequential(**more: object) -> dict[str, object]:
    layers = [{"class_name": "Dense", "config": {"name": name, "trainable": True}, **more} for name in layer_names()]
    return {"class_name": "Sequential", "config": {"name": "sequential", "layers": layers}, **more}


def make_h5(path: Path, rows: int) -> None:
    """As tf.keras 2.4 writes it."""
    with h5py.File(path, "w") as file:
        config = {**ADAM["config"], "name": "Adam", "decay": 0.0, "amsgrad": False}  # type: ignore[dict-item]
        training = {"loss": "mse", "optimizer_config": {"class_name": "Adam", "config": config}}
        file.attrs.update({"keras_version": "2.4.0", "backend": "tensorflow"})
        file.attrs.update({"training_config": json.dumps(training), "model_config": json.dumps(sequential())})
        model, optimizer = file.create_group("model_weights"), file.create_group("optimizer_weights")
        model.attrs["layer_names"] = [name.encode() for name in layer_names()]
        names = ["Adam/iter:0"]
        optimizer["Adam/iter:0"] = np.int64(10)
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
    """As tf.train.Checkpoint(model=..., optimizer=tf.keras.optimizers.Adam) of TF 2.4 writes it."""
    graph = ObjectGraph()
    numbers: dict[str, int] = {"": 0}

    def node(path: str) -> int:
        if path not in numbers:
            parent, _, name = path.rpartition("/")
            above = node(parent)
            numbers[path] = len(graph.nodes)
            graph.nodes.add()
            graph.nodes[above].children.add(node_id=numbers[path], local_name=name)
        return numbers[path]

    def variable(number: int, name: str, key: str) -> str:
        graph.nodes[number].attributes.add(name=VALUE, full_name=name, checkpoint_key=key)
        return key

    graph.nodes.add()
    with BundleWriter(str(prefix)) as bundle:
        key = variable(node("optimizer/iter"), "Adam/iter", f"optimizer/iter/.ATTRIBUTES/{VALUE}")
        bundle.add(key, np.array(10, np.int64))
        for slot, name, values in tensors(rows):
            own = f"model/{name}"
            if not slot:
                key = variable(node(own), name, f"{own}/.ATTRIBUTES/{VALUE}")
            else:
                number = len(graph.nodes)
                graph.nodes.add()
                key = variable(
                    number, f"Adam/{name}/{slot}", f"{own}/.OPTIMIZER_SLOT/optimizer/{slot}/.ATTRIBUTES/{VALUE}"
                )
                graph.nodes[node("optimizer")].slot_variables.add(
                    original_variable_node_id=node(own), slot_name=slot, slot_variable_node_id=number
                )
            bundle.add(key, values)
        bundle.add_string(GRAPH_KEY, graph.SerializeToString())


def make_keras(path: Path, rows: int) -> None:
    """As Keras 3.8 writes it."""
    weights = path.with_suffix(".weights.h5")
    with h5py.File(weights, "w") as file:
        own = file.create_group("optimizer/vars")
        own["0"], own["1"] = np.int64(10), np.float32(0.001)
        for slot, variable, values in tensors(rows):
            layer, part = variable.split("/")
            if slot:
                number = 2 + 2 * (2 * int(layer[6:]) + (part == "bias")) + (slot == "v")
                own[str(number)] = values
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


INPUTS: dict[str, tuple[str, Callable[[Path, int], None], bool]] = {
    "tf.keras .h5": ("model.h5", make_h5, False),
    "TF checkpoint": ("ckpt-1", make_checkpoint, True),
    ".keras": ("model.keras", make_keras, False),
}
"""Name -> (file, how to make it, whether the optimizer's config must be given)."""
