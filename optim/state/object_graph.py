"""Find the objects of `tf.train.Checkpoint(optimizer=...)` in a checkpoint, and distinguish them from those of
others."""

from __future__ import annotations

import inspect
import re
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any
from weakref import ref

import tensorflow as tf
from tensorflow.python.checkpoint import restore
from tensorflow.python.trackable.base import Trackable

from optim.errors import CheckpointError
from optim.state.tracked import Tracked, variable_in

FOREIGN = {
    "iter": "tf.keras's OptimizerV2",
    "_iterations": "an optimizer of Keras",
    "_variables": "an optimizer of Keras",
    "_learning_rate": "an optimizer of Keras",
    "_trainable_variables": "an optimizer of Keras",
}
"""Children of an optimizer that identify others: of TF 2.0 to 2.10, of tf.keras 2.9 on, and of Keras 3."""
OF_ADAPTER = re.compile(r"\w+\.\d+")
"""Slots as `optim.for_keras` names them, by position."""


def check_is_ours(name: str) -> None:
    """Raise CheckpointError: a checkpoint has a child of this name, so it is not from a bare optimizer of `optim`."""
    writer = FOREIGN.get(name) or ("optim.for_keras" if OF_ADAPTER.fullmatch(name) else None)
    if writer is not None:
        raise CheckpointError(
            f"the checkpoint's optimizer was written by {writer} (it has {name!r}), so that iterations and slots would"
            " stay 0; restore it with migrate.restore(path, optimizer, variables), or convert it with `dtopt migrate"
            " checkpoint PATH DEST` and optim.load_checkpoint(DEST, variables)"
        )


class FormerNames:
    """The variables' names in the checkpoint that slots wait for.

    They are read once for all variables that are tracked together, because reading them walks through everything found
    in the checkpoint.
    """

    def __init__(self) -> None:
        self._checkpoint: Callable[[], Any] = lambda: None
        self._names: dict[int, str] = {}
        self._is_read = False

    def read_again(self) -> None:
        """Read the names again, because other variables are tracked now."""
        self._is_read = False

    def of(self, tracked: Tracked, checkpoint: Any) -> str:
        """Return the name of a variable in `checkpoint`; its current name if the checkpoint does not contain one."""
        if self._checkpoint() is not checkpoint:
            self._checkpoint, self._names, self._is_read = ref(checkpoint), {}, False
        if not self._is_read and id(tracked.variable) not in self._names:
            self._names, self._is_read = {**self._names, **_names_in(checkpoint)}, True
        return self._names.setdefault(id(tracked.variable), tracked.name)


class SlotNode(tf.Module):
    """The slots of one name by variable, `optimizer/slots/<name>` in checkpoints.

    A checkpoint names a slot after its variable's name at the time of writing. The same model may have other names
    here, because Keras numbers layers without names. `tf.train.Checkpoint(model=..., optimizer=...)` identifies the
    model's variables and their former names. Slots are found by these, and by name if the checkpoint does not identify
    them.
    """

    _self_setattr_tracking = False

    def __init__(self, former_names: FormerNames) -> None:
        super().__init__(name="slot")
        self._former_names = former_names
        self._slot_variables: dict[str, tuple[Tracked, tf.Variable]] = {}
        self._restored: set[str] = set()
        self._looked_at = (0, 0)
        self._owners: tuple[Callable[[], Any], dict[str, str]] = (lambda: None, {})

    def _lookup_dependency(self, name: str, *args: Any, **kwargs: Any) -> Any:
        former = self._owner(name, _checkpoint_that_is_read())
        dependency = None if former is None else super()._lookup_dependency(former, *args, **kwargs)
        if former is not None and dependency is not None:
            self._restored.add(former)
        return dependency

    def _owner(self, name: str, checkpoint: Any) -> str | None:
        """Return the variable of the slot that a checkpoint calls `name`, by the variables found in it; None if it is
        not here."""
        if checkpoint is None:
            return name
        if self._owners[0]() is not checkpoint:
            names = _names_in(checkpoint)
            called = {
                current: names[id(t.variable)]
                for current, (t, _) in self._slot_variables.items()
                if id(t.variable) in names
            }
            nobodys = dict.fromkeys(called, "")
            self._owners = ref(checkpoint), {**nobodys, **{former: current for current, former in called.items()}}
        return self._owners[1].get(name, name) or None

    def keep(self, tracked: Tracked, variable: tf.Variable) -> None:
        """Track the slot of a variable, and assign the value that an earlier checkpoint has for it."""
        name, former, waiting = tracked.name, self._former_name(tracked), self._deferred_dependencies
        self._slot_variables[name] = tracked, variable
        if former in waiting:
            self._restored.add(name)
        of_another = waiting.pop(name, None) if former != name else None
        self._track_trackable(variable, name, overwrite=True)
        if former != name:
            self._handle_deferred_dependencies(former, variable)
        if of_another is not None:
            waiting[name] = of_another

    def settle(self) -> None:
        """Give slots the values that a later checkpoint has under other names; warn about the rest."""
        waiting = self._deferred_dependencies
        if not waiting or self._looked_at == (len(waiting), len(self._slot_variables)):
            return
        with tf.init_scope():
            for name, (tracked, variable) in self._slot_variables.items():
                former = self._former_name(tracked)
                if former != name and former in waiting:
                    self._handle_deferred_dependencies(former, variable)
                    self._restored.add(name)
        self._looked_at = len(waiting), len(self._slot_variables)
        missing = [name for name in self._slot_variables if name not in self._restored]
        if waiting and missing:
            warnings.warn(
                f"a checkpoint has slots of {_listed(waiting)}, which the optimizer was not built on; the slots of"
                f" {_listed(missing)} are not in it and start fresh. Slots are found by the names of variables: give"
                " layers names, or restore the model with the optimizer, tf.train.Checkpoint(model=..., optimizer=...)",
                UserWarning,
                stacklevel=6,
            )

    def _former_name(self, tracked: Tracked) -> str:
        """Return the name of a variable in the checkpoint that slots wait for; else its current name."""
        for positions in self._deferred_dependencies.values():
            return self._former_names.of(tracked, positions[-1].checkpoint)
        return tracked.name


def _checkpoint_that_is_read() -> Any:
    """Return the checkpoint whose reader asks for a child, if TensorFlow's reader does: it does not pass itself on."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") != restore.__name__:
        frame = frame.f_back if frame.f_globals.get("__name__") == __name__ else None
    position = None if frame is None else frame.f_locals.get("checkpoint_position")
    return getattr(position, "checkpoint", None)


def _names_in(checkpoint: Any) -> dict[int, str]:
    """Return the names of variables in a checkpoint, by identity, if each name belongs to only one."""
    nodes = checkpoint.object_graph_proto.nodes
    names = {
        id(variable): attribute.full_name
        for number, node in _found_in(checkpoint).items()
        for attribute in nodes[number].attributes
        if (variable := variable_in(node)) is not None
    }
    counts = Counter(names.values())
    return {key: name for key, name in names.items() if name and counts[name] == 1}


def _found_in(checkpoint: Any) -> dict[int, Any]:
    """Return objects by their numbers in a checkpoint, including those that its reader has not reached yet."""
    nodes = dict(checkpoint.object_by_proto_id.items())
    pending = list(nodes.items())
    for number, parent in pending:  # which grows
        children = checkpoint.object_graph_proto.nodes[number].children
        if not children or isinstance(parent, SlotNode):
            continue
        known = parent._trackable_children()
        for child in children:
            if child.node_id not in nodes and isinstance(known.get(child.local_name), Trackable):
                nodes[child.node_id] = known[child.local_name]
                pending.append((child.node_id, known[child.local_name]))
    return nodes


def _listed(names: Any) -> str:
    first, *others = names
    return f"{first!r} and {len(others)} more" if others else repr(first)
