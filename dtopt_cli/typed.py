"""The command as it was typed, and the same with the options that answer what is open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from dtopt_cli import output, parsing

if TYPE_CHECKING:
    from migrate.batches.results import BatchItem
    from migrate.claims import Questions
    from migrate.conversion.convert import Report
    from migrate.conversion.inspection import Inspection

ReportT = TypeVar("ReportT", "Report", "Inspection", "BatchItem")
SINGLE = ("--generation", "--optimizer", "--order", "--variables")
"""Options of which another value takes the place of the one that was typed."""
ENDS = ("--set", *SINGLE)


@dataclass
class Typed:
    """The words after `dtopt`."""

    words: tuple[str, ...] = ()


typed = Typed()


class Recording(parsing.Group):
    """Keeps the words of each command, and has `migrate` word its messages for the command line."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        from migrate import surfaces

        typed.words = tuple(args)
        with parsing.usage_errors():
            context = super().make_context(info_name, args, parent, **extra)
        context.with_resource(surfaces.speaking(surfaces.SHELL))
        return context

    def invoke(self, ctx: Any) -> Any:
        with parsing.usage_errors():
            return super().invoke(ctx)


def answering(words: Sequence[str], questions: Questions, *, exists: bool = False) -> tuple[str, tuple[str, ...]]:
    """The command that answers every question with one answer, and those with each answer of the others.

    Args:
      words: of a command, without `dtopt`. exists: whether the command has written its target.
    """
    from migrate import surfaces

    written = ("--overwrite",) if exists and "--overwrite" not in words else ()

    def command(answers: Mapping[str, Any]) -> str:
        return shown((*with_options(words, surfaces.words(answers)), *written))

    return command(questions.answers) if questions.answers else "", tuple(map(command, questions.choices))


def answered(report: ReportT, words: Sequence[str] | None = None, *, exists: bool = False) -> ReportT:
    """A report with commands instead of calls in Python.

    Args:
      words: of the command; None for the one that was typed. exists: whether it has written its target.
    """
    confirm, choices = answering(typed.words if words is None else words, report.questions, exists=exists)
    return replace(report, confirm_command=confirm, choice_commands=choices)


def answers_to(error: BaseException) -> tuple[str, tuple[str, ...]]:
    """What to type next after an error."""
    from optim.errors import DtoptError

    if not isinstance(error, DtoptError):
        return "", ()
    if error.questions is None:
        return "", error.commands
    from migrate.claims import asked_by

    return answering(typed.words, asked_by(error))


def with_options(words: Sequence[str], more: Sequence[str]) -> list[str]:
    """Words of a command with options in addition, instead of those of the same name, for `--set NAME=` of one NAME."""
    answered = set(_keys(more))
    keys = list(_keys(words))
    left = [word for word, key in zip(words, keys, strict=True) if key == ("",) or key not in answered]
    return [*left, *more]


def _keys(words: Sequence[str]) -> Iterable[tuple[str, ...]]:
    """What each word sets: an option and, for --set, its name; nothing for other words."""
    before = ""
    for word, after in zip(words, (*words[1:], ""), strict=True):
        option, equals, value = word.partition("=")
        if before in ENDS:
            yield _key(before, word)
            before = ""
            continue
        before = word
        yield _key(option, value if equals else after) if option in ENDS else ("",)


def _key(option: str, value: str) -> tuple[str, ...]:
    return (option, value.partition("=")[0].strip()) if option == "--set" else (option,)


def shown(words: Iterable[str]) -> str:
    """A command of `dtopt` as it is typed."""
    return " ".join(("dtopt", *map(output.typed_word, words)))
