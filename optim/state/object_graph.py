"""What `tf.train.Checkpoint(optimizer=...)` finds in a checkpoint, told apart from what others wrote there."""

from __future__ import annotations

import re

from optim.errors import CheckpointError

FOREIGN = {
    "iter": "tf.keras's OptimizerV2",
    "_iterations": "an optimizer of Keras",
    "_variables": "an optimizer of Keras",
    "_learning_rate": "an optimizer of Keras",
    "_trainable_variables": "an optimizer of Keras",
}
"""Children of an optimizer by which others are known: of TF 2.0 to 2.10, of tf.keras 2.9 on, and of Keras 3."""
OF_ADAPTER = re.compile(r"\w+\.\d+")
"""Slots as `optim.for_keras` names them, by position."""


def check_is_ours(name: str) -> None:
    """Raises CheckpointError: a checkpoint has a child of this name, and so is none of a bare optimizer of `optim`."""
    writer = FOREIGN.get(name) or ("optim.for_keras" if OF_ADAPTER.fullmatch(name) else None)
    if writer is not None:
        raise CheckpointError(
            f"the checkpoint's optimizer was written by {writer} (it has {name!r}), so that iterations and slots would"
            " stay 0; restore it with migrate.restore(path, optimizer, variables), or convert it with `dtopt migrate"
            " checkpoint PATH DEST` and optim.load_checkpoint(DEST, variables)"
        )
