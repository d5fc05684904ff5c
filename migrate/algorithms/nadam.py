"""Nadam. Its product of momenta is missing from most files, and wrong in some: it follows from the step count.

Sources: `keras/optimizers.py` 1.2.2 - 2.3.1 (`m_schedule`, in lists from 2.3 on), `optimizer_v2/nadam.py` 2.9
(`momentum_cache`), `optimizers/nadam.py` 2.15 and 3.15 (`_u_product`; third in lists of Keras 3.0 to 3.9, last from
3.10 on).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from migrate.algorithms import spec
from migrate.claims import COMPUTED, FILE, RELEASE, Origin, confirming
from migrate.errors import DamagedFileError
from migrate.generations import FIRST, LAST, NOWHERE, traits
from optim.rules.nadam import NadamRule

PRODUCT = "u_product"


def _blocks(generation: str, config: spec.Config) -> tuple[spec.Blocks, ...]:
    orders = spec.in_list_orders(generation, "m", "v")
    with_product = {NOWHERE: orders, FIRST: ((PRODUCT, *orders[-1]),), LAST: ((*orders[-1], PRODUCT),)}
    return tuple(blocks for place in traits(generation).product_places for blocks in with_product[place])


def _arguments(config: spec.Config, generation: str) -> dict[str, Any]:
    of = traits(generation)
    key = of.schedule_decay_key if of.schedule_decay_key in config else "schedule_decay"
    return {
        "beta_1": spec.number(config, "beta_1"),
        "beta_2": spec.number(config, "beta_2"),
        "epsilon": spec.epsilon(config, generation),
        "schedule_decay": spec.number(config, key) if of.has_schedule_decay else 1.0,
    }


def _defaults(generation: str) -> dict[str, Any]:
    of = traits(generation)
    rate = 0.002 if of.has_rates_of_papers else 0.001
    schedule = {"schedule_decay": 0.004} if of.has_schedule_decay else {}
    return {"learning_rate": rate, "beta_1": 0.9, "beta_2": 0.999, **schedule, **spec.default_epsilon(generation)}


def _in_float32(arguments: spec.Config, generation: str) -> dict[str, Any]:
    """Return the rounded betas. Every release casts them, and computes their powers, in the variable's dtype."""
    return {"float32_powers": True, **spec.rounded("beta_1", "beta_2")(arguments, generation)}


def _lazy(config: spec.Config, generation: str) -> str | None:
    return spec.STILL if traits(generation).has_sparse_kernels else None


def product(beta_1: float, schedule_decay: float, steps: int) -> float:
    """Return μ_1 · μ_2 ··· μ_steps, with μ_t = beta_1 · (1 − ½·0.96^(schedule_decay·t))."""
    value = 1.0
    for t in range(1, steps + 1):
        value *= beta_1 * (1.0 - 0.5 * 0.96 ** (schedule_decay * t))
        if value == 0.0:
            break
    return value


def _contradiction(value: float, arguments: spec.Config, generation: str, steps: int) -> str:
    """Return why a stored product contradicts the step count; empty if it agrees, or if float32 has lost it."""
    expected = product(arguments["beta_1"], arguments["schedule_decay"], steps)
    if max(value, expected) < VANISHED:
        return ""
    slack = ROUNDING * (steps + 10)
    if abs(value - expected) <= expected * slack:
        return ""
    per_variable = value < expected and traits(generation).multiplies_product_by_variable
    if per_variable and value < NO_PART_OF_ONE:
        return ""
    difference = f"{PRODUCT}, the product of Nadam's momenta, is {value:.9g}, but {steps} steps give {expected:.9g}"
    if per_variable:
        return (
            f"{difference}: inside fit that release multiplies it once per variable and continues to do so; here it"
            " is multiplied once per step"
        )
    return f"{difference}: it restarted at 1 after a reload, or the number of steps belongs to another run"


VANISHED = 1e-30
NO_PART_OF_ONE = 2.0**-25
"""Below this product, float32 rounds one minus the product to one, so further factors change nothing.

A step divides by one minus the product.
"""
ROUNDING = 2.0**-22
"""Relative rounding error of each step: a product and two factors in float32."""


def _state(arguments: spec.Config, scalars: Mapping[str, float], generation: str, iterations: int) -> spec.State:
    """Return the product as the source stores it. Optimizers from 2.9 on multiply it inside `fit` once per variable."""
    computed = product(arguments["beta_1"], arguments["schedule_decay"], iterations)
    if PRODUCT in scalars:
        value = scalars[PRODUCT]
        if not 0 <= value <= 1:
            raise DamagedFileError(
                f"{PRODUCT}, the product of Nadam's momenta, is {value!r}, which is not between 0 and 1"
            )
        doubt = _contradiction(value, arguments, generation, iterations)
        goes_on_so = traits(generation).multiplies_product_by_variable and value < computed
        confirm = confirming(PRODUCT, value) if doubt and not goes_on_so else ""
        return {PRODUCT: value}, (Origin(PRODUCT, value, FILE, "a variable of the optimizer", doubt, confirm),)
    if iterations == 0:
        return {PRODUCT: 1.0}, (Origin(PRODUCT, 1.0, RELEASE, "no step was taken"),)
    why = "it restarts at 1 after a reload"
    if traits(generation).multiplies_product_by_variable:
        why = "inside fit these releases multiply it once per variable"
    elif traits(generation).is_newer_than_v2:
        why += ", as on JAX each step does"
    doubt = (
        f"{PRODUCT}, the product of Nadam's momenta, is not in the source: {iterations} step"
        f"{'s give' if iterations > 1 else ' gives'} {computed:.9g}, but {why}"
    )
    confirm = confirming(PRODUCT, computed)
    return {PRODUCT: computed}, (Origin(PRODUCT, computed, COMPUTED, doubt=doubt, confirm=confirm),)


ALGORITHM = spec.Algorithm(
    name="Nadam",
    slots=spec.slots_of(NadamRule(), m=("momentums", "momentum", "ms"), v=("velocities", "velocity", "vs")),
    blocks=_blocks,
    arguments=_arguments,
    defaults=_defaults,
    counts=spec.COUNTED,
    scalars=("beta_1", "beta_2"),
    in_float32=_in_float32,
    uses_count=True,
    state_scalars=((PRODUCT, ("momentum_cache", "m_schedule", "_u_product")),),
    state=_state,
    time_decay=False,
    lazy=_lazy,
)
