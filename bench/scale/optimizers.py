"""Create the optimizer of `optim` for a plan."""

from __future__ import annotations

from typing import Any

from bench.forecast.footprint import Training
from bench.forecast.state import algorithm


def make(training: Training, placement: str, mesh: Any = None) -> Any:
    """Return the optimizer with the arguments, options and slot placement of a plan. Raises: UnknownNameError,
    OptionError."""
    import optim

    algorithm_ = algorithm(training.optimizer)
    options: dict[str, Any] = {"slot_placement": placement, "mesh": mesh}
    if training.clip != "none":
        options[training.clip] = 1.0
    if training.ema:
        options["use_ema"] = True
    if training.accumulate:
        options["gradient_accumulation_steps"] = 2
    return getattr(optim, algorithm_.class_name)(**algorithm_.hyperparameters, **options)
