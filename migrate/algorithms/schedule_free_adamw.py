"""ScheduleFreeAdamW of Keras 3.14 and 3.15: the slot `momentum` is the point z at which the steps act.

The variable is y, between z and the average x, and x follows from both. The backends differ in this: on TensorFlow and
PyTorch, `momentum.value` is the variable and already holds the new z when Keras reads it. On JAX it is the old z
(`backend/*/core.py`). Step counters distinguish TensorFlow from the other two.

Source: `optimizers/schedule_free_adamw.py` 3.14 and 3.15 (the same).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from migrate.algorithms import spec
from migrate.claims import RELEASE, Origin
from migrate.facts.rules import LATE, SCHEDULE_FREE
from migrate.releases.versions import TENSORFLOW
from optim.rules.schedule_free_adamw import ScheduleFreeAdamWRule


def _blocks(generation: str, config: spec.Config) -> tuple[spec.Blocks, ...]:
    return ((spec.Block(("z", "v")),),)


def _arguments(config: spec.Config, generation: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {key: spec.number(config, key) for key in ("beta_1", "beta_2", "warmup_steps")}
    return {**arguments, "epsilon": spec.epsilon(config, generation), "weight_decay_in_step": False}


def _by_release(config: spec.Config, releases: spec.Releases) -> spec.ByRelease:
    answer = SCHEDULE_FREE.of(releases)
    if answer is not None:
        return {"late_z": answer == LATE}, {}
    if all(r.backend != TENSORFLOW for r in releases):
        text = (
            "Keras on PyTorch averages the new z and not the old one; dtopt assumes PyTorch, because the"
            " source does not show JAX"
        )
        return {"late_z": False}, {"late_z": text}
    text = (
        "Keras on TensorFlow and PyTorch averages the new z, and on JAX the old one. The source does not show"
        " the backend; dtopt assumes TensorFlow (on JAX late_z is false)"
    )
    return {"late_z": True}, {"late_z": text}


def _state(arguments: spec.Config, scalars: Mapping[str, float], generation: str, iterations: int) -> spec.State:
    """Return the state. Each step weighs 1 at any learning rate, so the sum of weights is the number of steps."""
    weights = {"weight_sum": float(iterations), "largest_rate": 0.0}
    return weights, tuple(Origin(key, value, RELEASE, "each step has the weight 1") for key, value in weights.items())


def _in_float32(arguments: spec.Config, generation: str) -> dict[str, Any]:
    return {**spec.rounded("beta_1", "beta_2", "epsilon")(arguments, generation), "float32_powers": True}


ALGORITHM = spec.Algorithm(
    name="ScheduleFreeAdamW",
    slots=spec.slots_of(ScheduleFreeAdamWRule(), z=("momentums", "momentum"), v=("velocities", "velocity")),
    blocks=_blocks,
    arguments=_arguments,
    defaults=spec.constants(learning_rate=0.0025, beta_1=0.9, beta_2=0.999, epsilon=1e-8, warmup_steps=0),
    in_float32=_in_float32,
    uses_count=True,
    by_release=_by_release,
    state=_state,
    keras3_since="3.14.0",
)
