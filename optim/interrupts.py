"""Find Ctrl-C inside the errors of libraries that hide it."""

from __future__ import annotations


def interruption(error: BaseException) -> BaseException | None:
    """Return the Ctrl-C, or the end of the process, that caused an error; None if neither did.

    C code that expects neither, such as h5py's locks, converts it to a SystemError.
    """
    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, (KeyboardInterrupt, SystemExit)):
        behind = behind.__cause__ or behind.__context__
    return behind
