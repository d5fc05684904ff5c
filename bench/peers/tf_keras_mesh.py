"""tf_keras with `mesh=`, the step inside tf.function: the baseline of the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench import keras_setup, tensorflow_setup
from bench.peer import Peer, Session, needs

if TYPE_CHECKING:
    from bench.case import Case


def unavailable(case: Case) -> str | None:
    return needs("tensorflow", "tf_keras", install="tf_keras") or keras_setup.tf_keras_lacks(case)


def prepare(case: Case) -> Session:
    tf = tensorflow_setup.start(case)
    import tf_keras

    mesh = tensorflow_setup.make_mesh(case)
    optimizer = keras_setup.make(tf_keras.optimizers, case, mesh=mesh)

    def make_apply(variables: list[Any]) -> Callable[[list[Any]], Any]:
        optimizer.build(variables)

        @tf.function
        def apply(gradients: list) -> None:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

        return apply

    averages = (lambda variables: keras_setup.averages(optimizer)) if case.options.ema is not None else None
    return tensorflow_setup.mesh_session(case, mesh, make_apply, averages)


PEER = Peer(
    name="tf_keras-mesh",
    summary="tf_keras with mesh=, tf.function",
    module=__name__,
    unavailable=unavailable,
    prepare=prepare,
    packages=("tensorflow", "tf_keras"),
    on_mesh=True,
)
