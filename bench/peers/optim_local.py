"""dtopt's own optimizers on a mesh with the local executor, called eagerly, on TensorFlow's fused kernels."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench import keras_setup, tensorflow_setup
from bench.peer import Peer, Session, needs

if TYPE_CHECKING:
    from bench.case import Case


def unavailable(case: Case) -> str | None:
    return needs("tensorflow", install="tensorflow")


def prepare(case: Case, kernels: str = "off") -> Session:
    """`kernels` is what DTOPT_KERNELS says: whether dtopt's own kernel is used."""
    os.environ["DTOPT_KERNELS"] = kernels
    tensorflow_setup.start(case)
    import optim

    mesh = tensorflow_setup.make_mesh(case)
    optimizer = keras_setup.make(optim, case, mesh=mesh, executor="local")

    def make_apply(variables: list[Any]) -> Callable[[list[Any]], Any]:
        optimizer.build(variables)
        return lambda gradients: optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    return tensorflow_setup.mesh_session(case, mesh, make_apply)


PEER = Peer(
    name="optim-local",
    summary="optim, local executor on TensorFlow's kernels, eager",
    module=__name__,
    unavailable=unavailable,
    prepare=prepare,
    packages=("dtopt", "tensorflow"),
    on_mesh=True,
    note="eager",
)
