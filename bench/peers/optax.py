"""optax under jax.jit, parameters and state donated so that they are updated in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench.cases.options import clip_of
from bench.peers import jax
from bench.peers.abilities import Abilities
from bench.peers.peer import Conventions, Peer, Session

if TYPE_CHECKING:
    from bench.cases.case import Case


NOT_AFTER_DECAY = {
    "lamb": "its LAMB scales the decay of weights as well",
    "lars": "its LARS takes decay for a part of the gradient",
    "adafactor": "its Adafactor decays by the strength alone, without the learning rate",
    "novograd": "its NovoGrad puts decay into the momentum",
    "cocob": "its COCOB has no weight decay",
}


def _differs(case: Case) -> str | None:
    h, name = case.algorithm.hyperparameters, case.algorithm.name
    if name in ("adam", "adamw") and h["amsgrad"]:
        return "its AMSGrad takes the maximum of the bias-corrected moments"
    if case.options.weight_decay and name in NOT_AFTER_DECAY:
        return NOT_AFTER_DECAY[name]
    if name == "radam":
        return "its RAdam forms ρ in float32, which moves first steps by more than may be off"
    if name == "adafactor" and any(_largest_dims(tensor.shape) for tensor in case.tensors):
        return "its Adafactor factors the two largest dims, here not always the last"
    return None


def _largest_dims(shape: tuple[int, ...]) -> bool:
    """Whether the two largest dims are not the last two."""
    return len(shape) > 2 and sorted(shape)[-2:] != sorted(shape[-2:])


def _moments(h: Any) -> dict[str, float]:
    return {"b1": h["beta_1"], "b2": h["beta_2"], "eps": h["epsilon"]}


def _sgd(optax: Any, h: Any) -> Any:
    return optax.trace(decay=h["momentum"], nesterov=h["nesterov"]) if h["momentum"] else optax.identity()


def _rmsprop(optax: Any, h: Any) -> Any:
    scale = optax.scale_by_stddev if h["centered"] else optax.scale_by_rms
    scaling = scale(decay=h["rho"], eps=h["epsilon"], eps_in_sqrt=h["epsilon_inside"])
    return optax.chain(scaling, optax.trace(decay=h["momentum"])) if h["momentum"] else scaling


def _lars(optax: Any, h: Any) -> Any:
    ratio = optax.scale_by_trust_ratio(trust_coefficient=h["trust_coefficient"], eps=h["epsilon"])
    return optax.chain(ratio, _sgd(optax, h))


def _adafactor(optax: Any, h: Any) -> Any:
    mean = optax.scale_by_factored_rms(decay_rate=-h["beta_2_decay"], min_dim_size_to_factor=1, epsilon=h["epsilon_1"])
    size = optax.scale_by_param_block_rms(min_scale=h["epsilon_2"])
    return optax.chain(mean, optax.clip_by_block_rms(h["clip_threshold"]), size)


_DIRECTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "adam": lambda optax, h: optax.scale_by_adam(**_moments(h)),
    "adamw": lambda optax, h: optax.scale_by_adam(**_moments(h)),
    "adamax": lambda optax, h: optax.scale_by_adamax(**_moments(h)),
    "adabelief": lambda optax, h: optax.scale_by_belief(**_moments(h), eps_root=h["epsilon"]),
    "adadelta": lambda optax, h: optax.scale_by_adadelta(rho=h["rho"], eps=h["epsilon"]),
    "adafactor": _adafactor,
    "adagrad": lambda optax, h: optax.scale_by_rss(h["initial_accumulator_value"], eps=h["epsilon"]),
    "cocob": lambda optax, h: optax.chain(optax.contrib.scale_by_cocob(alpha=h["alpha"]), optax.scale(-1.0)),
    "lamb": lambda optax, h: optax.chain(optax.scale_by_adam(**_moments(h)), optax.scale_by_trust_ratio()),
    "lars": _lars,
    "lion": lambda optax, h: optax.scale_by_lion(b1=h["beta_1"], b2=h["beta_2"]),
    "novograd": lambda optax, h: optax.scale_by_novograd(**_moments(h)),
    "rmsprop": _rmsprop,
    "sgd": _sgd,
}
"""The optimizer's step by the arguments of `-o`, without the learning rate unless it belongs inside (RMSprop's
momentum)."""


def _muon(optax: Any, case: Case) -> Any:
    rule: Any = case.algorithm.rule
    h = case.algorithm.hyperparameters
    dims = [
        None if rule.uses_adam(tensor.shape, [tensor.name]) else optax.contrib.MuonDimensionNumbers()
        for tensor in case.tensors
    ]
    return optax.contrib.muon(
        h["learning_rate"],
        ns_coeffs=(h["muon_a"], h["muon_b"], h["muon_c"]),
        ns_steps=rule.ns_steps,
        beta=h["momentum"],
        eps=h["epsilon"],
        weight_decay=case.weight_decay or 0.0,
        nesterov=h["nesterov"],
        adam_b1=h["adam_beta_1"],
        adam_b2=h["adam_beta_2"],
        adam_weight_decay=case.weight_decay or 0.0,
        adam_learning_rate=h["learning_rate"] * h["adam_lr_ratio"],
        muon_weight_dimension_numbers=dims,
        consistent_rms=rule.rms_rate,
    )


def _schedule_free(optax: Any, case: Case) -> Any:
    h = case.algorithm.hyperparameters
    return optax.contrib.schedule_free_adamw(
        h["learning_rate"], **_moments(h), weight_decay=case.weight_decay or 0.0, weight_lr_power=h["weight_lr_power"]
    )


_WHOLE: dict[str, Callable[[Any, Case], Any]] = {"muon": _muon, "schedule-free-adamw": _schedule_free}
"""Steps that contain learning rate and weight decay themselves."""


def _rate(optax: Any, case: Case) -> Any:
    rate = case.algorithm.hyperparameters["learning_rate"]
    if case.algorithm.name == "adafactor":  # which caps it
        import jax.numpy as jnp

        return optax.scale_by_learning_rate(lambda count: jnp.minimum(rate, (count + 1.0) ** -0.5))
    return optax.scale_by_learning_rate(rate)


def _transformation(optax: Any, case: Case) -> Any:
    parts = []
    if case.options.clip is not None:
        kind, limit = clip_of(case.options.clip)
        parts.append(optax.clip(limit) if kind == "value" else optax.clip_by_global_norm(limit))
    name = case.algorithm.name
    if name in _WHOLE:
        parts.append(_WHOLE[name](optax, case))
    else:
        parts.append(_DIRECTIONS[name](optax, case.algorithm.hyperparameters))
        if case.weight_decay:
            parts.append(optax.add_decayed_weights(case.weight_decay))
        parts.append(_rate(optax, case))
    chain = optax.chain(*parts)
    if case.options.accumulate > 1:
        return optax.MultiSteps(chain, every_k_schedule=case.options.accumulate).gradient_transformation()
    return chain


def _prepare(case: Case) -> Session:
    import jax.numpy as jnp
    import optax
    from jax.tree_util import tree_map

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

    inner = tree_map(
        jnp.array, transformation.init(start)
    )  # COCOB's state shares arrays, and each can be donated only once
    state = (inner, averages)
    return jax.session(case, start, state, update, (lambda state: state[1]) if mix is not None else None)


_HAS = Abilities(
    ("jax", "optax"),
    "jax optax",
    algorithms=(*_DIRECTIONS, *_WHOLE, "radam"),
    only={
        "adabelief": {"rectify": False, "amsgrad": False, "total_steps": 0.0},
        "adagrad": {"epsilon_inside": True},
        "cocob": {"learning_rate": 1.0},
        "muon": {"nesterov": False},
        "novograd": {"grad_averaging": False, "amsgrad": False},
        "schedule-free-adamw": {"r": 0.0, "warmup_steps": 0.0},
    },
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
