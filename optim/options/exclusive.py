"""Options of an optimizer that cannot be on together, declared once for optimizers and for writers of their configs.

Nothing here imports TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optim.errors import HyperparameterError

EXCLUSIVE = (
    ("clipnorm", "global_clipnorm", "the one limits each gradient, the other all of them together"),
    ("use_ema", "stochastic_average", "both fill the slot `average`"),
    ("lazy_rows", "lookahead", "slow weights are those of all rows"),
    ("lazy_rows", "adaptive_grad_clip", "the norms of units are those of all rows"),
    ("lazy_rows", "cautious", "the scale of a cautious step is that of all rows"),
    (
        "master_copies",
        "stochastic_rounding",
        "variables are the roundings of their copies, or are what a step works on",
    ),
)
"""(option, other option, why only one of them can be on)."""


def is_on(value: Any) -> bool:
    """Whether a value switches an option on."""
    return value is not None and value is not False and value != () and value != []


def conflict(config: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """The first of EXCLUSIVE of which a config has both on."""
    return next((pair for pair in EXCLUSIVE if is_on(config.get(pair[0])) and is_on(config.get(pair[1]))), None)


def described(pair: tuple[str, str, str]) -> str:
    """What is wrong with two options."""
    one, other, why = pair
    return f"{one} and {other} exclude each other: {why}"


def check(**options: Any) -> None:
    """Raises HyperparameterError for two options that are on and exclude each other."""
    pair = conflict(options)
    if pair is not None:
        raise HyperparameterError(f"{described(pair)}; give one")
