"""The driver and the modules of rules."""

from __future__ import annotations

import time

import tensorflow as tf

from optim.native import cuda, gpu, modules, nvrtc
from optim.native.compiling import BuildError
from optim.native.driver import Driver
from optim.native.generate import program_for
from tools.gpu.device import Device, named


def check_kernel(device: Device) -> tuple[bool, str]:
    """The driver, and how long a module takes to compile and to load: a user waits that long at the first use."""
    program = program_for(named("adam").make()._algorithm.updating_rule)
    assert program is not None
    source = cuda.source(program, "float32")
    is_packed, is_kept = modules.key(source) in modules.packed(), modules.at_hand(source) is not None
    where = "in the package" if is_packed else "in the cache" if is_kept else "compiled here"
    start = time.perf_counter()
    image = modules.image(source)
    notes = [f"Adam's module {where}: {len(image)} bytes, {time.perf_counter() - start:.2f} s"]
    try:
        compiler = nvrtc.find()
        start = time.perf_counter()
        compiler.ptx(source, modules.headers(), cuda.OPTIONS)
        notes.append(f"NVRTC {compiler.version[0]}.{compiler.version[1]} takes {time.perf_counter() - start:.2f} s")
    except BuildError as error:
        notes.append(str(error))
    if device.emulated:
        return b".entry" in image, "; ".join(notes)
    with tf.device(device.name):
        tf.Variable(tf.zeros([4])).numpy()  # from here on there is a context
    driver = Driver(gpu.DRIVER)
    for one in driver.gpus():
        start = time.perf_counter()
        modules.accepted(source, driver)
        notes.append(f"the driver loads it on sm_{one.capability} in {(time.perf_counter() - start) / 2:.3f} s")
    reason = gpu.why_not(program, "float32")
    details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0])
    notes.append(f"{details.get('device_name', 'a GPU')}, CUDA driver {driver.version()}")
    return not reason, "; ".join([*notes, *([reason] if reason else [])])
