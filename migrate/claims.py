"""The source of each value that the next step depends on. Fidelity follows from this alone."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from migrate import surfaces
from optim.errors import DtoptError

FILE, GRAPH, NAME, HINT, SET, RELEASE = "file", "graph", "name", "hint", "set", "release"
DEFAULT, COMPUTED, UNINTERPRETED = "default", "computed", "uninterpreted"
CERTAIN = frozenset({FILE, GRAPH, NAME, HINT, SET, RELEASE})
"""Read from the source, given by the user, or the only value that the release could have."""
MEANING = {
    FILE: "read from the source",
    GRAPH: "read from the source's graph",
    NAME: "read from names in the source",
    HINT: "given with --optimizer-config, --variables or --generation",
    SET: "given with --set",
    RELEASE: "implied by the release that wrote it",
    DEFAULT: "not in the source: assumed",
    COMPUTED: "not in the source: computed",
    UNINTERPRETED: "in the source, and not understood",
}
TRAINED = "trained variables"
"""The subject of origins about which variables the optimizer trains."""
EXACT, APPROXIMATE = "exact", "approximate"
CONFIRM, CHOOSE, SET_IT = "To confirm:", "Choose with", "Set it with"
_OPEN = re.compile(r"=(VALUE|N)$|, if |{[.]{3}}")
"""A value that the user must fill in."""


@dataclass(frozen=True)
class Origin:
    """One value and its source.

    Attributes:
      subject: `learning_rate`, `iterations`, `slot m`, `optimizer`, ...
      value: as JSON; a few words for an array.
      kind: one of MEANING.
      where: the place in the source, or the reason for the value.
      doubt: what may be wrong with it nevertheless; may be empty.
      confirm: the option that resolves it, `--set NAME=...`; several, separated by ` or `, if only the user can
        choose; `VALUE` or `N` for what only the user knows; may be empty.
    """

    subject: str
    value: Any
    kind: str
    where: str = ""
    doubt: str = ""
    confirm: str = ""

    @property
    def certain(self) -> bool:
        return self.kind in CERTAIN and not self.doubt

    @property
    def open(self) -> str:
        """Why it is not certain."""
        text = self.doubt or f"{self.subject} = {self.value!r} is {MEANING[self.kind]}"
        return f"{text} ({self.where})" if self.where and not self.doubt else text

    @property
    def reason(self) -> str:
        """Why it is not certain, with what resolves it."""
        text = self.open
        if not self.confirm:
            return text
        how = CHOOSE if " or " in self.confirm else SET_IT if _OPEN.search(self.confirm) else CONFIRM
        return f"{text}. {how} {self.confirm}"


def confirming(subject: str, value: Any) -> str:
    """The option that confirms a value, as typed in a shell."""
    return f"--set {shlex.quote(f'{subject}={surfaces.shown(value)}')}"


def fidelity(origins: Iterable[Origin]) -> str:
    """`exact` if every value is certain."""
    return EXACT if all(origin.certain for origin in origins) else APPROXIMATE


def reasons(origins: Iterable[Origin]) -> tuple[str, ...]:
    """Why it is not exact, each reason once."""
    return tuple(dict.fromkeys(origin.reason for origin in origins if not origin.certain))


@dataclass(frozen=True)
class Questions:
    """The open questions of a source, as values for `--set` or `overrides`.

    Attributes:
      answers: confirm all questions with one answer.
      choices: one of these for a question with several answers, each with `answers`.
    """

    answers: Mapping[str, Any]
    choices: tuple[Mapping[str, Any], ...]


NONE = Questions({}, ())


def questions(origins: Iterable[Origin]) -> Questions:
    """Join the answers of everything that is not certain."""
    answers: dict[str, Any] = {}
    several: list[dict[str, Any]] = []
    for ways in (surfaces.ways(origin.confirm) for origin in origins if not origin.certain):
        closed = [way for way in ways if way is not None]
        agrees = all(answers.get(key, value) == value for way in closed for key, value in way.items())
        if len(ways) == 1 and closed and agrees:
            answers |= closed[0]
        else:
            several += [way for way in closed if way not in several]
    return Questions(answers, tuple({**answers, **way} for way in several if not way.items() <= answers.items()))


ErrorT = TypeVar("ErrorT", bound=DtoptError)


def asking(error: ErrorT, questions: Questions, confirm: str = "", choices: Iterable[str] = ()) -> ErrorT:
    """Add the open questions to an error and, for Python, the calls that answer them; the command line writes its
    own."""
    error.questions = questions
    if surfaces.current.get() == surfaces.PYTHON:
        error.commands = tuple(command for command in (confirm, *choices) if command)
    return error


def asked_by(error: DtoptError) -> Questions:
    """The questions in an error."""
    return error.questions if isinstance(error.questions, Questions) else NONE


REMEMBERED = "dtopt_doubts"
"""The place of a Keras target's reasons why it is not exact, in case it becomes a source."""


MOST = 16  # reasons, each of some hundred characters


def remembered(texts: object) -> tuple[Origin, ...]:
    """What was uncertain when dtopt wrote a file still is, and could only be resolved where it was read.

    Args:
      texts: a list of them; anything else is ignored.
    """
    sentences = [str(text) for text in texts] if isinstance(texts, list) else []
    return tuple(
        Origin("migrated state", None, UNINTERPRETED, doubt=f"when dtopt wrote it: {sentence}")
        for sentence in sentences
    )


def to_remember(origins: Iterable[Origin]) -> list[str]:
    """The input of `remembered`; an HDF5 attribute has limited space."""
    return list(dict.fromkeys(origin.open for origin in origins if not origin.certain))[:MOST]


def doubts(subject: str, texts: Iterable[str]) -> tuple[Origin, ...]:
    """The changes of a conversion as origins: the values are computed, and differ from the source's."""
    return tuple(Origin(subject, None, COMPUTED, doubt=text) for text in texts)
