"""Which group of an optimizer each variable belongs to: the first one with a pattern that is found in its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from optim.errors import HyperparameterError

if TYPE_CHECKING:
    from optim.state.tracked import Tracked

Pattern = str | None
"""A regular expression for `re.search`; None matches every name."""


class Selection:
    """The groups of the variables that an optimizer knows, by number.

    Args:
      patterns: one for each group, in the order in which they are tried.

    Raises:
      HyperparameterError: not a regular expression, the same one twice, or groups after None.
    """

    def __init__(self, patterns: Sequence[Pattern]):
        for pattern in patterns:
            _check(pattern)
        doubled = next((p for p in patterns if list(patterns).count(p) > 1), "")
        if doubled != "":
            raise HyperparameterError(f"groups: the pattern {doubled!r} appears twice; the second one matches nothing")
        if None in patterns[:-1]:
            raise HyperparameterError("groups: None matches all other variables; move its group to the end")
        self.patterns = tuple(patterns)
        self._members: list[list[Tracked]] = [[] for _ in patterns]
        self._numbers: dict[int, int] = {}

    @property
    def main(self) -> int:
        """The last group, which has the variables that no pattern of another group matches."""
        return len(self.patterns) - 1

    def number_for(self, names: Sequence[str]) -> int | None:
        """The group of a variable with these names; None if no pattern matches."""
        for number, pattern in enumerate(self.patterns):
            if pattern is None or any(re.search(pattern, name) for name in names):
                return number
        return None

    def check(self, names: Iterable[Sequence[str]]) -> None:
        """Refuse variables that have no group, and groups that stay without variables.

        Args:
          names: those of each variable, of all that the optimizer is built on.

        Raises:
          HyperparameterError: it lists the variables, or the patterns.
        """
        named_variables = list(names)
        numbers = [self.number_for(variable_names) for variable_names in named_variables]
        left = [
            variable_names[0] for variable_names, number in zip(named_variables, numbers, strict=True) if number is None
        ]
        if left:
            raise HyperparameterError(
                f"groups: no pattern matches {', '.join(map(repr, left))}. Add a group (None, optimizer) for all other"
                " variables"
            )
        used = {number for number in numbers if number is not None}
        used |= {number for number, members in enumerate(self._members) if members}
        empty = [p for number, p in enumerate(self.patterns) if number not in used and p is not None]
        if empty:
            known = ", ".join(variable_names[0] for variable_names in named_variables[:5]) + (
                ", ..." if len(named_variables) > 5 else ""
            )
            raise HyperparameterError(
                f"groups: no variable is left for {', '.join(map(repr, empty))}; the variables are {known}. Correct the"
                " pattern (`re.search`; the first match wins), or remove its group"
            )

    def add(self, new: Iterable[Tracked]) -> None:
        """Find the groups of variables that were checked."""
        for tracked in new:
            number = self.number_for(tracked.names)
            if tracked.index not in self._numbers and number is not None:
                self._numbers[tracked.index] = number
                self._members[number].append(tracked)

    def of(self, tracked: Tracked) -> int:
        """The number of a variable's group."""
        return self._numbers[tracked.index]

    def members(self, number: int) -> Sequence[Tracked]:
        """The variables of a group."""
        return self._members[number]


def _check(pattern: object) -> None:
    if pattern is None:
        return
    if not isinstance(pattern, str):
        raise HyperparameterError(f"groups: a pattern must be a regular expression or None, got {pattern!r}")
    try:
        re.compile(pattern)
    except re.error as error:
        raise HyperparameterError(f"groups: {pattern!r} is not a regular expression: {error}") from error
