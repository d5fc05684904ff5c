"""Folders that appear whole or not at all, also when the process is killed: by rename, fsync and locks."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator

from migrate.bytes.source import still_the_same
from migrate.errors import TargetExistsError
from optim.bytes import system
from optim.errors import CheckpointError, DtoptError

LONGEST_NAME = 200
"""Bytes, with which a scratch folder's own name has room for the rest."""
ATTEMPTS = 100
"""At a folder that other runs take away before it is locked."""


@contextlib.contextmanager
def scratch_folder(dest: str) -> Iterator[str]:
    """A temporary folder next to `dest`, removed at the end whatever happened unless it was renamed meanwhile.

    Folders above that were made for it are removed with it unless they hold the target.

    Scratch folders that killed runs left for the same `dest` are removed, too: a living run holds a lock on
    its own.

    Raises:
      CheckpointError: the system refused a file operation (permission, no space, ...).
    """
    dest = os.path.abspath(dest)
    parent, name = os.path.split(dest)
    above = _missing(parent)
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
            with contextlib.suppress(OSError):  # it holds the target, or those of other runs
                os.rmdir(folder)


def _missing(folder: str) -> list[str]:
    """The folder and those above it that are not there, the deepest first."""
    found = []
    while not os.path.lexists(folder):
        found.append(folder)
        folder = os.path.dirname(folder)
    return found


def _scratch_prefix(name: str) -> str:
    """Of a long name a digest, as nothing in a folder may be called by more than 255 bytes."""
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
            if attempt == ATTEMPTS:  # as in /proc, where nothing can be made
                raise
            continue  # another run removed the folder above, or took this one for abandoned before it was locked
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
    """Hold a folder against other runs of dtopt; with `wait=False` BlockingIOError if one holds it."""
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
    """Give a finished scratch folder its name. Raises TargetExistsError if something took it meanwhile."""
    dest = os.path.abspath(dest)
    still_the_same()
    system.sync_folder(scratch)
    try:
        os.rename(scratch, dest)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise TargetExistsError(f"{dest} was created by somebody else meanwhile; it was left as it is") from error
        raise
    system.sync_folder(os.path.dirname(dest))
