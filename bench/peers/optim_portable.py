"""dtopt's own optimizers on a mesh with the portable executor, the step inside tf.function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench import keras_setup, tensorflow_setup
from bench.peer import Peer, Session, needs

if TYPE_CHECKING:
    from bench.case import Case


def unavailable(case: Case) -> str | None:
    return needs("tensorflow", install="tensorflow")


def prepare(case: Case) -> Session:
    tf = tensorflow_setup.start(case)
    import optim

    mesh = tensorflow_setup.make_mesh(case)
    optimizer = keras_setup.make(optim, case, mesh=mesh, executor="portable")

    def make_apply(variables: list[Any]) -> Callable[[list[Any]], Any]:
        optimizer.build(variables)

        @tf.function
        def apply(gradients: list) -> None:
            optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

        return apply

    return tensorflow_setup.mesh_session(case, mesh, make_apply)


PEER = Peer(
    name="optim-portable",
    summary="optim, portable executor, tf.function",
    module=__name__,
    unavailable=unavailable,
    prepare=prepare,
    packages=("dtopt", "tensorflow"),
    on_mesh=True,
)
