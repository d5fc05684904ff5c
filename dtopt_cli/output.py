"""Where things are printed: results on stdout, messages and progress on stderr, `--json` one document alone."""

from __future__ import annotations

import gc
import json
import os
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

TURN = 5e-4
"""Seconds that a thread runs Python while another waits: between reads of a large file one waits often."""
KERNELS = "DTOPT_KERNELS"
NEEDLESS = ("keras.src.optimizers", "tf_keras.src.optimizers", "jax", "scipy")
"""What TensorFlow imports where it is installed, for converters and old classes that are of no use here."""


def results() -> Console:
    """Console for results. Rich honours NO_COLOR, TERM=dumb and pipes by itself."""
    return _console(highlight=False, soft_wrap=not sys.stdout.isatty())


def messages() -> Console:
    """Console for progress, warnings and errors."""
    return _console(stderr=True, highlight=False, soft_wrap=True)


def _console(**options: Any) -> Console:
    from rich.console import Console

    class Plain(Console):
        """Shows control characters in what it prints."""

        def print(self, *objects: Any, **how: Any) -> None:
            super().print(*(plain(each) if isinstance(each, str) else each for each in objects), **how)

    return Plain(**options)


_CONTROLS = {i: f"\\x{i:02x}" for i in (*range(32), *range(127, 160)) if i != 10}


def plain(text: str) -> str:
    """Control characters as such, so that a name in a file cannot steer the terminal; undecodable bytes as escapes."""
    return text.translate(_CONTROLS).encode("utf-8", "backslashreplace").decode()


def line(text: str) -> str:
    """The same in one line: paths and names of files may hold line breaks."""
    return plain(text).replace("\n", "\\n")


def typed(path: str) -> str:
    """A path in a command to type, for the shells that people have: as `$'a\\nb'` where it holds control characters."""
    if line(path) == path:
        return shlex.quote(path)
    escaped = path.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{line(escaped)}'"


def message(text: str) -> str:
    """One line, no longer than `migrate`'s own messages."""
    from migrate.bytes import messages

    begins = "dtopt: "
    return begins + messages.line(" ".join(text.split("\n")), messages.LONGEST - len(begins))


def print_json(document: Any) -> None:
    """The only thing that `--json` prints. NaN and infinity are written as null: JSON has no word for them."""
    sys.stdout.write(json.dumps(_finite(document), indent=2, default=str) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and value - value != 0:
        return None
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value


@contextmanager
def importing_tensorflow() -> Iterator[None]:
    """Import TensorFlow in a thread, for a single step; an `import` of it waits until that is done, and so does leaving
    the block. Inside, dtopt's kernel is left alone: to look for it takes longer than a step without it.

    Nothing is done where TensorFlow is imported already, or not installed.
    """
    if "tensorflow" in sys.modules or find_spec("tensorflow") is None:
        yield
        return
    thread, turn = threading.Thread(target=import_tensorflow_quietly), sys.getswitchinterval()
    kernels = os.environ.get(KERNELS)
    os.environ.setdefault(KERNELS, "off")
    sys.setswitchinterval(TURN)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        sys.setswitchinterval(turn)
        if kernels is None:
            del os.environ[KERNELS]


def import_tensorflow_quietly() -> None:
    """Import TensorFlow without its start-up messages, which it writes past every log level, straight to stderr."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere, _without_others(), _keeping_garbage():
            os.dup2(nowhere.fileno(), 2)
            import tensorflow as tf

            tf.config.list_physical_devices()
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def _without_others() -> Iterator[None]:
    """TensorFlow imports these where they are installed, does without otherwise, and is then done in two thirds of the
    time and a sixth less memory."""
    modules: dict[str, Any] = sys.modules
    absent = [name for name in NEEDLESS if name not in modules]
    modules.update(dict.fromkeys(absent))
    try:
        yield
    finally:
        for name in absent:
            del modules[name]


@contextmanager
def _keeping_garbage() -> Iterator[None]:
    """An import makes much that stays, which Python would search for garbage again and again: a fifth of its time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
