"""optax under jax.jit, parameters and state donated so that they are updated in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.cases.options import clip_of
from bench.peers import jax
from bench.peers.abilities import USUAL_ALGORITHMS, Abilities
from bench.peers.peer import Conventions, Peer, Session

if TYPE_CHECKING:
    from bench.cases.case import Case


def _differs(case: Case) -> str | None:
    if case.algorithm.hyperparameters.get("amsgrad", False):
        return "its AMSGrad takes the maximum of the bias-corrected moments"
    if case.algorithm.name == "lamb" and case.options.weight_decay:
        return "its LAMB scales the decay of weights as well"
    return None


def _direction(optax: Any, case: Case) -> Any:
    """The optimizer's step, without the learning rate unless it belongs inside (RMSprop's momentum)."""
    h, name = case.algorithm.hyperparameters, case.algorithm.name
    moments = {"b1": h.get("beta_1"), "b2": h.get("beta_2"), "eps": h.get("epsilon")}
    if name in ("adam", "adamw"):
        return optax.scale_by_adam(**moments)
    if name == "adamax":
        return optax.scale_by_adamax(**moments)
    if name == "lamb":
        return optax.chain(optax.scale_by_adam(**moments), optax.scale_by_trust_ratio())
    if name == "lion":
        return optax.scale_by_lion(b1=h["beta_1"], b2=h["beta_2"])
    if name == "adadelta":
        return optax.scale_by_adadelta(rho=h["rho"], eps=h["epsilon"])
    if name == "adagrad":
        return optax.scale_by_rss(initial_accumulator_value=h["initial_accumulator_value"], eps=h["epsilon"])
    parts = []
    if name == "rmsprop":
        scale = optax.scale_by_stddev if h["centered"] else optax.scale_by_rms
        parts.append(scale(decay=h["rho"], eps=h["epsilon"], eps_in_sqrt=h["epsilon_inside"]))
    if h["momentum"]:
        parts.append(optax.trace(decay=h["momentum"], nesterov=h.get("nesterov", False)))
    return optax.chain(*parts) if parts else optax.identity()


def _transformation(optax: Any, case: Case) -> Any:
    parts = []
    if case.options.clip is not None:
        kind, limit = clip_of(case.options.clip)
        parts.append(optax.clip(limit) if kind == "value" else optax.clip_by_global_norm(limit))
    parts.append(_direction(optax, case))
    if case.weight_decay:
        parts.append(optax.add_decayed_weights(case.weight_decay))
    parts.append(optax.scale_by_learning_rate(case.algorithm.hyperparameters["learning_rate"]))
    chain = optax.chain(*parts)
    if case.options.accumulate > 1:
        return optax.MultiSteps(chain, every_k_schedule=case.options.accumulate).gradient_transformation()
    return chain


def _prepare(case: Case) -> Session:
    import jax.numpy as jnp
    import optax

    transformation = _transformation(optax, case)
    start = jax.parameters(case)
    mix = case.options.ema
    averages = [jnp.array(value) for value in start] if mix is not None else None

    def update(parameters: Any, state: Any, gradients: Any) -> Any:
        inner, averages = state
        changes, inner = transformation.update(gradients, inner, parameters)
        parameters = optax.apply_updates(parameters, changes)
        if mix is not None:
            new = optax.incremental_update(parameters, averages, 1.0 - mix)
            stepped = inner.mini_step == 0 if case.options.accumulate > 1 else True
            averages = [jnp.where(stepped, after, before) for after, before in zip(new, averages, strict=True)]
        return parameters, (inner, averages)

    state = (transformation.init(start), averages)
    return jax.session(case, start, state, update, (lambda state: state[1]) if mix is not None else None)


_HAS = Abilities(
    ("jax", "optax"),
    "jax optax",
    algorithms=USUAL_ALGORITHMS - {"nadam", "ftrl", "adafactor", "muon"},
    only={"adagrad": {"epsilon_inside": True}},
    clips=("value", "global_norm"),
    tables=lambda case: (),
    ways=("function",),
    but=_differs,
)

PEERS = (
    Peer(
        "optax",
        "optax, jax.jit with donated parameters and state",
        __name__,
        _HAS,
        _prepare,
        packages=("jax", "jaxlib", "optax"),
        conventions=Conventions(paper_epsilon=True),
        note="no mesh",
        waits="xla",
    ),
)
