"""Shared code of the TensorFlow peers: threads, devices, variables and gradients, whole or on a DTensor mesh.

Runs only in workers; TensorFlow is imported inside the functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench.cases import in_situ
from bench.cases.sparse import Rows
from bench.cases.values import parameter
from bench.measuring import events
from bench.measuring.forking import imported_tensorflow
from bench.peers.peer import Session
from optim.errors import UnsupportedError

if TYPE_CHECKING:
    import numpy as np

    from bench.cases.case import Case


def start(case: Case) -> Any:
    """Start TensorFlow with the case's threads and, on CPU, one logical device per mesh device; initialise TPUs."""
    tf = imported_tensorflow()
    tf.config.threading.set_intra_op_parallelism_threads(case.threads)
    tf.config.threading.set_inter_op_parallelism_threads(case.threads)
    if case.device == "cpu":
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * case.mesh.devices
        tf.config.set_logical_device_configuration(cpu, logical)
    elif case.device == "gpu" and not tf.config.list_physical_devices("GPU"):
        raise UnsupportedError("TensorFlow finds no GPU: pip install 'tensorflow[and-cuda]'")
    elif case.device == "tpu":
        from tensorflow.experimental import dtensor

        dtensor.initialize_accelerator_system("TPU")
    return tf


def place_on(case: Case) -> str:
    return f"{case.device.upper()}:0"


def constant(case: Case, array: np.ndarray) -> Any:
    """Return a tensor in the dtype of the case, on the current device."""
    import tensorflow as tf

    return tf.cast(tf.constant(array), case.options.dtype)


def to_numpy(tensor: Any) -> np.ndarray:
    """Return float32 numbers, whatever the dtype."""
    import tensorflow as tf

    return tf.cast(tensor, tf.float32).numpy()


def first_row(tensor: Any) -> np.ndarray:
    """Return the first row of a tensor or variable without copying all of it; a scalar is returned whole."""
    import tensorflow as tf

    variable = getattr(tensor, "_value", tensor)  # Keras 3 wraps TensorFlow's
    return to_numpy(tf.gather(variable, [0]) if len(variable.shape) else tf.convert_to_tensor(variable))


def device_memory(case: Case) -> Callable[[], int | None] | None:
    """Return the peak bytes of the fullest device, if TensorFlow counts them."""
    import tensorflow as tf

    if case.device == "cpu":
        return None
    names = [device.name for device in tf.config.list_logical_devices(case.device.upper())]
    return lambda: max(tf.config.experimental.get_memory_info(name)["peak"] for name in names)


def timing(case: Case) -> dict[str, Any]:
    """Return the events of TensorFlow's stream on a GPU, or why it has no events, as arguments of a Session."""
    if case.device != "gpu":
        return {}
    os.environ.setdefault("DTOPT_KERNELS", "build")
    from optim.native import gpu
    from optim.native.compiling import BuildError

    try:
        return {"events": events.of_stream(gpu.stream(place_on(case)), "CUDA events on TensorFlow's stream")}
    except BuildError as error:
        return {"no_events": str(error)}


def whole_session(
    case: Case,
    apply: Callable[[list[Any], list[Any]], Any],
    variables: list[Any],
    averages: Callable[[], list[Any]] | None = None,
) -> Session:
    """Return a session of variables on one device; `apply(gradients, variables)` gets the gradients of one call."""
    import tensorflow as tf

    def place(index: int, gradient: np.ndarray | Rows) -> Any:
        with tf.device(place_on(case)):
            if isinstance(gradient, Rows):
                indices = tf.constant(gradient.indices)
                return tf.IndexedSlices(constant(case, gradient.values), indices, tf.constant(gradient.shape))
            return constant(case, gradient)

    def batch(array: np.ndarray) -> Any:
        with tf.device(place_on(case)):
            return constant(case, array)

    return Session(
        place=place,
        apply=lambda gradients: apply(gradients, variables),
        wait=tf.test.experimental.sync_devices,
        read=lambda index: to_numpy(tf.convert_to_tensor(variables[index])),
        read_average=(lambda index: to_numpy(tf.convert_to_tensor(averages()[index]))) if averages else None,
        compute=_compute(case, variables, batch),
        device_memory=device_memory(case),
        glance=lambda index: first_row(variables[index]),
        **timing(case),
    )


def whole_variables(case: Case) -> list[Any]:
    import tensorflow as tf

    with tf.device(place_on(case)):
        return [
            tf.Variable(constant(case, parameter(case, i)), name=tensor.name.replace("/", "_"))
            for i, tensor in enumerate(case.tensors)
        ]


def make_mesh(case: Case) -> Any:
    from tensorflow.experimental import dtensor

    devices = [f"{case.device.upper()}:{i}" for i in range(case.mesh.devices)]
    return dtensor.create_mesh(list(case.mesh.axes), devices=devices)


def mesh_session(
    case: Case,
    mesh: Any,
    make_apply: Callable[[list[Any]], Callable[[list[Any]], Any]],
    averages: Callable[[list[Any]], list[Any]] | None = None,
) -> Session:
    """Return a session of DVariables laid out by the case.

    `make_apply(variables)` returns the function of one call, and `averages(variables)` their moving averages.
    """
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    layouts = [
        dtensor.Layout([axis or dtensor.UNSHARDED for axis in sharding.axes], mesh) for sharding in case.shardings
    ]

    def replicated(tensor: Any) -> Any:
        return dtensor.copy_to_mesh(tensor, replicated_layout(tensor.shape.rank))

    def place(index: int, gradient: np.ndarray | Rows) -> Any:
        if isinstance(gradient, Rows):
            indices = replicated(tf.constant(gradient.indices))
            return tf.IndexedSlices(replicated(constant(case, gradient.values)), indices)
        return dtensor.pack(_parts(case, mesh, index, gradient), layouts[index])

    variables = [
        dtensor.DVariable(place(i, parameter(case, i)), name=tensor.name.replace("/", "_"))
        for i, tensor in enumerate(case.tensors)
    ]

    def read(index: int) -> np.ndarray:
        return assemble(case, index, [to_numpy(part) for part in dtensor.unpack(variables[index].read_value())])

    def read_average(index: int) -> np.ndarray:
        assert averages is not None
        average = averages(variables)[index].read_value()  # may be sharded differently from its variable
        return to_numpy(dtensor.unpack(dtensor.relayout(average, replicated_layout(average.shape.rank)))[0])

    def replicated_layout(rank: int) -> Any:
        return dtensor.Layout.replicated(mesh, rank)

    return Session(
        place=place,
        apply=make_apply(variables),
        wait=barrier(mesh),
        read=read,
        read_average=read_average if averages else None,
        compute=_compute(case, variables, lambda array: replicated(constant(case, array))),
        device_memory=device_memory(case),
        glance=lambda index: [first_row(part) for part in dtensor.unpack(variables[index].read_value())],
        no_events="" if case.device == "cpu" else "DTensor launches steps after their call has returned",
    )


def _parts(case: Case, mesh: Any, index: int, array: np.ndarray) -> list[Any]:
    """Return each device's shard, in the order of the mesh.

    From shards, because a relayout would hold the whole tensor on every device. Copied, because TensorFlow may keep
    using numpy's memory, and two devices must not update the same one.
    """
    import numpy as np
    import tensorflow as tf

    parts = []
    for device, shard in zip(mesh.local_devices(), shards(case, index), strict=True):
        with tf.device(device):
            parts.append(constant(case, np.array(array[shard])))
    return parts


def _compute(case: Case, variables: list[Any], batch: Callable[[np.ndarray], Any]) -> Callable[[], list[Any]] | None:
    """Return a forward and backward pass in a tf.function, if the case wants one."""
    import tensorflow as tf

    if not case.options.in_situ:
        return None
    inputs = [None if array is None else batch(array) for array in in_situ.inputs(case)]

    sources = [getattr(variable, "_value", variable) for variable in variables]  # Keras 3 wraps TensorFlow's

    @tf.function
    def gradients(batches: list[Any]) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = in_situ.loss(sources, batches, lambda x: tf.reduce_mean(tf.square(x)))
        return tape.gradient(loss, sources)

    return lambda: gradients(inputs)


def shards(case: Case, index: int) -> list[tuple[slice, ...]]:
    """Return the part of tensor number `index` on each device, in the order of the mesh."""
    import numpy as np

    tensor, layout = case.tensors[index], case.shardings[index]
    names = [name for name, _ in case.mesh.axes]
    sizes = [size for _, size in case.mesh.axes]
    pieces = []
    for coordinates in np.ndindex(*sizes):
        at = {name: (place, size) for name, place, size in zip(names, coordinates, sizes, strict=True)}
        cuts = [at[axis] if axis else (0, 1) for axis in layout.axes]
        pieces.append(
            tuple(
                slice(total * place // parts, total * (place + 1) // parts)
                for total, (place, parts) in zip(tensor.shape, cuts, strict=True)
            )
        )
    return pieces


def assemble(case: Case, index: int, parts: list[np.ndarray]) -> np.ndarray:
    """Return the whole tensor from the devices' parts; NaN if replicas differ, which fails every check."""
    import numpy as np

    whole = np.full(case.tensors[index].shape, np.nan, dtype=np.float32)
    written = np.zeros(whole.shape, dtype=bool)
    for shard, part in zip(shards(case, index), parts, strict=True):
        same = ~written[shard] | (whole[shard] == part)
        whole[shard] = np.where(same, part, np.nan)
        written[shard] = True
    return whole


def barrier(mesh: Any) -> Callable[[], None]:
    """Wait for every device of a mesh.

    DTensor runs asynchronously, on CPUs too, each device through a queue in order. A read of one replicated scalar
    joins every queue, so its values arrive when all earlier work is done. A read of a local handle would not wait.
    """
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    zero = dtensor.copy_to_mesh(tf.constant(0.0), dtensor.Layout.replicated(mesh, rank=0))
    scalar = dtensor.DVariable(zero)

    def wait() -> None:
        for part in dtensor.unpack(scalar.read_value()):
            part.numpy()

    return wait
