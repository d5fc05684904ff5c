"""Save optimizers in the slot-variable layout, docs/formats/slot-variables.md; `loading` loads them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import optim
from optim import lazy, release, slot_layout
from optim.checkpoints import bundle_writer, live
from optim.checkpoints.live import LiveState
from optim.checkpoints.variables import Variables, handle, identity, named_variables
from optim.errors import CheckpointError, UnsupportedError
from optim.groups.algorithm import Composite
from optim.slot_layout import Metadata, VariableEntry

if TYPE_CHECKING:
    from optim.checkpoints import tensorflow_writer
else:
    tensorflow_writer = lazy.modules("optim.checkpoints.tensorflow_writer")


def save_checkpoint(path: str | os.PathLike[str], optimizer: Any, variables: Variables) -> str:
    """Write an optimizer and the model's variables; an earlier checkpoint at `path` stays whole until this one is.

    Of variables of Keras on JAX or PyTorch it is written without TensorFlow, shard by shard. With several clients of
    DTensor all must call this. The first gathers whole values in its memory and writes; `path` must be on a disk that
    all of them see.

    Args:
      path: a folder, made if it is not there.
      optimizer: of `optim`, or what `for_keras` made of it; its state is saved for every variable that it was built
        on.
      variables: the model's variables, trainable or not: a mapping name -> variable, or a sequence named by
        `variable.name`. Those that the optimizer was built on must be among them.

    Returns:
      The prefix that `tf.train.Checkpoint(optimizer=...).restore` takes.

    Raises:
      CheckpointError: names that are not unique, missing variables, or a `path` that holds something else.
      UnsupportedError: `swap_averages` put the averages into the variables; another kind of optimizer; or arrays of
        JAX that several processes share.
    """
    optimizer = _unwrapped(optimizer)
    optimizer._settings.averages.check_not_swapped("save_checkpoint")
    named, state = named_variables(variables), live.state_of(optimizer)
    write = bundle_writer.write if live.has_slots_of_keras(optimizer) else tensorflow_writer.write
    return write(os.fspath(path), _describe(optimizer, state, named), state, named)


def _unwrapped(optimizer: Any) -> Any:
    """The optimizer whose state it is, in what `for_keras` made of it or as that itself."""
    if live.has_slots_of_keras(optimizer):
        return optimizer
    inner = getattr(optimizer, "inner", optimizer)
    if lazy.uses_tensorflow() and isinstance(inner, optim.Optimizer):
        return inner
    name = f"{type(inner).__module__}.{type(inner).__name__}"
    if isinstance(getattr(getattr(inner, "inner_optimizer", None), "inner", None), optim.Optimizer):
        raise UnsupportedError(
            f"{name} keeps its own loss scale, which a checkpoint of optim does not hold; give save_checkpoint its"
            ' `inner_optimizer`, or let the optimizer scale losses itself: loss_scale="dynamic"'
        )
    if isinstance(inner, optim.Optimizer):
        raise UnsupportedError(f"{type(inner).__name__} has no state here; save what optim.for_keras made of it")
    raise UnsupportedError(
        f"save_checkpoint takes an optimizer of optim, or what optim.for_keras made of one, not {name}; `dtopt migrate"
        " checkpoint` brings over what Keras saved, and tf.train.Checkpoint saves those of optim.legacy"
    )


def _describe(optimizer: Any, state: LiveState, named: Mapping[str, Any]) -> Metadata:
    names = {identity(variable): name for name, variable in named.items()}
    missing = [t.name for t in state.tracked if id(t.variable) not in names]
    if missing:
        raise CheckpointError(f"the optimizer was built on variables that are not among those given: {missing}")
    owners = [names[id(t.variable)] for t in state.tracked]
    order = dict.fromkeys([*owners, *named])
    handles = {name: handle(named[name]) for name in order}
    entries = [
        VariableEntry(name, variable.shape, variable.dtype, variable.trainable) for name, variable in handles.items()
    ]
    framework = sys.modules["keras" if live.has_slots_of_keras(optimizer) else "tensorflow"]
    inner = getattr(optimizer, "inner", optimizer)
    provenance: dict[str, Any] = {
        "written_by": f"dtopt {release.version()}",
        framework.__name__: framework.__version__,
    }
    if isinstance(optimizer._algorithm, Composite):
        selection = optimizer._algorithm.selection
        provenance[slot_layout.GROUPS] = {names[id(t.variable)]: selection.of(t) for t in state.tracked}
    return Metadata(
        class_name=type(inner).__name__,
        config=live.config_of(optimizer),
        variables=tuple(entries),
        slots={slot: tuple(owners[index] for index in of) for slot, of in state.slots.items()},
        provenance=provenance,
    )
