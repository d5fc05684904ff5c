"""dtopt's optimizers through `optim.for_keras`, with Keras 3 on JAX and on PyTorch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from bench.cases.values import parameter
from bench.peers import keras, keras3, torch
from bench.peers.abilities import Abilities
from bench.peers.peer import Peer, Session

if TYPE_CHECKING:
    import numpy as np

    from bench.cases.case import Case


def _optimizer(case: Case, keras3: Any) -> Any:
    import optim

    return optim.for_keras(keras.make(optim, case, ours=True), keras3)


def _on_jax(case: Case) -> Session:
    return keras3.on_jax(case, lambda module: _optimizer(case, module))


def _on_torch(case: Case) -> Session:
    """A session of eager steps of variables of Keras."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras as module

    where = torch.device(case)
    with module.device(where.name):
        names = [tensor.name.replace("/", "_") for tensor in case.tensors]
        starts = [where.put(parameter(case, index)) for index in range(len(names))]
        variables = [
            module.Variable(value, dtype=case.options.dtype, name=name)
            for value, name in zip(starts, names, strict=True)
        ]
        optimizer = _optimizer(case, module)
        optimizer.build(variables)

    def read(variable: Any) -> np.ndarray:
        values: np.ndarray = variable.value.detach().float().cpu().numpy()
        return values

    has_averages = case.options.ema is not None
    return Session(
        place=lambda index, array: where.put(array),
        apply=lambda gradients: optimizer.apply(gradients, variables),
        wait=where.wait,
        read=lambda index: read(variables[index]),
        read_average=(lambda index: read(keras.averages(optimizer)[index])) if has_averages else None,
        compute=torch.computing(case, [variable.value for variable in variables], where.put),
        device_memory=where.memory,
        events=where.events,
    )


def _has(framework: str, way: str) -> Abilities:
    return Abilities((framework, "keras"), f"{framework} keras", tables=lambda case: (), ways=(way,))


PEERS = (
    Peer(
        "optim-jax",
        "optim.for_keras on JAX, jax.jit with donated parameters and state",
        __name__,
        _has("jax", "function"),
        _on_jax,
        packages=("dtopt", "jax", "jaxlib", "keras"),
        conventions=keras3.AVERAGES,
        note="no mesh",
        waits="xla",
    ),
    Peer(
        "optim-torch",
        "optim.for_keras on PyTorch, eager",
        __name__,
        _has("torch", "eager"),
        _on_torch,
        packages=("dtopt", "torch", "keras"),
        conventions=keras3.AVERAGES,
        note="no mesh",
        waits="openmp",
    ),
)
