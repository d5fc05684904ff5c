"""Shared code of the Keras-style optimizers: tf_keras, its legacy ones, Keras 3 and optim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from bench.cases.values import parameter
from bench.peers import tensorflow
from bench.peers.peer import Session
from optim.errors import UnsupportedError

if TYPE_CHECKING:
    import numpy as np

    from bench.cases.case import Case
    from bench.cases.sparse import Rows

OURS_ONLY = ("epsilon_inside", "schedule_decay")
"""Arguments that Keras lacks: its optimizers have one fixed value of each."""

KERAS_ONLY_HAS: Mapping[str, Mapping[str, Any]] = {
    "rmsprop": {"epsilon_inside": True},
    "adagrad": {"epsilon_inside": True},
    "nadam": {"schedule_decay": 1.0},
}
"""The fixed values in tf_keras and Keras 3."""


def make(optimizers: Any, case: Case, *, ours: bool = False, **options: Any) -> Any:
    """Return an optimizer of the case from a module that names its classes and arguments as Keras does."""
    arguments = {name: value for name, value in case.algorithm.hyperparameters.items() if ours or name not in OURS_ONLY}
    chosen = case.options.keras
    if case.algorithm.weight_decay is not None:
        chosen["weight_decay"] = case.weight_decay
        if case.algorithm.name == "muon":
            chosen["adam_weight_decay"] = case.weight_decay
    return getattr(optimizers, case.algorithm.class_name)(**arguments, **chosen, **options)


def averages(optimizer: Any) -> list[Any]:
    """Return the moving averages of tf_keras' and Keras 3's optimizers, in the order of the variables."""
    return optimizer._model_variables_moving_average


def fit_session(case: Case, keras: Any, optimizer: Any) -> Session:
    """Return a session whose steps are batches of `model.fit`.

    The model contains the tensors of the case. Its loss is the sum of each tensor times its gradient, so that the
    gradient of the loss is that of the case. Every batch reads both and writes gradients, the same for all peers.
    """
    import tensorflow as tf

    if case.options.ema is not None or case.options.dtype != "float32":
        raise UnsupportedError("under fit only float32 without a moving average is compared: fit ends by averaging")
    gradients_: list[Any] = [None] * len(case.tensors)

    def weigh(weights: list[Any]) -> Any:
        total = tf.constant(0.0)
        for weight, gradient in zip(weights, gradients_, strict=True):
            value = getattr(weight, "_value", weight)  # Keras 3 wraps TensorFlow's
            rows = isinstance(gradient, tuple)
            part = tf.gather(value, gradient[0]) * gradient[1] if rows else value * gradient
            total += tf.reduce_sum(part)
        return total

    model = _model(case, keras, weigh)
    weights = model.layers[-1].case_weights
    model.compile(optimizer=optimizer, loss=lambda truth, value: tf.reduce_mean(value), jit_compile=False)
    data = tf.data.Dataset.from_tensors((tf.zeros((1, 1)), tf.zeros((1, 1)))).repeat()

    def hand(index: int, gradient: np.ndarray | Rows) -> None:
        rows = not hasattr(gradient, "dtype")
        parts = (gradient.indices, gradient.values) if rows else (gradient,)  # type: ignore[union-attr]
        if gradients_[index] is None:
            variables = tuple(tf.Variable(part, trainable=False) for part in parts)
            gradients_[index] = variables if rows else variables[0]
        else:
            for variable, part in zip(gradients_[index] if rows else (gradients_[index],), parts, strict=True):
                variable.assign(part)

    def many(steps: int) -> None:
        model.fit(data, steps_per_epoch=steps * case.options.accumulate, epochs=1, verbose=0)

    return Session(
        place=lambda index, gradient: gradient,
        hand=hand,
        apply=lambda gradients: model.fit(data, steps_per_epoch=1, epochs=1, verbose=0),
        wait=tf.test.experimental.sync_devices,
        read=lambda index: tensorflow.to_numpy(tf.convert_to_tensor(weights[index])),
        glance=lambda index: tensorflow.first_row(weights[index]),
        many=many,
        device_memory=tensorflow.device_memory(case),
        no_events="" if case.device == "cpu" else "fit returns after the device has finished",
    )


def _model(case: Case, keras: Any, weigh: Callable[[list[Any]], Any]) -> Any:
    """Return a Keras model of one layer that contains every tensor of the case."""
    import tensorflow as tf

    class Tensors(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.case_weights = [
                self.add_weight(name=tensor.name.replace("/", "_"), shape=tensor.shape, initializer="zeros")
                for tensor in case.tensors
            ]
            super().build(shape)

        def call(self, inputs: Any) -> Any:
            return inputs + tf.reshape(weigh(self.case_weights), (1, 1))

        def compute_output_shape(self, shape: Any) -> Any:
            return shape

    layer = Tensors()
    layer.build((1, 1))
    for index, weight in enumerate(layer.case_weights):
        weight.assign(parameter(case, index))

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.tensors = layer

        def call(self, inputs: Any) -> Any:
            return self.tensors(inputs)

    return Model()
