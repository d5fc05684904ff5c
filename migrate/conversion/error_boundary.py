"""Turn exceptions of libraries into our errors, in one place: a file is data, and may be damaged in any way."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from migrate.bytes.messages import worded
from migrate.errors import DamagedFileError
from optim.errors import CheckpointError, DtoptError

NO_SPACE = (28, 122, 27)
"""ENOSPC, EDQUOT, EFBIG."""
DAMAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)
"""Exceptions of h5py, zipfile, protobuf, json and numpy for malformed files."""


_within: ContextVar[bool] = ContextVar("within", default=False)


@contextmanager
def speaking() -> Iterator[None]:
    """Raise our own errors in the form of `messages.worded`, at the outermost level. The cause has the whole text."""
    is_outermost = not _within.get()
    token = _within.set(True)
    try:
        yield
    except DtoptError as error:
        text = worded(error.text)
        if not is_outermost or text == error.text:
            raise
        shown = type(error)(text)
        shown.questions, shown.commands = error.questions, error.commands
        raise shown from error
    finally:
        _within.reset(token)


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn any library exception on a damaged file into DamagedFileError, and ours as in `speaking`."""
    with speaking():
        try:
            yield
        except DAMAGE as error:
            if isinstance(error, DtoptError):
                raise
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                text = f"writing failed: {error}; make room and try again, nothing was changed"
                raise CheckpointError(text) from error
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise DamagedFileError(
                f"{path} cannot be read ({what}): it is damaged, or of an unknown kind; copy it again,"
                " and if it is sound, report it with what --debug shows"
            ) from error
