"""Whether the kernel is used, and why not.

`mode` describes the environment variable DTOPT_KERNELS.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from optim.bits import codes
from optim.native import build, direct, generate, spmd
from optim.native.compiling import BuildError, Recipe
from optim.native.mode import VARIABLE, mode
from optim.native.providing import Provider

BASICS = ("average", "squares", "widen", "narrow", "add", "add_square", "add_abs")
PACKING = {"round": tf.bfloat16, "unpack": tf.float32, "pack": tf.float32}
"""What else is needed where state is in few bits, and the dtype that it is for."""
DTYPES = (tf.float32, tf.float64, tf.bfloat16, tf.float16)


@dataclass(frozen=True)
class KernelStatus:
    """Whether steps on CPU devices can use dtopt's own kernel; if not, `reason` explains why and what to do.

    `path` is the library of its ops, `rules` how many libraries of single rules were loaded in addition to the built-in
    ones.
    """

    available: bool
    reason: str
    path: Path | None = None
    rules: int = 0


class _Kernels:
    """The libraries that this process has loaded."""

    def __init__(self) -> None:
        self.ops: Any = None
        """The module of TensorFlow's wrappers."""
        self.path: Path | None = None
        self.register: Any = None
        self.known: set[str] = set()
        """Programs that ops find."""
        self.wanted: dict[str, generate.Program] = {}
        """Programs that steps have requested, by name."""
        self.provider = Provider("TensorFlow")
        self.rules = 0
        self.ready = KernelStatus(True, "")
        """The result of `status`."""


_kernels = _Kernels()


def status() -> KernelStatus:
    """Return the state of the kernel under DTOPT_KERNELS, loading (or compiling) it at the first call.

    Raises:
      HyperparameterError: DTOPT_KERNELS has another value.
    """
    if mode() == "off":
        return KernelStatus(False, f"{VARIABLE}=off")
    if _kernels.ops is None:
        with _kernels.provider.lock:
            reason = _provide(build.needed()) if _kernels.ops is None else ""
        if reason:
            return KernelStatus(False, reason)
    if _kernels.ready.rules != _kernels.rules or _kernels.ready.path is not _kernels.path:
        _kernels.ready = KernelStatus(True, "", _kernels.path, _kernels.rules)
    return _kernels.ready


def build_kernels() -> KernelStatus:
    """Compile dtopt's own update kernel for this machine now, which takes about half a minute, and use it from now on.

    It also compiles kernels for your own rules that a step or `executor_report()` has requested. You only need this if
    the package has no kernel for the installed TensorFlow, or for your rule; and it is compiled in the background
    anyway. The result is stored in `$XDG_CACHE_HOME/dtopt/kernels` (`~/.cache/dtopt/kernels`), where later processes
    find it.

    It needs a C++ compiler (`CXX`, g++, c++ or clang++) and the headers that TensorFlow includes. If they are missing
    it raises nothing: the status shows what is missing, and steps use TensorFlow's kernels.
    """
    with _kernels.provider.lock:
        _kernels.provider.forget_failures()
        reason = _provide(build.needed(), waits=True) if _kernels.ops is None else ""
        missing = [p for name, p in _kernels.wanted.items() if name not in _kernels.known] if not reason else []
        for program in missing:
            reason = reason or _provide([build.rule(program)], waits=True, program=program)
    return KernelStatus(not reason, reason, _kernels.path, _kernels.rules)


def want(program: generate.Program) -> None:
    """Remember that `build_kernels` must wait for the program."""
    _kernels.wanted.setdefault(program.name, program)


def ops() -> Any:
    """Return the ops, as functions in Python; only if `status` shows that they are available."""
    return _kernels.ops


def why_no_program(program: generate.Program) -> str:
    """Explain why the ops do not have a rule yet; empty if they do. A missing one is compiled, by the mode."""
    if program.name in _kernels.known:
        return ""
    with _kernels.provider.lock:
        return "" if program.name in _kernels.known else _provide([build.rule(program)], program=program)


def _provide(recipes: Sequence[Recipe], waits: bool | None = None, program: generate.Program | None = None) -> str:
    """Load libraries; compile missing ones first. Returns why that is impossible, or not done yet."""
    try:
        _load(_kernels.provider.paths(recipes, waits=waits), program)
    except BuildError as error:
        return str(error)
    except (tf.errors.OpError, OSError, RuntimeError, AttributeError) as error:
        return str(_kernels.provider.refuse(recipes, f"the kernel cannot be used: {str(error).splitlines()[0]}"))
    return ""


def _load(paths: Sequence[Path], program: generate.Program | None) -> None:
    if program is not None:
        _register(ctypes.CDLL(str(paths[0])), program.functions)
        _kernels.rules += 1
        return
    path, maths = paths
    module = tf.load_op_library(str(path))
    library = ctypes.CDLL(str(path))
    library.DtoptRegister.argtypes = [ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p]
    library.DtoptRegister.restype = None
    _kernels.register = library.DtoptRegister
    functions = ctypes.CDLL(str(maths))
    _register(functions, [*BASICS, *(name for known in generate.builtin_programs() for name in known.functions)])
    for name, dtype in PACKING.items():
        _register(functions, [name], [dtype])
    for is_signed in (False, True):
        book, steps = (
            np.ascontiguousarray(numbers).ctypes.data_as(ctypes.c_void_p)
            for numbers in (codes.code_book(is_signed), codes.steps(is_signed))
        )
        library.DtoptSetBook(ctypes.c_bool(is_signed), book, steps)
    _check(module)
    direct.load(path)
    spmd.load(path)
    _kernels.path, _kernels.ops = path, module


def _register(library: Any, names: Sequence[str], dtypes: Sequence[tf.DType] = DTYPES) -> None:
    """Register a library's functions with the ops, those for this processor."""
    for name in names:
        for dtype in dtypes:
            function = ctypes.cast(library[f"dtopt_{name}_{dtype.name}_{build.level()}"], ctypes.c_void_p)
            _kernels.register(name.encode(), dtype.as_datatype_enum, function)
        _kernels.known.add(name)


def _check(module: Any) -> None:
    """Make one step of three numbers to check that the library works with this TensorFlow. Raises RuntimeError.

    It uses no `tf.Variable`: one would belong to the `tf.function` that is being traced, which may not create one at
    a later call.
    """
    from optim.rules.sgd import SGDRule

    program = generate.program_for(SGDRule())
    assert program is not None
    with tf.init_scope(), tf.device("CPU:0"):
        variable = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[3], shared_name="dtopt_check")
        tf.raw_ops.AssignVariableOp(resource=variable, value=tf.constant([1.0, 2.0, 3.0]))
        before = tf.raw_ops.ReadVariableOp(resource=variable, dtype=tf.float32)
        module.dtopt_step(
            variables=[variable],
            slots=[],
            averages=[],
            roundings=[],
            group=tf.constant([], tf.int64),
            gradients=[tf.constant([1.0, 0.0, 2.0])],
            rows=[],
            scalars=tf.constant([0.5], tf.float64),
            scales=tf.constant([], tf.float64),
            decays=tf.constant([], tf.float64),
            options=tf.constant([float("inf"), 0.0, 0.0], tf.float64),
            active=tf.constant([], tf.bool),
            overwrite=False,
            control=tf.constant([], tf.float64),
            T=tf.float32,
            rule=program.name,
            shapes=program.shapes,
            passes=program.passes,
            powers=program.powers,
            scalars_of_all=1,
            identity_at_zero=program.is_identity_at_zero,
            sparse=[],
            others=[],
            totals=[],
            windows=[],
            meanings=tf.constant([], tf.float64),
            gathered=[],
            limits=[],
            calls=1,
        )
        after = tf.raw_ops.ReadVariableOp(resource=variable, dtype=tf.float32).numpy().tolist()
        kept = before.numpy().tolist()
        tf.raw_ops.DestroyResourceOp(resource=variable)
    if after != [0.5, 2.0, 2.0] or kept != [1.0, 2.0, 3.0]:
        raise RuntimeError(f"its test step gave {after}")
