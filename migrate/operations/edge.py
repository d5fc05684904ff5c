"""The one place where an exception of a library becomes an error of ours: a file is data, and may be damaged anyhow."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from migrate.bytes import urls
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
"""What h5py, zipfile, protobuf, json and numpy raise on files that nobody wrote as they are."""


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Raises DamagedFileError for whatever a library raises on a damaged file, and our own errors as they are."""
    try:
        yield
    except DtoptError as error:
        if _shown(str(error)) == str(error):
            raise
        raise type(error)(_shown(str(error))) from None
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise CheckpointError(f"writing failed: {error}; make room and try again, nothing was changed") from error
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        text = (
            f"{path} cannot be read ({what}): it is damaged, or of a kind that is not known here; copy it again, and if"
            " it is sound, report it with what --debug shows"
        )
        raise DamagedFileError(_shown(text)) from error


def _shown(text: str) -> str:
    """A message without credentials, and with the control characters of damaged names as a terminal may show them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in urls.shown(text))
