"""Errors of `migrate`, all DtoptError: each explains what is wrong, where, and what to do next."""

from __future__ import annotations

from optim.errors import DamagedFileError as DamagedFileError
from optim.errors import DtoptError
from optim.errors import UnknownFormatError as UnknownFormatError


class ArgumentError(DtoptError, TypeError):
    """An argument has the wrong type; the message names it. No file was opened."""

    exit_code = 2


class AmbiguousError(DtoptError, ValueError):
    """More than one reading of the source fits; the message lists them and the hint that resolves it."""


class ContradictionError(DtoptError, ValueError):
    """Two sources of one fact contradict each other: the file, its graph, its numbers, or a hint. Both are shown."""


class MissingHintError(DtoptError, ValueError):
    """The source does not contain something necessary; the message names the option that supplies it."""


class TargetExistsError(DtoptError, FileExistsError):
    """The destination exists and may not be replaced."""

    exit_code = 2


class StrictError(DtoptError, ValueError):
    """`strict` was requested and the conversion is not exact."""

    exit_code = 1
