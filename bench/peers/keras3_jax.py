"""Keras 3 on JAX: `stateless_apply` under jax.jit, parameters and state donated."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from bench import jax_setup, keras_setup
from bench.peer import Conventions, Peer, Session, first, needs

if TYPE_CHECKING:
    from bench.case import Case


def unavailable(case: Case) -> str | None:
    sparse = case.options.sparse_rows is not None
    return first(
        (
            needs("jax", "keras", install="jax keras"),
            "Keras takes no sparse gradients on JAX" if sparse else None,
            keras_setup.keras3_lacks(case),
        )
    )


def prepare(case: Case) -> Session:
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    start = jax_setup.parameters(case)
    variables = [
        keras.Variable(value, dtype=case.options.dtype, name=tensor.name.replace("/", "_"))
        for value, tensor in zip(start, case.tensors, strict=True)
    ]
    optimizer = keras_setup.make(keras.optimizers, case)
    optimizer.build(variables)
    names = [variable.path for variable in optimizer.variables]
    wanted = (
        [average.path for average in optimizer._model_variables_moving_average] if case.options.ema is not None else []
    )
    places = [names.index(path) for path in wanted]

    def update(parameters: Any, state: Any, gradients: Any) -> Any:
        return optimizer.stateless_apply(state, gradients, parameters)

    # Copies, because what is donated is gone, and Keras' variables keep theirs.
    state = [value.copy() for value in (variable.value for variable in optimizer.variables)]
    averages = (lambda state: [state[place] for place in places]) if case.options.ema is not None else None
    return jax_setup.session(case, [value.copy() for value in start], state, update, averages)


PEER = Peer(
    name="keras3-jax",
    summary="Keras 3 on JAX, jax.jit with donated parameters and state",
    module=__name__,
    unavailable=unavailable,
    prepare=prepare,
    packages=("jax", "jaxlib", "keras"),
    conventions=Conventions(average_of_first_step=True),
    note="no mesh",
)
