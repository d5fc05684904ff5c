"""Keras 3 on TensorFlow, inside tf.function. It has no meshes on TensorFlow, so tensors are whole."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from bench import keras_setup, tensorflow_setup
from bench.case import parameter
from bench.peer import Conventions, Peer, Session, needs

if TYPE_CHECKING:
    from bench.case import Case


def unavailable(case: Case) -> str | None:
    return needs("tensorflow", "keras", install="keras") or keras_setup.keras3_lacks(case)


def prepare(case: Case) -> Session:
    os.environ["KERAS_BACKEND"] = "tensorflow"
    tf = tensorflow_setup.start(case)
    import keras

    with tf.device(tensorflow_setup.place_on(case)):
        variables = [
            keras.Variable(parameter(case, i), dtype=case.options.dtype, name=tensor.name.replace("/", "_"))
            for i, tensor in enumerate(case.tensors)
        ]
        optimizer = keras_setup.make(keras.optimizers, case)
        optimizer.build(variables)

    @tf.function
    def apply(gradients: list) -> None:
        optimizer.apply(gradients, variables)

    # Keras' variables are no TensorFlow type, so they are captured and not passed.
    averages = (lambda: keras_setup.averages(optimizer)) if case.options.ema is not None else None
    return tensorflow_setup.whole_session(case, lambda gradients, _: apply(gradients), variables, averages)


PEER = Peer(
    name="keras3",
    summary="Keras 3 on TensorFlow, tf.function",
    module=__name__,
    unavailable=unavailable,
    prepare=prepare,
    packages=("tensorflow", "keras"),
    conventions=Conventions(average_of_first_step=True),
    note="no mesh",
)
