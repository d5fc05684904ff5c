"""Import TensorFlow for a single step: in parallel, quietly, and without what that step does not need."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

TURN = 5e-4
"""Seconds that a thread runs Python while another waits: between reads of a large file one waits often."""
KERNELS = "DTOPT_KERNELS"
NEEDLESS = ("keras.src.optimizers", "tf_keras.src.optimizers", "jax", "scipy")
"""What TensorFlow imports where it is installed, for converters and old classes that are of no use here."""


@contextmanager
def tensorflow_meanwhile() -> Iterator[None]:
    """Import TensorFlow in a thread, for a single step; an `import` of it waits until that is done, and so does leaving
    the block. Inside, dtopt's kernel is left alone: to look for it takes longer than a step without it.

    Nothing is done where TensorFlow is imported already, or not installed.
    """
    if "tensorflow" in sys.modules or find_spec("tensorflow") is None:
        yield
        return
    thread, turn = threading.Thread(target=tensorflow_quietly), sys.getswitchinterval()
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


def tensorflow_quietly() -> None:
    """Import TensorFlow without its start-up messages, which it writes past every log level, straight to stderr."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    sys.stderr.flush()
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere, _without_others(), _keeping_garbage():
            os.dup2(nowhere.fileno(), 2)
            import tensorflow as tf

            tf.config.list_physical_devices()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


@contextmanager
def _without_others() -> Iterator[None]:
    """TensorFlow imports these if they are installed, but does not need them. Without them it takes two thirds of the
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
