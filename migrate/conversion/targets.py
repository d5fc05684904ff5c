"""The targets of a migration: their writers and file endings."""

from __future__ import annotations

from optim.errors import HyperparameterError

WRITERS = {"slots": "slots", "keras": "keras_zip", "tf-keras": "keras_h5", "list": "weight_list"}
TARGETS = tuple(WRITERS)
ENDINGS = {"keras": ".keras", "tf-keras": ".h5", "list": ".npz"}
"""File endings of targets; a slot checkpoint is a folder."""


def target_of(dest: str, to: str | None = None, order: str | None = None) -> str:
    """The target format: `to`, or the one for the ending of `dest`.

    Raises:
      HyperparameterError: an unknown target, or the ending of another one's file; those of `check_target`.
    """
    named = next((target for target, ending in ENDINGS.items() if dest.endswith(ending)), "slots")
    target = named if to is None else to
    check_target(target, order)
    if target != named:
        form = (
            f"is a {ENDINGS[target]} file"
            if target in ENDINGS
            else f"is a folder, which cannot end in {ENDINGS[named]}"
        )
        raise HyperparameterError(f"{dest}: a target {target} {form}; give another name, or leave --to out")
    return target


def check_target(to: str, order: str | None = None) -> None:
    """Raise HyperparameterError for an unknown target, and for an order if the target does not have one."""
    if to not in TARGETS:
        raise HyperparameterError(f"there is no target {to!r}; --to takes one of: {', '.join(TARGETS)}")
    if order is not None and to != "list":
        raise HyperparameterError(f"--order is the order of a list, and the target is {to}: remove it")
