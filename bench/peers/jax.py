"""Shared code of the JAX peers: values on a device, donated to one jitted update. Runs only in workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench.cases import in_situ
from bench.cases.values import parameter
from bench.peers.peer import Session
from optim.errors import UnsupportedError

if TYPE_CHECKING:
    import numpy as np

    from bench.cases.case import Case


JAX_FOR = {"gpu": "cuda12", "tpu": "tpu"}
"""Argument of `pip install` for a device."""


def device(case: Case) -> Any:
    import jax

    try:
        return jax.devices(case.device)[0]
    except RuntimeError as error:
        how = f"JAX finds no {case.device.upper()}: pip install 'jax[{JAX_FOR.get(case.device, 'cpu')}]'"
        raise UnsupportedError(how) from error


def put(case: Case, array: Any) -> Any:
    """Return an array on the device, in the dtype of the case."""
    import jax

    return jax.device_put(array.astype(case.options.dtype), device(case))


def parameters(case: Case) -> list[Any]:
    return [put(case, parameter(case, i)) for i in range(len(case.tensors))]


def session(
    case: Case,
    start: list[Any],
    state: Any,
    update: Callable[[Any, Any, Any], Any],
    averages: Callable[[Any], list[Any]] | None = None,
) -> Session:
    """Return a session of `update(parameters, state, gradients) -> (parameters, state)`, jitted.

    Parameters and state are donated so that they are updated in place; `averages(state)` are the moving averages.
    """
    import jax
    import numpy as np

    current = {"parameters": start, "state": state}
    jitted = jax.jit(update, donate_argnums=(0, 1))

    def apply(gradients: list[Any]) -> None:
        current["parameters"], current["state"] = jitted(current["parameters"], current["state"], gradients)

    def read(values: list[Any], index: int) -> np.ndarray:
        return np.asarray(values[index]).astype(np.float32)

    return Session(
        place=lambda index, array: put(case, array),
        apply=apply,
        wait=lambda: jax.block_until_ready(current),
        read=lambda index: read(current["parameters"], index),
        read_average=(lambda index: read(averages(current["state"]), index)) if averages else None,
        compute=_compute(case, current),
        device_memory=_memory(case),
        no_events="" if case.device == "cpu" else "JAX gives no handle of its stream",
    )


def _compute(case: Case, current: dict[str, Any]) -> Callable[[], list[Any]] | None:
    if not case.options.in_situ:
        return None
    import jax
    import jax.numpy as jnp

    batches = [None if array is None else put(case, array) for array in in_situ.inputs(case)]
    gradients = jax.jit(jax.grad(lambda values, inputs: in_situ.loss(values, inputs, lambda x: jnp.mean(x * x))))
    return lambda: gradients(current["parameters"], batches)


def _memory(case: Case) -> Callable[[], int | None] | None:
    if case.device == "cpu":
        return None
    return lambda: (device(case).memory_stats() or {}).get("peak_bytes_in_use")
