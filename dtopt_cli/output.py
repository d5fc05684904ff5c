"""Where things are printed: results on stdout, messages and progress on stderr, `--json` one document alone."""

from __future__ import annotations

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
    """Import TensorFlow in a thread; an `import` of it waits until that is done, and so does leaving the block.

    Nothing is done where it is not installed.
    """
    if find_spec("tensorflow") is None:
        yield
        return
    thread = threading.Thread(target=import_tensorflow_quietly)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def import_tensorflow_quietly() -> None:
    """Import TensorFlow without its start-up messages, which it writes past every log level, straight to stderr."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere, _without_keras():
            os.dup2(nowhere.fileno(), 2)
            import tensorflow as tf

            tf.config.list_physical_devices()
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def _without_keras() -> Iterator[None]:
    """TensorFlow imports Keras's optimizers last, does without where it cannot, and is done a quarter sooner."""
    names = [f"{library}.src.optimizers" for library in ("keras", "tf_keras")]
    modules: dict[str, Any] = sys.modules
    absent = [name for name in names if name not in modules]
    modules.update(dict.fromkeys(absent))
    try:
        yield
    finally:
        for name in absent:
            del modules[name]
