"""The targets of a migration: their writers and file endings."""

from __future__ import annotations

import os

from optim.errors import HyperparameterError

WRITERS = {"slots": "slots", "keras": "keras_zip", "tf-keras": "keras_h5", "list": "weight_list"}
TARGETS = tuple(WRITERS)
ENDINGS = {"keras": ".keras", "tf-keras": ".h5", "list": ".npz"}
"""File endings of targets; a slot checkpoint is a folder."""
OTHER_ENDINGS = {".hdf5": "tf-keras"}
"""Endings that Keras reads too, and that DEST may have."""


def target_of(dest: str, to: str | None = None, order: str | None = None) -> str:
    """The target format: `to`, or the one for the ending of `dest`.

    Raises:
      HyperparameterError: an unknown target, or the ending of another one's file; those of `check_target`.
    """
    if dest.endswith(".weights.h5"):
        raise HyperparameterError(f"{dest}: dtopt writes no files of weights alone; name a model, such as new.keras")
    named = by_ending(dest)
    target = named if to is None else to
    check_target(target, order)
    if target != named:
        form = (
            f"is a {ENDINGS[target]} file"
            if target in ENDINGS
            else f"is a folder, which cannot end in {os.path.splitext(dest)[1]}"
        )
        raise HyperparameterError(f"{dest}: a target {target} {form}; give another name, or leave --to out")
    return target


def by_ending(dest: str) -> str:
    """Return the target that the ending of `dest` selects."""
    endings = {**{ending: target for target, ending in ENDINGS.items()}, **OTHER_ENDINGS}
    return next((target for ending, target in endings.items() if dest.endswith(ending)), "slots")


def check_target(to: str, order: str | None = None) -> None:
    """Raise HyperparameterError for an unknown target, and for an order if the target does not have one."""
    if to not in TARGETS:
        raise HyperparameterError(f"there is no target {to!r}; --to takes one of: {', '.join(TARGETS)}")
    if order is not None and to != "list":
        raise HyperparameterError(f"--order is the order of a list, and the target is {to}: remove it")
