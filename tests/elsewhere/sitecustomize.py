"""Python as on another system: nothing that POSIX alone has, no TensorFlow, and files that are open keep their names.

A folder of this file first on PYTHONPATH makes every process of a command so.
"""

import os
import signal
import sys

ABSENT = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "tensorflow", "keras", "tf_keras")
for name in ABSENT:
    sys.modules[name] = None
for module, names in (
    (os, ("preadv", "pread", "pwrite", "pwritev", "fdatasync", "sched_getaffinity", "fork", "getuid", "geteuid",
          "getpgid", "sysconf", "mkfifo", "posix_fadvise", "copy_file_range", "sendfile", "O_CLOEXEC", "O_DIRECTORY",
          "O_NOFOLLOW", "fchmod", "chown", "killpg", "setsid")),
    (signal, ("pthread_sigmask", "SIGHUP", "SIGALRM", "alarm", "setitimer")),
):  # fmt: skip
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

_open, _rename, _replace, _unlink = os.open, os.rename, os.replace, os.unlink


def _is_open(path):
    """Whether this process has the file open, or one in the folder."""
    real = os.path.realpath(os.fspath(path))
    for number in os.listdir("/proc/self/fd"):
        try:
            held = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if held == real or held.startswith(real + "/"):
            return held
    return ""


def open_file(path, flags, *args, **options):
    if not isinstance(path, int) and os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return _open(path, flags, *args, **options)


def rename(source, dest, **options):
    for path in (source, dest):
        if os.path.lexists(path) and _is_open(path):
            raise PermissionError(13, "used by another process", source, None, dest)
    if os.path.lexists(dest):
        raise FileExistsError(17, "File exists", source, None, dest)
    _rename(source, dest, **options)


def replace(source, dest, **options):
    for path in (source, dest):
        if os.path.lexists(path) and _is_open(path):
            raise PermissionError(13, "used by another process", source, None, dest)
    _replace(source, dest, **options)


def unlink(path, **options):
    if _is_open(path):
        raise PermissionError(13, "used by another process", path)
    _unlink(path, **options)


os.open, os.rename, os.replace, os.unlink, os.remove = open_file, rename, replace, unlink, unlink
