"""TensorFlow checkpoints made of arrays or variables, or opened to be changed and written again with right sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from optim.bytes.bundle import STRING, BundleReader, is_numeric
from optim.bytes.bundle_writer import BundleWriter


def written(prefix: Path, tensors: Mapping[str, np.ndarray]) -> str:
    """The prefix of a new checkpoint without an object graph, of these tensors by key."""
    with BundleWriter(str(prefix)) as writer:
        for key, array in tensors.items():
            writer.add(key, array)
    return str(prefix)


@contextmanager
def rewritten(prefix: Path) -> Iterator[tuple[dict[str, np.ndarray], dict[str, bytes]]]:
    """Its tensors of numbers and its texts by key; what is changed in them, the checkpoint has afterwards. A bfloat16
    is held as uint16."""
    bundle = BundleReader(str(prefix))
    dtypes = {key: entry.dtype for key, entry in bundle.items()}
    texts = {key: bundle.load_bytes(key) for key, e in bundle.items() if e.dtype == STRING and e.shape == ()}
    numbers = {key: bundle.load(key) for key, dtype in dtypes.items() if is_numeric(dtype)}
    yield numbers, texts
    for old in prefix.parent.glob(f"{prefix.name}.data-*"):
        old.unlink()
    Path(f"{prefix}.index").unlink()
    with BundleWriter(str(prefix)) as writer:
        for key in sorted({*numbers, *texts}):
            if key in texts:
                writer.add_string(key, texts[key])
            else:
                is_same = dtypes.get(key) == "bfloat16" and numbers[key].dtype == np.uint16
                writer.add(key, numbers[key], "bfloat16" if is_same else None)


def of_module(folder: Path, variables: list[Any], slots: dict[str, list[Any]], **others: Any) -> str:
    """A checkpoint shaped as those of 2.9's experimental optimizers."""
    import tensorflow as tf

    model, optimizer = tf.Module(), tf.Module()
    model.vs = variables
    optimizer._iterations = tf.Variable(3, dtype=tf.int64, name="iteration")
    for name, members in slots.items():
        setattr(optimizer, name, members)
    return str(tf.train.Checkpoint(model=model, optimizer=optimizer, **others).write(str(folder / "ckpt")))
