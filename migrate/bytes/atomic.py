"""Write folders completely or not at all, even if the process is killed: by rename, fsync and locks."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator

from migrate.bytes.source import check_unchanged
from migrate.errors import TargetExistsError
from optim.bytes import system
from optim.errors import CheckpointError, DtoptError

LONGEST_NAME = 200
"""Longest name of a scratch folder in bytes, which leaves room for suffixes."""
ATTEMPTS = 100
"""At a folder that other runs take away before it is locked."""


@contextlib.contextmanager
def scratch_folder(dest: str) -> Iterator[str]:
    """Yield a temporary folder next to `dest`, and remove it at the end unless it was renamed.

    Parent folders created for it are removed too unless they contain the target.

    Scratch folders that killed runs left for the same `dest` are removed too: a running one locks its own.

    Raises:
      CheckpointError: the system refused a file operation (permission, no space, ...).
    """
    dest = os.path.abspath(dest)
    parent, name = os.path.split(dest)
    above = _missing_folders(parent)
    try:
        _remove_abandoned(parent, _scratch_prefix(name))
        folder, lock = _locked_folder(parent, _scratch_prefix(name))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            system.unlock(folder, lock)
    except DtoptError:
        raise
    except OSError as error:
        raise CheckpointError(f"writing {dest} failed: {error}; nothing was changed there") from error
    finally:
        for folder in above:
            with contextlib.suppress(OSError):  # it contains the target, or folders of other runs
                os.rmdir(folder)


def _missing_folders(folder: str) -> list[str]:
    folders = []
    while not os.path.lexists(folder):
        folders.append(folder)
        folder = os.path.dirname(folder)
    return folders


def _scratch_prefix(name: str) -> str:
    """The prefix; a digest for a long name, because no name may exceed 255 bytes."""
    short = name if len(os.fsencode(name)) <= LONGEST_NAME else hashlib.sha256(os.fsencode(name)).hexdigest()
    return f".{short}.dtopt-"


def _locked_folder(parent: str, prefix: str) -> tuple[str, int]:
    attempt = 0
    while True:
        attempt += 1
        folder = os.path.join(parent, prefix + secrets.token_hex(8))
        os.makedirs(parent, exist_ok=True)
        try:
            os.mkdir(folder)
            lock = system.lock(folder)
        except FileNotFoundError:
            if attempt == ATTEMPTS:  # proc, where nothing can be made/proc, where nothing can be made
                raise
            continue  # another run removed the parent folder, or this one before it was locked
        except (KeyboardInterrupt, SystemExit):
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if os.path.isdir(folder):
            return folder, lock
        system.unlock(folder, lock)


def _remove_abandoned(parent: str, prefix: str) -> None:
    for name in os.listdir(parent) if os.path.isdir(parent) else ():
        folder = os.path.join(parent, name)
        if not name.startswith(prefix) or os.path.islink(folder) or not os.path.isdir(folder):
            continue
        with contextlib.suppress(OSError), locked(folder, wait=False):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: str, *, wait: bool = True) -> Iterator[None]:
    """Lock a folder against other runs of dtopt; with `wait=False` raise BlockingIOError if it is locked."""
    descriptor = system.lock(folder, wait=wait)
    try:
        yield
    finally:
        system.unlock(folder, descriptor)


def write_synced(path: str, text: str) -> None:
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def place_folder(scratch: str, dest: str) -> None:
    """Give a finished scratch folder its name. Raises TargetExistsError if that name was taken meanwhile."""
    dest = os.path.abspath(dest)
    check_unchanged()
    system.sync_folder(scratch)
    try:
        os.rename(scratch, dest)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise TargetExistsError(f"{dest} was created by somebody else meanwhile; it was left as it is") from error
        raise
    system.sync_folder(os.path.dirname(dest))
