"""How fast `dtopt migrate` is and how much memory it takes, beside `cp` of the same file in the same run.

    python benchmarks/migration.py [--gigabytes N] [--rounds N] [--folder DIR]

Makes its own inputs, N GB each, one after the other: a tf.keras `.h5`, a TensorFlow checkpoint and a `.keras`. Targets,
each beside its number: at least half of `cp`'s throughput, `verify` in at most twice the time of the migration, at most
500 MB and two of the largest tensor of memory, `inspect` in under a second. Exit code 1 if one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np

ROOT = str(Path(__file__).resolve().parent.parent)
sys.path.insert(0, ROOT)

from migrate.object_graph import VALUE  # noqa: E402
from migrate.protos import ObjectGraph  # noqa: E402
from migrate.tensor_bundle import GRAPH_KEY, BundleWriter  # noqa: E402

MEGABYTE = 1_000_000
WIDTH = 4096
LAYERS = 8
"""A dense layer of each input, with its kernel, its bias and two slots of both."""
ADAM = {"class_name": "Adam", "config": {"learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}}
DTOPT = (sys.executable, "-m", "dtopt_cli")


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


def run(command: list[str]) -> tuple[float, float]:
    """(seconds, greatest resident memory in MB) of a command, which must succeed."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": ROOT})
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{' '.join(command)} failed")
    return seconds, usage.ru_maxrss * 1024 / MEGABYTE


def copied(source: Path, dest: Path) -> float:
    """Seconds of `cp` of the input, and of writing it through to disk as a migration does."""
    files = [str(p) for p in source.parent.glob(source.name + "*")]
    dest.mkdir()
    start = time.perf_counter()
    subprocess.run(["cp", *files, str(dest)], check=True)
    subprocess.run(["sync", *(str(p) for p in dest.iterdir())], check=True)
    return time.perf_counter() - start


def verdict(value: float, target: float, *, at_least: bool = False) -> tuple[str, bool]:
    met = value >= target if at_least else value <= target
    return "met" if met else "MISSED", met


def measure(name: str, folder: Path, size: int, rounds: int) -> bool:
    """Print one input's rows. Returns whether all targets were met."""
    file, make, needs_config = INPUTS[name]
    rows = max(1, size // (3 * LAYERS * WIDTH * 4))
    source, dest = folder / file, folder / "out"
    make(source, rows)
    hints = []
    if needs_config:
        (folder / "optimizer.json").write_text(json.dumps(ADAM))
        hints = ["--optimizer-config", str(folder / "optimizer.json")]
    total = sum(p.stat().st_size for p in folder.glob(file + "*")) / MEGABYTE
    largest = rows * WIDTH * 4 / MEGABYTE
    samples: dict[str, list[float]] = {key: [] for key in ("cp", "migrate", "memory", "verify", "inspect")}
    copied(source, folder / "warm")  # so that all rounds find the input in the page cache
    shutil.rmtree(folder / "warm")
    for _ in range(rounds):  # in turn, so that a slow moment of the machine meets all of them
        samples["cp"].append(copied(source, folder / "copy"))
        shutil.rmtree(folder / "copy")
        seconds, memory = run([*DTOPT, "migrate", "checkpoint", str(source), str(dest), "--quiet", *hints])
        samples["migrate"].append(seconds)
        samples["memory"].append(memory)
        samples["verify"].append(run([*DTOPT, "migrate", "verify", str(source), str(dest), *hints])[0])
        samples["inspect"].append(run([*DTOPT, "migrate", "inspect", str(source), *hints])[0])
        shutil.rmtree(dest)
    median = {key: statistics.median(values) for key, values in samples.items()}
    ratio, twice = median["cp"] / median["migrate"], (median["migrate"] + median["verify"]) / median["migrate"]
    limit = 500 + 2 * largest
    print(f"{name}: {total:.0f} MB, largest tensor {largest:.0f} MB, medians of {rounds} rounds")
    print(f"  cp and sync          {median['cp']:7.2f} s  {total / median['cp']:7.0f} MB/s")
    results = [
        (
            f"migrate              {median['migrate']:7.2f} s  {total / median['migrate']:7.0f} MB/s  {ratio:.2f}x cp",
            *verdict(ratio, 0.5, at_least=True),
            "0.5x",
        ),
        (f"migrate and verify   {twice:7.2f} times migrate", *verdict(twice, 2), "2"),
        (
            f"peak memory          {max(samples['memory']):7.0f} MB",
            *verdict(max(samples["memory"]), limit),
            f"{limit:.0f} MB",
        ),
        (f"inspect              {median['inspect']:7.2f} s", *verdict(median["inspect"], 1), "1 s"),
    ]
    for text, word, _, target in results:
        print(f"  {text}   target {target}: {word}", flush=True)
    return all(met for _, _, met, _ in results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of tensors in each input")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where to put them; three times as much must be free (default: a temporary)")
    options = parser.parse_args()
    met = []
    for name in INPUTS:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            met.append(measure(name, Path(folder), int(options.gigabytes * 1e9), options.rounds))
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
