"""What the names of an optimizer's variables tell of where it made them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from migrate.state import CHANGED


def on_condition(names: Iterable[str]) -> dict[str, str]:
    """A doubt where an optimizer made its variables in a branch of `tf.cond`, as the first step does that is taken in
    one: `cond/Adam/iter`. So does a LossScaleOptimizer, which leaves out no step but those that overflow."""
    found = next((name for name in names if re.match(r"cond(_\d+)?/", name)), None)
    text = f"{found!r} was made in a branch of tf.cond, as where not each batch makes a step"
    return {} if found is None else {CHANGED: text}
