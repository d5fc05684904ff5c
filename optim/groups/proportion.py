"""How the learning rates of all groups follow that of the main one."""

from __future__ import annotations

from optim.errors import HyperparameterError

IS_ZERO = "learning_rate is 0, so that the rates of the other groups cannot follow it: set that of each of `members`"


def factor_between(before: float, after: float) -> float:
    """What the rates of other groups are multiplied with. Raises HyperparameterError: `before` is 0."""
    if before == 0.0:
        raise HyperparameterError(IS_ZERO)
    return after / before
