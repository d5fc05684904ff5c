"""tf_keras' legacy optimizers (OptimizerV2, TensorFlow's fused kernels) without a mesh, inside
tf.function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import keras_setup, tensorflow_setup
from bench.peer import Peer, Session, needs

if TYPE_CHECKING:
    from bench.case import Case


def unavailable(case: Case) -> str | None:
    return needs("tensorflow", "tf_keras", install="tf_keras") or keras_setup.legacy_lacks(case)


def prepare(case: Case) -> Session:
    tf = tensorflow_setup.start(case)
    import tf_keras

    variables = tensorflow_setup.whole_variables(case)
    optimizer = keras_setup.make(tf_keras.optimizers.legacy, case)

    @tf.function
    def apply(gradients: list, variables: list) -> None:
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return tensorflow_setup.whole_session(case, apply, variables)


PEER = Peer(
    name="tf_keras-legacy",
    summary="tf_keras legacy optimizers (fused kernels) without a mesh, tf.function",
    module=__name__,
    unavailable=unavailable,
    prepare=prepare,
    packages=("tensorflow", "tf_keras"),
    note="no mesh",
)
