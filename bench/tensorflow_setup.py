"""What the TensorFlow peers share: threads, devices, variables and gradients, whole or on a DTensor mesh.

Runs in workers only; TensorFlow is imported inside the functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench.case import parameter
from bench.peer import Session

if TYPE_CHECKING:
    import numpy as np

    from bench.case import Case


def start(case: Case) -> Any:
    """TensorFlow with the case's threads and, on CPU, one logical device per mesh device."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(case.threads)
    tf.config.threading.set_inter_op_parallelism_threads(case.threads)
    if case.device == "cpu":
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * case.mesh.devices
        tf.config.set_logical_device_configuration(cpu, logical)
    return tf


def place_on(case: Case) -> str:
    return f"{case.device.upper()}:0"


def whole_session(case: Case, apply: Callable[[list[Any], list[Any]], Any], variables: list[Any]) -> Session:
    """A session of variables on one device; `apply(gradients, variables)` makes one step."""
    import tensorflow as tf

    def place(index: int, array: np.ndarray) -> Any:
        with tf.device(place_on(case)):
            return tf.constant(array)

    return Session(
        place=place,
        apply=lambda gradients: apply(gradients, variables),
        wait=tf.test.experimental.sync_devices,
        read=lambda index: variables[index].numpy(),
    )


def whole_variables(case: Case) -> list[Any]:
    import tensorflow as tf

    with tf.device(place_on(case)):
        return [
            tf.Variable(parameter(case, i), name=tensor.name.replace("/", "_")) for i, tensor in enumerate(case.tensors)
        ]


def make_mesh(case: Case) -> Any:
    from tensorflow.experimental import dtensor

    devices = [f"{case.device.upper()}:{i}" for i in range(case.mesh.devices)]
    return dtensor.create_mesh(list(case.mesh.axes), devices=devices)


def mesh_session(case: Case, mesh: Any, make_apply: Callable[[list[Any]], Callable[[list[Any]], Any]]) -> Session:
    """A session of DVariables laid out by the case; `make_apply(variables)` gives the function of one step."""
    import numpy as np
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    layouts = [
        dtensor.Layout([axis or dtensor.UNSHARDED for axis in sharding.axes], mesh) for sharding in case.shardings
    ]

    def place(index: int, array: np.ndarray) -> Any:
        # Packed from shards: a relayout would hold the whole tensor on every device. Copied: TensorFlow may keep
        # using numpy's memory, and two devices must not update the same one.
        parts = []
        for device, shard in zip(mesh.local_devices(), shards(case, index), strict=True):
            with tf.device(device):
                parts.append(tf.constant(np.array(array[shard])))
        return dtensor.pack(parts, layouts[index])

    variables = [
        dtensor.DVariable(place(i, parameter(case, i)), name=tensor.name.replace("/", "_"))
        for i, tensor in enumerate(case.tensors)
    ]

    def read(index: int) -> np.ndarray:
        parts = [part.numpy() for part in dtensor.unpack(variables[index].read_value())]
        return assemble(case, index, parts)

    return Session(place=place, apply=make_apply(variables), wait=barrier(mesh), read=read)


def shards(case: Case, index: int) -> list[tuple[slice, ...]]:
    """The part of tensor number `index` that each device holds, in the order of the mesh."""
    import numpy as np

    tensor, layout = case.tensors[index], case.shardings[index]
    names = [name for name, _ in case.mesh.axes]
    sizes = [size for _, size in case.mesh.axes]
    found = []
    for coordinates in np.ndindex(*sizes):
        at = {name: (place, size) for name, place, size in zip(names, coordinates, sizes, strict=True)}
        cuts = [at[axis] if axis else (0, 1) for axis in layout.axes]
        found.append(
            tuple(
                slice(total * place // parts, total * (place + 1) // parts)
                for total, (place, parts) in zip(tensor.shape, cuts, strict=True)
            )
        )
    return found


def assemble(case: Case, index: int, parts: list[np.ndarray]) -> np.ndarray:
    """The whole tensor from the devices' parts; NaN where replicas differ, which no check lets pass."""
    import numpy as np

    whole = np.full(case.tensors[index].shape, np.nan, dtype=np.float32)
    written = np.zeros(whole.shape, dtype=bool)
    for shard, part in zip(shards(case, index), parts, strict=True):
        same = ~written[shard] | (whole[shard] == part)
        whole[shard] = np.where(same, part, np.nan)
        written[shard] = True
    return whole


def barrier(mesh: Any) -> Callable[[], None]:
    """Waits for every device of a mesh.

    DTensor runs asynchronously, on CPUs too, each device through a queue in order. A read of one replicated
    scalar joins every queue, so its values arrive when all earlier work is done. A read of a local handle
    would not wait.
    """
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    zero = dtensor.copy_to_mesh(tf.constant(0.0), dtensor.Layout.replicated(mesh, rank=0))
    scalar = dtensor.DVariable(zero)

    def wait() -> None:
        for part in dtensor.unpack(scalar.read_value()):
            part.numpy()

    return wait
