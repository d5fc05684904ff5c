"""optax under jax.jit, parameters and state donated so that they are updated in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.case import parameter
from bench.peer import Peer, Session, needs

if TYPE_CHECKING:
    import numpy as np

    from bench.case import Case


def unavailable(case: Case) -> str | None:
    return needs("jax", "optax", install="jax optax")


def _transformation(optax: Any, case: Case) -> Any:
    h = case.algorithm.hyperparameters
    if case.optimizer == "adam":
        return optax.adam(h["learning_rate"], b1=h["beta_1"], b2=h["beta_2"], eps=h["epsilon"])
    if case.optimizer == "adadelta":
        return optax.adadelta(h["learning_rate"], rho=h["rho"], eps=h["epsilon"])
    return optax.sgd(h["learning_rate"], momentum=h.get("momentum"))


def prepare(case: Case) -> Session:
    import jax
    import numpy as np
    import optax

    device = jax.devices(case.device)[0]
    transformation = _transformation(optax, case)
    parameters = [jax.device_put(parameter(case, i), device) for i in range(len(case.tensors))]
    held = {"parameters": parameters, "state": transformation.init(parameters)}

    def update(parameters: Any, state: Any, gradients: Any) -> Any:
        changes, state = transformation.update(gradients, state, parameters)
        return optax.apply_updates(parameters, changes), state

    jitted = jax.jit(update, donate_argnums=(0, 1))

    def apply(gradients: list[Any]) -> None:
        held["parameters"], held["state"] = jitted(held["parameters"], held["state"], gradients)

    def place(index: int, array: np.ndarray) -> Any:
        return jax.device_put(array, device)

    return Session(
        place=place,
        apply=apply,
        wait=lambda: jax.block_until_ready(held),
        read=lambda index: np.asarray(held["parameters"][index]),
    )


PEER = Peer(
    name="optax",
    summary="optax, jax.jit with donated parameters and state",
    module=__name__,
    unavailable=unavailable,
    prepare=prepare,
    packages=("jax", "jaxlib", "optax"),
    paper_epsilon=True,
    note="no mesh",
)
