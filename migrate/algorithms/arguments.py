"""The result of reading a config: keyword arguments of an `optim` class, each with its origin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from migrate import claims
from migrate.claims import DEFAULT, Origin, confirming
from migrate.facts.fact import Fact
from migrate.releases.table import Release


@dataclass
class Arguments:
    """Keyword arguments of an `optim` class, and what the user should know about where they come from."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    """Origin of each value by its name, and of what is not a value and still matters."""
    warnings: list[str] = field(default_factory=list)

    def copy(self) -> Arguments:
        """Return a copy that you can change."""
        return Arguments(dict(self.values), dict(self.origins), [*self.warnings])

    def doubt(self, subject: str, text: str, kind: str = DEFAULT, confirm: str = "") -> None:
        """Add a warning: why a value may be wrong."""
        origin = self.origins.get(subject)
        doubt = f"{origin.doubt}; {text}" if origin is not None and origin.doubt else text
        self.origins[subject] = Origin(subject, self.values.get(subject), kind, doubt=doubt, confirm=confirm)

    def doubt_fact(self, fact: Fact, releases: Sequence[Release], when: str, value: Any = None) -> None:
        """Add a warning about an answer that differs between releases, with each `--set` that resolves it.

        Args:
          when: the situation in which the question arises.
          value: what `--set` gives; None for the answer itself.
        """
        if warning := fact.warning(releases):
            ways = (
                {answer: fact.keys[answer] for answer in reversed([*fact.answers])} if fact.keys else {"": fact.subject}
            )
            texts = (confirming(key, answer if value is None else value) for answer, key in ways.items())
            self.doubt(fact.subject, f"{when}: {warning}", confirm=" or ".join(texts))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons why the arguments may not be exact; empty if they are exact."""
        return claims.reasons(self.origins.values())
