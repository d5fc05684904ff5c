"""Keras 3 on TensorFlow, and on JAX (`stateless_apply` under jax.jit, state donated). Neither has a mesh here."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.cases.values import parameter
from bench.peers import jax, keras, tensorflow
from bench.peers.abilities import USUAL_ALGORITHMS, Abilities
from bench.peers.peer import Conventions, Peer, Session

if TYPE_CHECKING:
    from bench.cases.case import Case


def _differs(case: Case) -> str | None:
    if case.algorithm.name == "muon" and not _has_module("muon"):
        return "this Keras has no Muon"
    if case.options.ema is not None and case.options.accumulate > 1:
        return "its averages count the calls between steps as well"
    return None


def _has_module(module: str) -> bool:
    """Whether the installed Keras 3 has an optimizer's file. Looking for the module would import Keras."""
    spec = importlib.util.find_spec("keras")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    return folder is None or (folder / "src" / "optimizers" / f"{module}.py").is_file()


def _on_tensorflow(case: Case) -> Session:
    os.environ["KERAS_BACKEND"] = "tensorflow"
    tf = tensorflow.start(case)
    import keras as keras3

    way = case.options.where or "function"
    optimizer = keras.make(keras3.optimizers, case)
    if way == "fit":
        return keras.fit_session(case, keras3, optimizer)
    with tf.device(tensorflow.place_on(case)):
        variables = [
            keras3.Variable(parameter(case, i), dtype=case.options.dtype, name=tensor.name.replace("/", "_"))
            for i, tensor in enumerate(case.tensors)
        ]
        optimizer.build(variables)

    def apply(gradients: list) -> None:
        optimizer.apply(gradients, variables)

    called = tf.function(apply) if way == "function" else apply
    # Keras' variables are not a TensorFlow type, so they are captured and not passed.
    averages = (lambda: keras.averages(optimizer)) if case.options.ema is not None else None
    return tensorflow.whole_session(case, lambda gradients, _: called(gradients), variables, averages)


def on_jax(case: Case, make: Callable[[Any], Any]) -> Session:
    """`stateless_apply` of an optimizer under `jax.jit`. `make` is given Keras."""
    os.environ["KERAS_BACKEND"] = "jax"
    import keras as keras3

    start = jax.parameters(case)
    variables = [
        keras3.Variable(value, dtype=case.options.dtype, name=tensor.name.replace("/", "_"))
        for value, tensor in zip(start, case.tensors, strict=True)
    ]
    optimizer = make(keras3)
    optimizer.build(variables)
    names = [variable.path for variable in optimizer.variables]
    paths = [average.path for average in keras.averages(optimizer)] if case.options.ema is not None else []
    places = [names.index(path) for path in paths]

    def update(parameters: Any, state: Any, gradients: Any) -> Any:
        return optimizer.stateless_apply(state, gradients, parameters)

    # Copies, because donated arrays are deleted, and Keras' variables keep theirs.
    state = [value.copy() for value in (variable.value for variable in optimizer.variables)]
    averages = (lambda state: [state[place] for place in places]) if case.options.ema is not None else None
    return jax.session(case, [value.copy() for value in start], state, update, averages)


def _on_jax(case: Case) -> Session:
    return on_jax(case, lambda keras3: keras.make(keras3.optimizers, case))


_HAS = Abilities(
    ("tensorflow", "keras"),
    "keras",
    algorithms=USUAL_ALGORITHMS,
    only=keras.KERAS_ONLY_HAS,
    ways=("function", "eager", "fit"),
    but=_differs,
)
AVERAGES = Conventions(average_of_first_step=True)

PEERS = (
    Peer(
        "keras3",
        "Keras 3 on TensorFlow",
        __name__,
        _HAS,
        _on_tensorflow,
        packages=("tensorflow", "keras"),
        conventions=AVERAGES,
        note="no mesh",
    ),
    Peer(
        "keras3-jax",
        "Keras 3 on JAX, jax.jit with donated parameters and state",
        __name__,
        replace(_HAS, modules=("jax", "keras"), install="jax keras", tables=lambda case: (), ways=("function",)),
        _on_jax,
        packages=("jax", "jaxlib", "keras"),
        conventions=AVERAGES,
        note="no mesh",
        waits="xla",
    ),
)
