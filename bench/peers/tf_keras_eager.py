"""tf_keras (Keras 2) without a mesh, called eagerly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import keras_setup, tensorflow_setup
from bench.peer import Peer, Session, needs

if TYPE_CHECKING:
    from bench.case import Case


def unavailable(case: Case) -> str | None:
    return needs("tensorflow", "tf_keras", install="tf_keras") or keras_setup.tf_keras_lacks(case)


def prepare(case: Case) -> Session:
    tensorflow_setup.start(case)
    import tf_keras

    variables = tensorflow_setup.whole_variables(case)
    optimizer = keras_setup.make(tf_keras.optimizers, case)
    optimizer.build(variables)

    def apply(gradients: list, variables: list) -> None:
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    averages = (lambda: keras_setup.averages(optimizer)) if case.options.ema is not None else None
    return tensorflow_setup.whole_session(case, apply, variables, averages)


PEER = Peer(
    name="tf_keras-eager",
    summary="tf_keras without a mesh, eager",
    module=__name__,
    unavailable=unavailable,
    prepare=prepare,
    packages=("tensorflow", "tf_keras"),
    note="no mesh, eager",
)
