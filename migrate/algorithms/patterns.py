"""Regular expressions that choose variables, which their release matched with other names than `optim` does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from migrate.algorithms.addons import EXCLUDED
from migrate.algorithms.arguments import Arguments
from migrate.algorithms.lamb import NOT_ADAPTED
from migrate.bytes.messages import some
from migrate.evidence import COMPUTED, SET, confirming
from optim.errors import HyperparameterError


def check(told: Arguments, names: Sequence[str]) -> None:
    """Doubt patterns that choose otherwise here: `bias$` never matched `dense/bias:0`, which they were given, and a
    source that knows variables by their places in an object graph does not say what they were called.

    Args:
      names: of the trained variables.

    Raises:
      HyperparameterError: a person's patterns choose none of them.
    """
    plain = [name.removesuffix(":0") for name in names]
    for key in (EXCLUDED, NOT_ADAPTED):
        patterns = told.values.get(key) or ()
        if not patterns:
            continue
        chosen = [n for n in plain if any(re.search(p, n) or re.search(p, f"{n}:0") for p in patterns)]
        if key in told.origins and told.origins[key].kind == SET:
            if plain and not chosen:
                raise HyperparameterError(
                    f"{key} = {list(patterns)!r} chooses none of the variables, which are called {some(plain, 3)} in"
                    f" the source: give patterns of these names, or {confirming(key, [])} if none was left out"
                )
            continue
        other = [n for n in plain if any(bool(re.search(p, n)) != bool(re.search(p, f"{n}:0")) for p in patterns)]
        unnamed = [n for n in plain if "/" not in n and "." in n]
        confirm = confirming(key, list(patterns) if chosen else [])
        if other:
            text = f"{key}: its patterns match {some(other, 3)} with or without the :0 that names had there"
            told.doubt(key, text, COMPUTED, confirm)
        elif unnamed:
            text = f"{key}: the source does not say what {some(unnamed, 3)} was called, which patterns chose by"
            told.doubt(key, text, COMPUTED, confirm)


def choose_alike(one: Any, other: Any, names: Sequence[str]) -> bool:
    """Whether two lists of patterns choose the same of these variables."""
    if not all(isinstance(each, list) and all(isinstance(p, str) for p in each) for each in (one, other)):
        return False
    try:
        return all(any(re.search(p, n) for p in one) == any(re.search(p, n) for p in other) for n in names)
    except re.error:
        return False
