"""Shared parts of the writers of single files: which file may be replaced, and how a finished one appears."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from migrate.bytes.source import check_unchanged
from migrate.errors import TargetExistsError
from optim.bytes import files, system
from optim.errors import DtoptError, HyperparameterError

WITHOUT_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of file systems without hard links: FAT, SMB, mounted drives and buckets."""


def check_target(
    dest: str, suffix: str | tuple[str, ...], sniff: Callable[[str], bool], otherwise: str, *, overwrite: bool
) -> None:
    """Raise HyperparameterError for another suffix, TargetExistsError if `dest` may not be replaced.

    Args:
      sniff: whether a file may be replaced; `otherwise` describes one that may not.
    """
    if not dest.endswith(suffix):
        first = suffix if isinstance(suffix, str) else suffix[0]
        raise HyperparameterError(f"{dest}: this target is a {first} file; give a name that ends so")
    if not files.exists(dest):
        return
    if not overwrite:
        raise TargetExistsError(f"{dest} exists; give another name, or --overwrite to replace it")
    try:
        known = sniff(dest)
    except DtoptError as error:
        raise TargetExistsError(f"{dest} is not replaced: {error}") from error
    if not known:
        raise TargetExistsError(f"{dest} {otherwise}, so it is not replaced; give another name")


def place(path: str, dest: str, *, overwrite: bool) -> None:
    """Make a finished file durable and give it its name. Raises TargetExistsError if the name was taken meanwhile."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    check_unchanged()
    try:
        if not overwrite:
            os.link(path, dest)  # unlike a rename, never replaces a new file
    except OSError as error:
        if os.path.lexists(dest):
            raise TargetExistsError(f"{dest} was created by somebody else meanwhile; it was left as it is") from error
        if error.errno not in WITHOUT_LINKS:
            raise
        overwrite = True
    if overwrite:
        os.replace(path, dest)
    system.sync_folder(os.path.dirname(os.path.abspath(dest)))
