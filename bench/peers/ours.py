"""dtopt's own optimizers: on a mesh with each executor and slot placement, and on plain variables."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.peers import keras, tensorflow
from bench.peers.abilities import EVERY_ROW, TOUCHED_ROWS, Abilities
from bench.peers.peer import Peer, Session
from optim.bits.storage import SLOT_DTYPES
from optim.errors import UnsupportedError

if TYPE_CHECKING:
    from bench.cases.case import Case

KERNEL = "dtopt's kernel"
"""The note of steps on a GPU with dtopt's own kernel."""
COMPILERS = ("g++", "c++", "clang++")


def _compiler_is_missing(case: Case) -> str | None:
    if not any(shutil.which(name) for name in (os.environ.get("CXX", ""), *COMPILERS) if name):
        return f"no C++ compiler ({', '.join(COMPILERS)}) for its kernel"
    return None


def _optimizer(case: Case, placement: str | None = None, **options: Any) -> Any:
    import optim

    if case.options.lazy_rows:
        tables = [tensor.name.replace("/", "_") for tensor in case.tensors if case.is_sparse(tensor)]
        options["lazy_rows"] = [f"^{re.escape(name)}$" for name in tables]
    return keras.make(optim, case, ours=True, slot_placement=placement or case.options.placement, **options)


def _averages(case: Case, optimizer: Any) -> Callable[[list[Any]], list[Any]] | None:
    if case.options.ema is None:
        return None
    return lambda variables: [optimizer.get_slot(variable, "average") for variable in variables]


def _require_kernel(optimizer: Any) -> None:
    """Raise UnsupportedError if a row of dtopt's own kernel would use one of TensorFlow's."""
    reason = optimizer.executor_report().why_not_native
    if reason:
        raise UnsupportedError(f"dtopt's own kernel does not update it: {reason}")


def _on_mesh(case: Case, *, executor: str, kernel: str = "off", placement: str | None = None) -> Session:
    """Return a step on a mesh; `kernel` is the value of DTOPT_KERNELS."""
    os.environ["DTOPT_KERNELS"] = kernel
    tf = tensorflow.start(case)
    mesh = tensorflow.make_mesh(case)
    traced = (case.options.where or ("function" if executor == "portable" else "eager")) == "function"
    executor_option = (
        "auto" if traced and executor == "local" else executor
    )  # the local executor steps outside of functions
    optimizer = _optimizer(case, placement, mesh=mesh, executor=executor_option)

    def make_apply(variables: list[Any]) -> Any:
        optimizer.build(variables)
        if kernel == "build":
            _require_kernel(optimizer)

        def apply(gradients: list) -> None:
            optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

        return tf.function(apply) if traced else apply

    return tensorflow.mesh_session(case, mesh, make_apply, _averages(case, optimizer))


def _plain(case: Case, **options: Any) -> Session:
    """Return a step of plain variables; the kernel is used wherever optim can use it."""
    os.environ["DTOPT_KERNELS"] = "auto" if _compiler_is_missing(case) else "build"
    way = case.options.where or "function"
    if way == "fit":
        os.environ["KERAS_BACKEND"] = "tensorflow"
        tensorflow.start(case)
        import keras as keras3

        import optim

        return keras.fit_session(case, keras3, optim.for_keras(_optimizer(case, **options), keras3))
    tf = tensorflow.start(case)
    variables = tensorflow.whole_variables(case)
    optimizer = _optimizer(case, **options)
    optimizer.build(variables)

    def apply(gradients: list, variables: list) -> None:
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    read_averages = _averages(case, optimizer)
    called = tf.function(apply) if way == "function" else apply
    averages = (lambda: read_averages(variables)) if read_averages else None
    session = tensorflow.whole_session(case, called, variables, averages)
    if case.device == "gpu" and not options.get("jit_compile"):
        session.remark = "TensorFlow's ops" if optimizer.executor_report().why_not_native else KERNEL
    return session


_HAS = Abilities(
    ("tensorflow",),
    "tensorflow",
    placements=("like_variable", "zero1"),
    tables=lambda case: (EVERY_ROW, TOUCHED_ROWS),
)


def _not_twice(case: Case) -> str | None:
    return "with --slot-placement zero1 it is the same as its namesake" if case.options.placement == "zero1" else None


def _mesh_peers(name: str, summary: str, has: Abilities, **options: Any) -> tuple[Peer, Peer]:
    """Return the peer with the case's slot placement, and the one with slots sharded further."""

    def further(case: Case) -> str | None:
        return _not_twice(case) or has.but(case)

    def peer(name: str, summary: str, has: Abilities, note: str = "", **more: Any) -> Peer:
        prepare = partial(_on_mesh, **options, **more)
        return Peer(name, summary, __name__, has, prepare, ("dtopt", "tensorflow"), on_mesh=True, note=note)

    return (
        peer(name, summary, has),
        peer(
            f"{name}-zero1", f"{summary}, slots sharded further", replace(has, but=further), "zero1", placement="zero1"
        ),
    )


_LOCAL = _mesh_peers("optim-local", "optim, local executor on TensorFlow's kernels", _HAS, executor="local")
_NATIVE = _mesh_peers(
    "optim-native",
    "optim on dtopt's own kernel: the local executor, or with `--in function` its op",
    replace(_HAS, devices=("cpu",), but=_compiler_is_missing, ways=("eager", "function")),
    executor="local",
    kernel="build",
)
_PORTABLE = _mesh_peers(
    "optim-portable",
    "optim, portable executor",
    replace(_HAS, ways=("function", "eager")),
    executor="portable",
)


def _plain_peer(name: str, summary: str, note: str, **options: Any) -> Peer:
    has = replace(_HAS, placements=("like_variable",), ways=("function", "eager", "fit"))
    return Peer(name, summary, __name__, has, partial(_plain, **options), packages=("dtopt", "tensorflow"), note=note)


def _not_rounded(case: Case) -> str | None:
    if not any(slot.few_bits for slot in case.algorithm.rule.slots):
        return f"{case.algorithm.class_name} has no slot that may be stored in fewer bits"
    return "a table with lazy rows keeps slots of float32" if case.options.lazy_rows else None


def _few_bits_peer(slot_dtype: str) -> Peer:
    """Its steps differ from the reference's by roundings, so that they are not compared."""
    peer = _plain_peer(
        f"optim-plain-{slot_dtype}",
        f"optim on plain variables, slots in {slot_dtype}",
        slot_dtype,
        slot_dtype=slot_dtype,
    )
    return replace(peer, has=replace(peer.has, but=_not_rounded), own_algorithm=True)


PEERS = (
    _LOCAL[0],
    _NATIVE[0],
    _PORTABLE[0],
    _LOCAL[1],
    _NATIVE[1],
    _PORTABLE[1],
    _plain_peer("optim-plain", "optim on plain variables", "no mesh"),
    _plain_peer("optim-plain-jit", "optim on plain variables, jit_compile=True", "no mesh, jit", jit_compile=True),
    *map(_few_bits_peer, SLOT_DTYPES),
)
