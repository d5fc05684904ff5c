"""The optimizers of plans as those of `optim`: class and arguments by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.forecast.footprint import Training
from bench.forecast.state import rule

CLASSES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "rmsprop": ("RMSprop", {}),
    "rmsprop-momentum": ("RMSprop", {"momentum": 0.9}),
    "rmsprop-centered": ("RMSprop", {"centered": True}),
    "rmsprop-centered-momentum": ("RMSprop", {"centered": True, "momentum": 0.9}),
    "adagrad": ("Adagrad", {}),
    "adadelta": ("Adadelta", {}),
    "adam": ("Adam", {}),
    "adam-amsgrad": ("Adam", {"amsgrad": True}),
    "adamw": ("AdamW", {}),
    "adamax": ("Adamax", {}),
    "nadam": ("Nadam", {}),
    "ftrl": ("Ftrl", {}),
    "lion": ("Lion", {}),
    "adafactor": ("Adafactor", {}),
    "lamb": ("Lamb", {}),
    "muon": ("Muon", {}),
}


def make(training: Training, placement: str, mesh: Any = None) -> Any:
    """The optimizer that a plan of this training is about. Raises: UnknownNameError."""
    import optim

    rule(training.optimizer)
    name, arguments = CLASSES[training.optimizer]
    options: dict[str, Any] = {"slot_placement": placement, "mesh": mesh}
    if training.clip != "none":
        options[training.clip] = 1.0
    if training.ema:
        options["use_ema"] = True
    if training.accumulate:
        options["gradient_accumulation_steps"] = 2
    return getattr(optim, name)(**arguments, **options)
