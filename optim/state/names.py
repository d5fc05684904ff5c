"""Names of model variables, and the regular expressions of options that match them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any


def plain_name(variable: Any) -> str:
    """Return the name of a variable without TensorFlow's output suffix; for Keras 3 its full path."""
    name = getattr(variable, "path", None) or getattr(variable, "name", None) or "variable"
    return str(name).split(":")[0]


def matches(patterns: Sequence[str], tracked: Any) -> bool:
    """Whether one of the regular expressions is found in the variable's name, here or in checkpoints."""
    return any(re.search(pattern, name) for pattern in patterns for name in tracked.names)
