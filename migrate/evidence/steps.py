"""Ask a list of questions about a source. Each question gets the earlier answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

KnownT = TypeVar("KnownT")


@dataclass(frozen=True)
class Step(Generic[KnownT]):
    """One question.

    Attributes:
      question: in one line.
      answer: takes what is known and returns the answer, a new value; raises the error if the source is refused.
      gives: the attribute of what is known that holds the answer; empty for a check, which only refuses.
    """

    question: str
    answer: Callable[[KnownT], Any] = field(repr=False)
    gives: str = ""


def run(steps: Iterable[Step[KnownT]], known: KnownT) -> KnownT:
    """Ask each question in turn. Raises what a step raises."""
    for step in steps:
        answer = step.answer(known)
        if step.gives:
            setattr(known, step.gives, answer)
    return known
