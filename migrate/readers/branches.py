"""Derive from the names of an optimizer's variables where they were created."""

from __future__ import annotations

import re
from collections.abc import Iterable

from migrate.state import CHANGED


def on_condition(names: Iterable[str]) -> dict[str, str]:
    """Warn if an optimizer created its variables in a branch of `tf.cond`, `cond/Adam/iter`: its first step was in one.

    A LossScaleOptimizer does the same, but skips only steps with overflows.
    """
    branch_name = next((name for name in names if re.match(r"cond(_\d+)?/", name)), None)
    text = f"{branch_name!r} was created in a branch of tf.cond: perhaps not every batch makes a step"
    return {} if branch_name is None else {CHANGED: text}
