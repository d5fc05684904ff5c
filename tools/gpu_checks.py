"""The checks of `gpu_check.py`: `python tools/gpu_checks.py FD [--emulated] NAME...` runs some, one after the other.

Each tells the pipe FD when it begins and how it ended. pytest is not needed.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
if "tests" not in sys.modules:  # a package in site-packages may have the same name
    sys.modules["tests"] = types.ModuleType("tests")
    sys.modules["tests"].__path__ = [str(ROOT / "tests")]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
os.environ["DTOPT_KERNELS"] = "build"
os.environ["DTOPT_GPU"] = "on"

import numpy as np  # noqa: E402 - the environment is read when TensorFlow is imported
import tensorflow as tf  # noqa: E402

import optim  # noqa: E402
from optim.native import cuda, gpu, library, modules, nvrtc  # noqa: E402
from optim.native.compiling import BuildError  # noqa: E402
from optim.native.driver import Driver  # noqa: E402
from optim.native.generate import program_for  # noqa: E402
from tests import emulated_gpu  # noqa: E402
from tests.test_optim.cases import FEW, FIRST, OPTIONS, RATE, ROWS, VARIANTS, Case  # noqa: E402
from tests.test_optim.support import Trained, dense_gradients, scaled_values, start_values, trained  # noqa: E402
from tools import gpu_mesh_checks  # noqa: E402

CALLS = 5
MANY_STEPS, FREED_STEPS = 2000, 1000
INEXACT = ("Power(", "std::exp(", "std::log(", "std::tanh(")
"""Functions that no two devices round in the same way, as generated code calls them."""
NORMS = ("clipnorm", "global_clipnorm")
"""Options whose sums TensorFlow adds up in another order on another device."""
CLOSE = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 1e-2, "float16": 1e-3}
"""How far such results may be from the CPU's, in parts of the largest movement."""
ROUNDING = {"float32": float(np.finfo(np.float32).eps), "float64": 1e-12}
"""Of one operation, by the dtype of slots: ten of a variable, and twenty of a slot, may add up."""
OF_OPS = 10
"""Times as much for TensorFlow's ops on a GPU, some of which approximate roots and quotients."""


class NothingToCheckError(Exception):
    """Why a check was skipped."""


class Replaced:
    """What pytest's monkeypatch does, without pytest."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def setattr(self, owner: Any, name: str, value: Any) -> None:
        self._before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def undo(self) -> None:
        while self._before:
            setattr(*self._before.pop())


class Device:
    """Where the checks run: a GPU, or a CPU with emulated launches."""

    def __init__(self, emulated: bool):
        self.emulated = emulated
        self.name = "CPU:0" if emulated else "GPU:0"
        self.elements = 1 << 12 if emulated else 1 << 20
        """Of a variable that is large enough for a step to be under way while Python goes on."""
        status = library.status()
        if status.path is None:
            raise BuildError(f"dtopt's kernel of the CPU, which others are compared with, is missing: {status.reason}")
        self._gpus = emulated_gpu.all_kernels() if emulated else None

    @contextmanager
    def launching(self, *cases: Case) -> Iterator[None]:
        """Launch the kernels of some cases."""
        if self._gpus is None:
            yield
            return
        for case in cases:
            for program, module in emulated_gpu.modules(case.make()._algorithm.updating_rule).items():
                for dtype in cuda.TYPES:
                    self._gpus.add(program, dtype, module)
        emulated_gpu.library("fake_cuda").fake_reset(12010, -1)
        replaced = Replaced()
        try:
            emulated_gpu.pretend(self._gpus, replaced)
            yield
        finally:
            replaced.undo()
            self._gpus.close()

    def why_not_used(self, optimizer: Any) -> str:
        """Why variables on the device are not updated by a kernel; empty if they are."""
        reason = str(optimizer.executor_report().why_not_native)
        if self.emulated and not reason and "launch" not in emulated_gpu.driver_calls():
            return "nothing was launched"
        return reason


def programs_of(case: Case) -> set[Any]:
    """What updates the variables of a case, by their ranks; None for what nothing of dtopt's updates."""
    return {program_for(case.make()._algorithm.updating_rule, np.ndim(value)) for value in start_values().values()}


def has_kernel(case: Case) -> bool:
    """Whether there is a kernel of a case's rule."""
    return all(program is not None for program in programs_of(case))


def is_exact(case: Case) -> bool:
    """Whether a case gives the same bits on every device."""
    code = "".join(program.code for program in programs_of(case) if program is not None)
    is_ieee = not any(function in code for function in INEXACT)
    return is_ieee and has_kernel(case) and not any(case.arguments.get(option) for option in NORMS)


def named(name: str) -> Case:
    """The case of that name in the conformance table."""
    return next(case for case in ROWS if case.name == name)


def rounded(values: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """Values as a dtype holds them, in float64."""
    return {name: np.asarray(tf.cast(tf.cast(tf.constant(v), dtype), tf.float64)) for name, v in values.items()}


def calls_of(case: Case, dtype: str) -> tuple[list[dict[str, np.ndarray]], Any]:
    """The gradients of some calls, under a loss scale with some that are not finite, and the float64 reference."""
    reference = case.reference(rounded(start_values(), dtype))
    calls = []
    accumulated = case.loop.gradient_accumulation_steps
    for call in range(CALLS * accumulated):
        values = dense_gradients(call)
        if reference.scale is not None:
            values = scaled_values(values, reference.scale, call, accumulated)
        calls.append(rounded(values, dtype))
        reference.apply(calls[-1])
    return calls, reference


def away_from_the_reference(found: Trained, reference: Any, epsilon: float) -> str:
    """What is wrong with variables and slots by the float64 reference; empty if nothing is."""
    start = start_values()
    for name, variable in found.variables.items():
        expected, value = reference.values[name], np.asarray(tf.cast(variable, tf.float64))
        moved = np.max(np.abs(expected - start[name]), initial=0)
        if not np.all(np.abs(value - expected) <= 10 * epsilon * (np.max(np.abs(expected), initial=0) + moved)):
            return f"{name} is {np.max(np.abs(value - expected)):.3g} away from the reference"
        for slot, wanted in reference.slots[name].items():
            value = np.asarray(tf.cast(found.optimizer.get_slot(variable, slot), tf.float64))
            scale = np.max(np.abs(wanted), initial=0)
            if slot == "linear":  # a sum of differences of √n / lr, times the variable
                roots = np.max(reference.slots[name]["accumulator"], initial=0) ** 0.5
                scale = max(scale, roots / RATE * np.max(np.abs(start[name]), initial=0))
            if not np.all(np.abs(value - wanted) <= 20 * epsilon * (np.abs(wanted) + scale)):
                return f"{slot} of {name} is {np.max(np.abs(value - wanted)):.3g} away from the reference"
    steps = int(found.optimizer.iterations.numpy())
    return "" if steps == reference.iterations else f"{steps} steps were counted, not {reference.iterations}"


def away_from_the_cpu(case: Case, found: Trained, expected: Trained, dtype: str) -> str:
    """What is wrong with the bits of the CPU's kernel; empty if nothing is."""
    ours, theirs = found.arrays(), expected.arrays()
    if all(a.tobytes() == b.tobytes() for a, b in zip(ours, theirs, strict=True)):
        return ""
    start = list(start_values().values())
    moved = max(float(np.max(np.abs(b - a))) for a, b in zip(start, theirs[: len(start)], strict=True))
    worst = max(float(np.max(np.abs(a - b), initial=0)) for a, b in zip(ours, theirs, strict=True))
    if not is_exact(case) and worst <= CLOSE[dtype] * max(moved, 1.0):
        return ""
    return f"differs from the CPU by {worst:.3g}, where variables moved by {moved:.3g}"


def problem_of(device: Device, case: Case, dtype: str, in_function: bool, **more: Any) -> str:
    """What is wrong with a case on the device; empty if nothing is."""
    calls, reference = calls_of(case, dtype)
    start = rounded(start_values(), dtype)
    expected = trained(case.make(**more), start, calls, dtype, in_function, "CPU:0")
    with device.launching(case):
        found = trained(case.make(**more), start, calls, dtype, in_function, device.name)
        reason = device.why_not_used(found.optimizer)
    if reason and has_kernel(case):
        return f"not updated by the kernel: {reason}"
    if dtype in ROUNDING:
        epsilon = ROUNDING[dtype] * (1 if has_kernel(case) else OF_OPS)
        if problem := away_from_the_reference(found, reference, epsilon):
            return problem
    return away_from_the_cpu(case, found, expected, dtype)


Run = tuple[Case, str, bool, dict[str, Any]]


def check_runs(device: Device, runs: Sequence[Run]) -> tuple[bool, str]:
    """Compare runs with the reference and with the CPU's kernel. An error of one leaves the others alone."""
    wrong = []
    for case, dtype, in_function, more in runs:
        try:
            problem = problem_of(device, case, dtype, in_function, **more)
        except Exception as error:  # whatever TensorFlow raises is the result of this run
            problem = first_line(error)
        if problem:
            how = "in a function" if in_function else "eagerly"
            wrong.append(f"{case.name} in {dtype}, {how}{', master copies' if more else ''}: {problem}")
            print("  ", wrong[-1], file=sys.stderr, flush=True)
    without = sorted({case.optimizer for case, *_ in runs if not has_kernel(case)})
    text = f"{len(runs) - len(wrong)} of {len(runs)} runs agree with float64 and with the CPU"
    text += f" (no GPU kernel: {', '.join(without)})" if without else ""
    return not wrong, f"{text}; {wrong[0]}" if wrong else text


def check_rules_eagerly(device: Device) -> tuple[bool, str]:
    return check_runs(device, [(case, "float32", False, {}) for case in VARIANTS])


def check_rules_in_functions(device: Device) -> tuple[bool, str]:
    return check_runs(device, [(case, "float32", True, {}) for case in VARIANTS])


def check_options(device: Device) -> tuple[bool, str]:
    return check_runs(device, [(case, "float32", how, {}) for case in OPTIONS for how in (False, True)])


def check_dtypes(device: Device) -> tuple[bool, str]:
    few = [case for case in FIRST.values() if has_kernel(case)]
    runs: list[Run] = [(case, dtype, False, {}) for case in few for dtype in ("float64", "bfloat16", "float16")]
    runs += [(case, dtype, False, {"master_copies": True}) for case in few for dtype in ("bfloat16", "float16")]
    return check_runs(device, runs)


def check_kernel(device: Device) -> tuple[bool, str]:
    """The driver, and how long a module takes to compile and to load: a user waits that long at the first use."""
    program = program_for(named("adam").make()._algorithm.updating_rule)
    assert program is not None
    source = cuda.source(program, "float32")
    is_packed, is_kept = modules.key(source) in modules.packed(), modules.at_hand(source) is not None
    where = "in the package" if is_packed else "in the cache" if is_kept else "compiled here"
    start = time.perf_counter()
    image = modules.image(source)
    found = [f"Adam's module {where}: {len(image)} bytes, {time.perf_counter() - start:.2f} s"]
    try:
        compiler = nvrtc.find()
        start = time.perf_counter()
        compiler.ptx(source, modules.headers(), cuda.OPTIONS)
        found.append(f"NVRTC {compiler.version[0]}.{compiler.version[1]} takes {time.perf_counter() - start:.2f} s")
    except BuildError as error:
        found.append(str(error))
    if device.emulated:
        return b".entry" in image, "; ".join(found)
    with tf.device(device.name):
        tf.Variable(tf.zeros([4])).numpy()  # from here on there is a context
    driver = Driver(gpu.DRIVER)
    for one in driver.gpus():
        start = time.perf_counter()
        modules.accepted(source, driver)
        found.append(f"the driver loads it on sm_{one.capability} in {(time.perf_counter() - start) / 2:.3f} s")
    reason = gpu.why_not(program, "float32")
    details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0])
    found.append(f"{details.get('device_name', 'a GPU')}, CUDA driver {driver.version()}")
    return not reason, "; ".join([*found, *([reason] if reason else [])])


def check_buffers(device: Device) -> tuple[bool, str]:
    """A value that was read stays; what is assigned counts; a gradient may be freed once the call has returned."""
    adam, size = named("adam"), [device.elements]
    steps = FREED_STEPS
    reference = adam.reference({"w": np.zeros(1)})
    with device.launching(adam), tf.device(device.name):
        variable, optimizer = tf.Variable(tf.zeros(size)), adam.make()
        for k in range(steps):
            if k == 1:
                before = variable.read_value()
                kept = before.numpy()
            optimizer.apply_gradients([(tf.fill(size, float(k % 7 + 1)), variable)])  # freed right after
            tf.fill(size, float("nan"))  # may get its memory
            reference.apply({"w": np.full(1, k % 7 + 1)})
        if before.numpy().tobytes() != kept.tobytes():
            return False, "a value that was read before a step has changed"
        spread = float(tf.reduce_max(variable) - tf.reduce_min(variable))
        off = abs(float(variable[0]) - float(reference.values["w"][0]))
        if not (spread == 0.0 and off <= 1e-4 * abs(float(reference.values["w"][0]))):
            return (
                False,
                f"after {steps} steps elements differ by {spread} and are {off} off: a gradient was overwritten",
            )
        if reason := device.why_not_used(optimizer):
            return False, f"not updated by the kernel: {reason}"
        variable.assign(tf.fill(size, 5.0))
        optimizer.apply_gradients([(tf.zeros(size), variable)])
        now = float(variable[0])
    if not 4.0 < now < 5.0 + 1e-6:
        return False, f"after an assignment of 5 a step gave {now}"
    return True, f"{steps} steps with gradients freed at once; a value that was read stays; assignments count"


def check_loss_scale(device: Device) -> tuple[bool, str]:
    """A step whose gradients are not finite changes nothing but the scale, and later ones go on."""
    adam = named("adam")
    with device.launching(adam), tf.device(device.name):
        for in_function in (False, True):
            variables = [tf.Variable(tf.ones([300], tf.float16)), tf.Variable(tf.ones([7, 5], tf.float16))]
            optimizer = adam.make(loss_scale="dynamic", master_copies=True)

            def step(value: Any, variables: Any = variables, optimizer: Any = optimizer) -> None:
                optimizer.apply_gradients([(tf.cast(tf.fill(v.shape, value), v.dtype), v) for v in variables])

            run = tf.function(step) if in_function else step
            seen = []
            for value in (2.0**10, float("inf"), float("nan"), 2.0**10):
                run(tf.constant(value))
                seen.append((variables[1].numpy().tobytes(), int(optimizer.iterations.numpy())))
            if not (seen[0] == seen[1] == seen[2] and seen[3][1] == 2 and seen[3][0] != seen[2][0]):
                return (
                    False,
                    f"{'in a function' if in_function else 'eagerly'} a step was not skipped, or the next one was",
                )
            if reason := device.why_not_used(optimizer):
                return False, f"not updated by the kernel: {reason}"
            if float(optimizer.current_loss_scale) != 2.0**13:
                return False, f"the scale is {float(optimizer.current_loss_scale)}, not a quarter of 32768"
    return True, "steps that are not finite change nothing, eagerly and in a function"


def check_rows(device: Device) -> tuple[bool, str]:
    """Gradients of some rows of a table, with and without `lazy_rows` and `repeated_rows`, against the CPU."""
    adam, wrong = named("adam"), []
    start = np.linspace(-1, 1, 60, dtype=np.float32).reshape(20, 3)
    lazy, squared = {"lazy_rows": ["^table$"]}, {"repeated_rows": ["clip", "square"]}
    every: Sequence[dict[str, Any]] = ({}, lazy, squared, {**lazy, **squared})
    for options, in_function in itertools.product(every, (False, True)):
        found = []
        for place in ("CPU:0", device.name):
            with device.launching(adam), tf.device(place):
                table, optimizer = tf.Variable(start, name="table"), adam.make(**options)
                optimizer.build([table])

                def step(values: Any, rows: Any, table: Any = table, optimizer: Any = optimizer) -> None:
                    optimizer.apply_gradients([(tf.IndexedSlices(values, rows, tf.constant([20, 3])), table)])

                run = tf.function(step) if in_function else step
                for k in range(3):
                    run(tf.fill([4, 3], 0.5 + k), tf.constant([3, 3, 11, 7 + k]))
                found.append(table.numpy())
        off = float(np.max(np.abs(found[0] - found[1])))
        if not off <= 2e-6 or found[1].tobytes() == start.tobytes():
            how = "in a function" if in_function else "eagerly"
            wrong.append(f"{options or 'no option'}, {how}: {off:.3g} from the CPU")
    return not wrong, wrong[0] if wrong else "tables with some rows step as on the CPU"


def check_replicas(device: Device) -> tuple[bool, str]:
    """A strategy, whose replicas launch kernels."""
    strategy = tf.distribute.MirroredStrategy([device.name])
    wrong, cases = [], [case for case in FIRST.values() if case.optimizer in FEW]
    for case in cases:
        calls, reference = calls_of(case, "float32")
        with device.launching(case), strategy.scope():
            found = _in_replicas(case, strategy, rounded(start_values(), "float32"), calls)
            if reason := device.why_not_used(found.optimizer):
                wrong.append(f"{case.name} is not updated by the kernel: {reason}")
        off = max(
            float(np.max(np.abs(np.asarray(value, np.float64) - reference.values[name]), initial=0))
            for name, value in found.variables.items()
        )
        if not off <= 2e-5:
            wrong.append(f"{case.name}: {off:.3g} from the reference")
    return not wrong, wrong[0] if wrong else f"{len(cases)} optimizers under a strategy"


def _in_replicas(
    case: Case, strategy: Any, start: dict[str, np.ndarray], calls: Iterable[dict[str, np.ndarray]]
) -> Trained:
    variables = {name: tf.Variable(tf.constant(value, tf.float32), name=name) for name, value in start.items()}
    optimizer = case.make()
    optimizer.build(list(variables.values()))
    for call in calls:
        given = {name: tf.constant(value, tf.float32) for name, value in call.items()}

        def step(given: Any) -> None:
            optimizer.apply_gradients([(given[name], variable) for name, variable in variables.items()])

        strategy.run(step, args=(given,))
    return Trained({name: variable.numpy() for name, variable in variables.items()}, optimizer)


WAYS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("eagerly", {"run_eagerly": True}, "float32"),
    ("in a graph", {"jit_compile": False}, "float32"),
    ("with jit_compile", {"jit_compile": True}, "float32"),
    ("in a graph, mixed_float16", {"jit_compile": False}, "mixed_float16"),
    ("in a graph, mixed_bfloat16", {"jit_compile": False}, "mixed_bfloat16"),
    ("with jit_compile, mixed_bfloat16", {"jit_compile": True}, "mixed_bfloat16"),
)
"""How a model is fitted: a name, arguments of `compile`, and Keras's dtype policy."""


def check_fit(device: Device, name: str) -> tuple[bool, str]:
    """`fit` with our Adam against Keras's own, which computes eagerly on the same device."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise NothingToCheckError(f"{name} is not installed") from error
    wrong = []
    for how, arguments, policy in WAYS:
        try:
            problem = _problem_of_fit(device, module, arguments, policy)
        except Exception as error:  # whatever Keras raises is the result of this way
            problem = first_line(error)
        if problem:
            wrong.append(f"{how}: {problem}")
            print("  ", wrong[-1], file=sys.stderr, flush=True)
    text = f"{len(WAYS) - len(wrong)} of {len(WAYS)} ways of fit as with Keras's optimizer"
    return not wrong, "; ".join([text, *wrong[:1]])


def _problem_of_fit(device: Device, module: Any, arguments: dict[str, Any], policy: str) -> str:
    """What is wrong with a fit; empty if nothing is. XLA compiles a step without the kernel."""
    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    y = np.random.default_rng(1).normal(size=(32, 2)).astype(np.float32)
    inner = optim.Adam(0.01)
    found = []
    for optimizer, how in (
        (module.optimizers.Adam(0.01), {"run_eagerly": True}),
        (optim.for_keras(inner, module), arguments),
    ):
        module.utils.set_random_seed(3)
        layers = module.layers
        model = module.Sequential(
            [layers.Input((4,)), layers.Dense(8, "tanh", dtype=policy), layers.Dense(2, dtype=policy)]
        )
        start = [np.asarray(weight) for weight in model.get_weights()]
        model.compile(optimizer, module.losses.MeanSquaredError(), **how)
        with device.launching(named("adam")):
            model.fit(x, y, 8, 3, verbose=0, shuffle=False)
            reason = device.why_not_used(inner) if how is arguments and not arguments.get("jit_compile") else ""
        if reason:
            return f"the kernel is not used: {reason}"
        found.append([np.asarray(weight) for weight in model.get_weights()])
    moved = max(float(np.max(np.abs(a - b))) for a, b in zip(start, found[0], strict=True))
    off = max(float(np.max(np.abs(a - b))) for a, b in zip(*found, strict=True))
    allowed = (1e-3 if policy == "float32" else 0.1) * moved
    return "" if off <= allowed and moved > 0 else f"weights are {off:.3g} off, where they moved by {moved:.3g}"


def check_memory(device: Device) -> tuple[bool, str]:
    """No growth of device memory over many steps, eagerly and in a function."""
    if device.emulated:
        raise NothingToCheckError("TensorFlow does not count the memory of CPUs")
    adam, grown = named("adam"), []
    for in_function in (False, True):
        with device.launching(adam), tf.device(device.name):
            variables = [tf.Variable(tf.zeros([512, 64])) for _ in range(20)]
            gradients = [tf.ones([512, 64]) for _ in variables]
            optimizer = adam.make(global_clipnorm=1.0)
            optimizer.build(variables)

            def step(variables: Any = variables, gradients: Any = gradients, optimizer: Any = optimizer) -> None:
                optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

            run = tf.function(step) if in_function else step

            def used(count: int, run: Any = run, variables: Any = variables) -> int:
                for _ in range(count):
                    run()
                variables[0].numpy()
                return int(tf.config.experimental.get_memory_info(device.name)["current"])

            before = used(10)
            grown.append(used(MANY_STEPS) - before)
    peak = tf.config.experimental.get_memory_info(device.name)["peak"]
    text = f"{grown[0]} and {grown[1]} bytes more after {MANY_STEPS} steps, eagerly and in a function; peak {peak}"
    return max(grown) < MANY_STEPS, text


CHECKS: dict[str, Callable[[Device], tuple[bool, str]]] = {
    "kernel": check_kernel,
    "rules eagerly": check_rules_eagerly,
    "rules in functions": check_rules_in_functions,
    "options": check_options,
    "dtypes": check_dtypes,
    "buffers": check_buffers,
    "loss scale": check_loss_scale,
    "rows": check_rows,
    "meshes": gpu_mesh_checks.check,
    "replicas": check_replicas,
    "fit of keras": lambda device: check_fit(device, "keras"),
    "fit of tf_keras": lambda device: check_fit(device, "tf_keras"),
    "memory": check_memory,
}


def first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def run(name: str, device: Callable[[], Device]) -> dict[str, Any]:
    """Run one check. An error of any kind is its result."""
    start = time.perf_counter()
    try:
        ok, result = CHECKS[name](device())
        status = "ok" if ok else "failed"
    except NothingToCheckError as error:
        status, result = "skipped", str(error)
    except Exception as error:  # the other checks are to run, too
        traceback.print_exc()
        status, result = "failed", first_line(error)
    return {"status": status, "result": result, "seconds": time.perf_counter() - start}


def main(arguments: Sequence[str]) -> int:
    pipe, *rest = arguments
    emulated = "--emulated" in rest
    names = [word for word in rest if word != "--emulated"]
    with os.fdopen(int(pipe), "w", buffering=1) as told:
        found = [] if emulated else tf.config.list_physical_devices("GPU")
        told.write(json.dumps({"tensorflow": tf.version.VERSION, "gpus": len(found)}) + "\n")
        if not emulated and not found:
            return 4
        if "meshes" in names:
            gpu_mesh_checks.divide(emulated)
        tf.config.experimental.enable_tensor_float_32_execution(False)  # products of 10 bits are no reference
        devices: list[Device] = []

        def device() -> Device:
            if not devices:
                devices.append(Device(emulated))
            return devices[0]

        for name in names:
            told.write(json.dumps({"begins": name}) + "\n")
            told.write(json.dumps({"ends": name, **run(name, device)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main(sys.argv[1:]))  # frameworks may hang while they shut down; everything is told by now
