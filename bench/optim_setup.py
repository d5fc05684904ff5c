"""What the peers of dtopt's own optimizers share. Runs in workers only."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bench import keras_setup, tensorflow_setup
from bench.peer import Session, needs
from optim.errors import UnsupportedError

if TYPE_CHECKING:
    from bench.case import Case


def unavailable(case: Case) -> str | None:
    return needs("tensorflow", install="tensorflow")


def local_unavailable(case: Case) -> str | None:
    """What only the portable executor does, known without TensorFlow; the executor itself says the rest."""
    if case.options.lazy_rows:
        return "the local executor updates every row"
    return unavailable(case)


def _optimizer(case: Case, mesh: Any, executor: str) -> Any:
    import optim

    options = case.options
    chosen: dict[str, Any] = {"mesh": mesh, "executor": executor, "slot_placement": options.placement}
    if options.lazy_rows:
        tables = [tensor.name.replace("/", "_") for tensor in case.tensors if case.is_sparse(tensor)]
        chosen["lazy_rows"] = [f"^{re.escape(name)}$" for name in tables]
    return keras_setup.make(optim, case, ours=True, **chosen)


def portable(case: Case) -> Session:
    """A step inside tf.function, in TensorFlow's own ops."""
    tf = tensorflow_setup.start(case)
    mesh = tensorflow_setup.make_mesh(case)
    optimizer = _optimizer(case, mesh, "portable")

    def make_apply(variables: list[Any]) -> Any:
        optimizer.build(variables)

        @tf.function
        def apply(gradients: list) -> None:
            optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

        return apply

    return tensorflow_setup.mesh_session(case, mesh, make_apply, _averages(case, optimizer))


def local(case: Case, kernels: str) -> Session:
    """An eager step on the shards. `kernels` is what DTOPT_KERNELS says: whether dtopt's own kernel is used."""
    os.environ["DTOPT_KERNELS"] = kernels
    tensorflow_setup.start(case)
    mesh = tensorflow_setup.make_mesh(case)
    optimizer = _optimizer(case, mesh, "local")

    def make_apply(variables: list[Any]) -> Any:
        optimizer.build(variables)
        _require_native(optimizer, kernels)
        return lambda gradients: optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    return tensorflow_setup.mesh_session(case, mesh, make_apply, _averages(case, optimizer))


def _require_native(optimizer: Any, kernels: str) -> None:
    """Raises: UnsupportedError where a row of dtopt's own kernel would be one of TensorFlow's."""
    reason = optimizer.executor_report().why_not_native
    if kernels == "build" and reason:
        raise UnsupportedError(f"dtopt's own kernel does not update it: {reason}")


def with_zero1(case: Case) -> Case:
    """The same case with slots sharded further."""
    return replace(case, options=replace(case.options, placement="zero1"))


def zero1_unavailable(case: Case) -> str | None:
    if case.options.placement == "zero1":
        return "with --placement zero1 it is the same as its namesake"
    return None


def _averages(case: Case, optimizer: Any) -> Any:
    if case.options.ema is None:
        return None
    return lambda variables: [optimizer.get_slot(variable, "average") for variable in variables]
