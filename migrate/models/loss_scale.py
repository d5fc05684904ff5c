"""The loss scale of mixed precision: a wrapper around the optimizer that changes the scale after overflows, and nothing
else. Source: `loss_scale_optimizer.py` of tf_keras 2.21 and Keras 3.15."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from migrate.bytes.arrays import LazyArray
from migrate.models.normalized_config import Layer, leaves
from migrate.state import OptimizerState
from optim import slot_layout

DEFAULT_SCALE, DEFAULT_GROWTH = 2.0**15, 2000
MIXED = "mixed_float16"
SCALARS = (slot_layout.LOSS_SCALE, slot_layout.FINITE_STEPS)


@dataclass(frozen=True)
class LossScale:
    """`current` scale and steps `since` its last change, `initial` scale and steps until it grows; None for a constant
    scale. `is_known`: whether the source stores the first two."""

    current: float
    since: int
    initial: float
    growth: int | None
    is_known: bool = True

    def differences(self, keeps_count: bool) -> list[str]:
        """Explain why a target scales differently; `keeps_count`: whether it stores the steps since the last change."""
        if self.growth is None:
            return []
        if not self.is_known:
            return [
                f"the source does not store its current loss scale; it starts again from {self.initial:g}, so steps may"
                " overflow and be skipped that were not, or the reverse. A SavedModel stores it, and slots"
                " do not depend on it"
            ]
        if keeps_count or not self.since:
            return []
        return [
            f"the loss scale grows {self.since} step{'s' * (self.since != 1)} later, because an .h5 does not store the"
            " steps since its last change; a .keras does"
        ]


def find(state: OptimizerState, document: Layer | None) -> LossScale | None:
    """The wrapper of the source's optimizer, the default one if only the policy requires it, or None."""
    config = state.source.optimizer_config if state.source is not None else None
    settings: Mapping[str, Any] = {}
    if config is not None and "LossScale" in str(config.get("class_name")):
        settings = config.get("config", {})
    elif document is None or not any(leaf.config.get("dtype") == MIXED for leaf in leaves(document)):
        return None
    settings = _since_2_4(settings)
    initial = float(settings.get("initial_scale") or DEFAULT_SCALE)
    growth = int(settings.get("dynamic_growth_steps") or DEFAULT_GROWTH) if settings.get("dynamic", True) else None
    stored = kept(state.unmapped)
    since, current = stored or (0, initial)
    return LossScale(current, since, initial, growth, stored is not None)


def _since_2_4(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings in the form of TF 2.4 and later; earlier ones have an object (`mixed_precision/loss_scale.py`
    2.3)."""
    scale = settings.get("loss_scale")
    if not isinstance(scale, Mapping):
        return settings
    settings = scale.get("config", {})
    if scale.get("class_name") == "FixedLossScale":
        return {"dynamic": False, "initial_scale": settings.get("loss_scale_value")}
    return {
        "initial_scale": settings.get("initial_loss_scale"),
        "dynamic_growth_steps": settings.get("increment_period"),
    }


def kept(unmapped: Mapping[str, LazyArray]) -> tuple[int, float] | None:
    """Steps and scale from Keras 3's wrapper, whose variables are [0, 0.0, steps, scale]; an `.h5` and a TensorFlow
    checkpoint have them by name, also those of Keras 2 (`_DynamicLossScaleState` in 2.15)."""
    matches = (
        [a for name, a in unmapped.items() if name == place or name.rpartition("/")[2] in called]
        for place, *called in (
            ("optimizer/vars/2", "step_counter", "good_steps"),
            ("optimizer/vars/3", "dynamic_scale", "current_loss_scale"),
        )
    )
    steps, scales = matches
    if len(steps) != 1 or len(scales) != 1 or steps[0].shape != () or scales[0].shape != ():
        return None
    return int(steps[0].load()), float(scales[0].load())


def scalars(state: OptimizerState) -> dict[str, float]:
    """Return the current scale and the steps since its last change under `optim`'s names, if the source stores them."""
    stored = kept(state.unmapped)
    values = {} if stored is None else {slot_layout.FINITE_STEPS: float(stored[0]), slot_layout.LOSS_SCALE: stored[1]}
    return values | {name: state.scalars[name] for name in SCALARS if name in state.scalars}


@dataclass(frozen=True)
class Scaling:
    """How a loss is scaled: the steps until a dynamic scale grows (None for a constant one), and the current scale
    `now` (None if unknown)."""

    growth: int | None
    now: float | None

    def __str__(self) -> str:
        how = "constant" if self.growth is None else f"dynamic, doubled after {self.growth} steps"
        return f"{how}, now {self.now:g}" if self.now is not None else how

    @property
    def has_lost_scale(self) -> bool:
        """Whether the scale changes while training, and nothing shows its current value."""
        return self.growth is not None and self.now is None

    def fits(self, other: Scaling) -> bool:
        """Whether both scale in the same way, as far as it is known."""
        return self.growth == other.growth and (None in (self.now, other.now) or self.now == other.now)


def of_arguments(values: Mapping[str, Any]) -> Scaling | None:
    """The scaling set by arguments of `optim`."""
    scale = values.get("loss_scale")
    if not scale:
        return None
    if scale != "dynamic":
        return Scaling(None, float(scale))
    return Scaling(int(values.get("loss_scale_growth_steps") or DEFAULT_GROWTH), None)


def of_state(state: OptimizerState) -> Scaling | None:
    """The scaling of a source: from its arguments, its optimizer's wrapper, its model's policy, or dtopt's own
    record."""
    scaling, source = of_arguments(state.hyperparameters), state.source
    if scaling is not None and scaling.growth is not None:
        scaling = replace(scaling, now=state.scalars.get(slot_layout.LOSS_SCALE))
    if scaling is not None or source is None:
        return scaling
    if source.loss_scaling is not None:
        return Scaling(*source.loss_scaling)
    wrapper = find(state, None)
    if wrapper is not None:
        return Scaling(wrapper.growth, wrapper.current if wrapper.growth is None or wrapper.is_known else None)
    is_mixed = source.model is not None and MIXED in json.dumps(source.model.config, default=str)
    return Scaling(DEFAULT_GROWTH, None) if is_mixed else None
