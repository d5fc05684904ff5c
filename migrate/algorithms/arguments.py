"""What is made of a config: keyword arguments of an `optim` class, each with where it is from."""

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
    """Keyword arguments of an `optim` class, and what a person should know about how they were found."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    """Of each value, by its name; and of what is no value and matters."""
    warnings: list[str] = field(default_factory=list)

    def copy(self) -> Arguments:
        """The same, to be changed."""
        return Arguments(dict(self.values), dict(self.origins), [*self.warnings])

    def doubt(self, subject: str, text: str, kind: str = DEFAULT, confirm: str = "") -> None:
        """Say why a value need not be right."""
        known = self.origins.get(subject)
        told = f"{known.doubt}; {text}" if known is not None and known.doubt else text
        self.origins[subject] = Origin(subject, self.values.get(subject), kind, doubt=told, confirm=confirm)

    def doubt_fact(self, fact: Fact, releases: Sequence[Release], when: str, value: Any = None) -> None:
        """Question what releases answer differently, with each `--set` that resolves it.

        Args:
          when: the question arises. value: that `--set` gives, None for the answer itself.
        """
        if warning := fact.warning(releases):
            ways = (
                {answer: fact.keys[answer] for answer in reversed([*fact.answers])} if fact.keys else {"": fact.subject}
            )
            texts = (confirming(key, answer if value is None else value) for answer, key in ways.items())
            self.doubt(fact.subject, f"{when}: {warning}", confirm=" or ".join(texts))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why they are not certain to be exact; empty if they are."""
        return claims.reasons(self.origins.values())
