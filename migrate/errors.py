"""Errors of `migrate`, all of the one DtoptError family; each says what, where and what to do next."""

from __future__ import annotations

from optim.errors import DamagedFileError as DamagedFileError
from optim.errors import DtoptError
from optim.errors import UnknownFormatError as UnknownFormatError


class ArgumentError(DtoptError, TypeError):
    """An argument is of another kind than it can be; the message names it. No file was opened."""

    exit_code = 2


class AmbiguousError(DtoptError, ValueError):
    """More than one reading of the source fits; the message lists them and the hint that decides."""


class ContradictionError(DtoptError, ValueError):
    """Two sources of one fact say different things: the file, its graph, its numbers, or a hint. Both are shown."""


class MissingHintError(DtoptError, ValueError):
    """The source does not say something that is needed, and an option can: the message names that option."""


class TargetExistsError(DtoptError, FileExistsError):
    """The destination exists and may not be replaced."""

    exit_code = 2


class StrictError(DtoptError, ValueError):
    """`strict` was asked for and the conversion is not exact."""

    exit_code = 1
