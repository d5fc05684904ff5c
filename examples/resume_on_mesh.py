"""Resume a migrated checkpoint on a 2x2 CPU mesh, and compare with what the original framework did next.

    python examples/resume_on_mesh.py MIGRATED CASE

MIGRATED is what `dtopt migrate checkpoint` wrote; CASE is a folder of tests/fixtures/cases/corpus, whose
oracle.npz holds the gradients of the original framework's next six steps and its variables after each.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table
from tensorflow.experimental import dtensor

import optim

STEPS = 6
# Float32 rounding: of a variable's norm, or of the way it has gone since the checkpoint (old Adam's bias correction,
# formed in float32, is itself that far from its formula).
OF_NORM, OF_MOVEMENT = 2e-6, 1e-5


def make_mesh() -> dtensor.Mesh:
    """Axes batch=2, model=2 on four logical CPU devices."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    return dtensor.create_mesh([("batch", 2), ("model", 2)], devices=[f"CPU:{i}" for i in range(4)])


def layout_for(shape: tuple[int, ...], mesh: dtensor.Mesh) -> dtensor.Layout:
    """Shard the last even dim over `model` and the one before it over `batch`."""
    specs = [dtensor.UNSHARDED] * len(shape)
    axes = ["batch", "model"]
    for dim in reversed(range(len(shape))):
        if axes and shape[dim] % 2 == 0:
            specs[dim] = axes.pop()
    return dtensor.Layout(specs, mesh)


def on_mesh(array: np.ndarray, mesh: dtensor.Mesh) -> tf.Tensor:
    replicated = dtensor.copy_to_mesh(tf.constant(array), dtensor.Layout.replicated(mesh, array.ndim))
    return dtensor.relayout(replicated, layout_for(array.shape, mesh))


def to_numpy(variable: dtensor.DVariable) -> np.ndarray:
    replicated = dtensor.Layout.replicated(variable.layout.mesh, variable.shape.rank)
    return dtensor.relayout(variable.read_value(), replicated).numpy()


def tolerances(here: np.ndarray, then: np.ndarray, start: np.ndarray) -> float:
    """The difference of two values in units of float32 rounding: 1 or less is the same."""
    difference = np.linalg.norm(here.astype(np.float64) - then)
    return float(
        min(difference / (OF_NORM * np.linalg.norm(then)), difference / (OF_MOVEMENT * np.linalg.norm(then - start)))
    )


def main(migrated: str, case: str) -> int:
    mesh = make_mesh()
    oracle = np.load(Path(case) / "oracle.npz")

    # This is all that resuming takes: variables on the mesh by name, and load_checkpoint.
    info = optim.describe_checkpoint(migrated)
    variables = {v.name: dtensor.DVariable(on_mesh(np.zeros(v.shape, v.dtype), mesh)) for v in info.variables}
    optimizer = optim.load_checkpoint(migrated, variables, mesh=mesh)

    start = {name: to_numpy(variable) for name, variable in variables.items()}
    trained = [v.name for v in info.variables if v.trainable]
    table = Table(title=f"{info.algorithm} resumed at iteration {info.iterations} on a 2x2 mesh")
    for heading in ("step", f"{trained[0]}[0] here", "then", "greatest difference, in tolerances"):
        table.add_column(heading, justify="right")
    worst = 0.0
    for step in range(STEPS):
        gradients = [on_mesh(oracle[f"grad/{step}/{i}"], mesh) for i in range(len(trained))]
        optimizer.apply_gradients(zip(gradients, [variables[name] for name in trained], strict=True))
        here = [to_numpy(variables[name]) for name in trained]
        then = [oracle[f"var/{step}/{i}"] for i in range(len(trained))]
        difference = max(map(tolerances, here, then, [start[name] for name in trained]))
        worst = max(worst, difference)
        iteration = str(info.iterations + step + 1)
        table.add_row(iteration, f"{here[0].flat[0]:.7f}", f"{then[0].flat[0]:.7f}", f"{difference:.2f}")
    Console().print(table)
    print("the same steps, to float32 rounding" if worst <= 1 else f"NOT the same steps: {worst:.1f} tolerances apart")
    return 0 if worst <= 1 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
