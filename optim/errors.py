"""Every error that dtopt raises on purpose, in one family.

Each message states what is wrong, where, and what to do next. Each class is also the built-in type that callers of the
Keras API expect (`ValueError`, `KeyError`, `TypeError`), so that existing `except` clauses keep working. This module
imports nothing, so that every part of dtopt may use it at no cost.
"""

from __future__ import annotations


class DtoptError(Exception):
    """Base of all errors that dtopt raises on purpose.

    `exit_code` is the exit code of the command line: 1 the answer is no, 2 usage, 3 the input is broken or unsupported,
    4 nothing ran, 5 too noisy, 6 incomparable.
    """

    exit_code = 3
    questions: object = None
    """Questions of `migrate`, as `migrate.claims.Questions`."""
    commands: tuple[str, ...] = ()
    """Commands to type next. A command is complete, and is on a separate line after the text."""

    @property
    def text(self) -> str:
        """Return the message without its commands."""
        return " ".join(str(part) for part in self.args)

    def __str__(self) -> str:  # KeyError would print the repr of its argument
        return "\n".join((self.text, *self.commands))


class HyperparameterError(DtoptError, ValueError):
    """A hyperparameter or option is out of range, contradictory or not a number."""

    exit_code = 2


class GradientsError(DtoptError, TypeError):
    """`grads_and_vars` is not a sequence of (gradient, variable) pairs, or a gradient is of an unusable kind."""


class NoGradientsError(DtoptError, ValueError):
    """Every gradient of a step is None."""


class UnknownVariableError(DtoptError, KeyError):
    """The optimizer has no state for a variable, or no slot of that name."""


class MismatchError(DtoptError, ValueError):
    """Shape, dtype, layout or mesh of a tensor does not fit its variable."""


class CheckpointError(DtoptError, ValueError):
    """A checkpoint is missing, damaged, of another kind, or does not fit the variables."""


class DamagedFileError(CheckpointError):
    """A file is truncated, or its bytes contradict its own checksums, sizes or structure."""


class UnknownFormatError(DtoptError, ValueError):
    """No reader recognises a source, or it does not have the requested format."""


class UnsupportedError(DtoptError, ValueError):
    """The request cannot be done here; the message explains why and what can be done."""
