"""Ctrl-C where a library hides it."""

from __future__ import annotations


def interruption(error: BaseException) -> BaseException | None:
    """The Ctrl-C, or the end of the process, that is behind an error, None where none is: C code that does not expect
    either, as h5py's locks, makes a SystemError of it."""
    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, (KeyboardInterrupt, SystemExit)):
        behind = behind.__cause__ or behind.__context__
    return behind
