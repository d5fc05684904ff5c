"""Names of model variables, and the regular expressions of options that match them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from optim.errors import GradientsError


def listed(variables: Any) -> list[Any]:
    """Variables as a list. Raises GradientsError: one variable, or a model."""
    is_one = hasattr(variables, "dtype") and hasattr(variables, "shape")
    if is_one or not hasattr(variables, "__iter__"):
        weights = (
            "model.trainable_variables" if hasattr(variables, "trainable_variables") else "variables, as [weights]"
        )
        raise GradientsError(f"expected a list of variables, got {type(variables).__name__}; pass {weights}")
    return list(variables)


def plain_name(variable: Any) -> str:
    """Return the name of a variable without TensorFlow's output suffix; for Keras 3 its full path."""
    name = getattr(variable, "path", None) or getattr(variable, "name", None) or "variable"
    return str(name).split(":")[0]


def matches(patterns: Sequence[str], tracked: Any) -> bool:
    """Whether one of the regular expressions is found in the variable's name, here or in checkpoints."""
    return any(re.search(pattern, name) for pattern in patterns for name in tracked.names)
