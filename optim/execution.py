"""Which executor an optimizer's steps use and why, and what is kept for it from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorflow.experimental import dtensor

from optim import master_copies, placement, slot_layout
from optim.errors import UnsupportedError
from optim.executors import kernels, local, native
from optim.native import library
from optim.reports import ExecutorReport
from optim.variables import Tracked, matches

if TYPE_CHECKING:
    from optim.optimizer import Optimizer


class Execution:
    """What the executors of one optimizer keep; made anew when variables or slots are added."""

    def __init__(self, optimizer: Optimizer):
        self._optimizer = optimizer
        self._plan: tuple[tuple[int, int], local.Plan] | None = None
        self._report: tuple[Any, ExecutorReport] | None = None

    def _key(self) -> tuple[int, int]:
        return len(self._optimizer._state.tracked), len(self._optimizer._state.slots)

    def plan(self) -> local.Plan:
        """The local executor's handles."""
        key = self._key()
        if self._plan is None or self._plan[0] != key:
            state = self._optimizer._state
            self._plan = (key, local.Plan(list(state.tracked), state.slots))
        return self._plan[1]

    def report(self) -> ExecutorReport:
        """What an eager step will use. Raises UnsupportedError if `executor="local"` asks for what cannot be."""
        key = (self._key(), library.status())
        if self._report is None or self._report[0] != key:
            self._report = (key, executor_report(self._optimizer))
        return self._report[1]


def executor_report(optimizer: Optimizer) -> ExecutorReport:
    """What an eager step will use. Raises UnsupportedError if `executor="local"` asks for what cannot be."""
    reason = _why_portable(optimizer)
    settings = optimizer._settings
    if settings.executor == "local" and reason:
        raise UnsupportedError(f'executor="local" is impossible here: {reason}; use executor="auto"')
    if settings.jit_compile and reason:
        raise UnsupportedError(f"jit_compile=True needs the local executor, which is impossible here: {reason}")
    names: dict[str, str] = {}
    for item in optimizer._state.tracked:
        names[item.name] = _kernel_name(optimizer, item, bool(reason))
    why = reason or "every shard can be updated in place"
    return ExecutorReport("portable" if reason else "local", why, names, _why_not_native(optimizer, bool(reason)))


def _kernel_name(optimizer: Optimizer, item: Tracked, is_portable: bool) -> str:
    if not optimizer._uses_rule:
        return "update_step"
    if is_portable:
        return "ops"
    if optimizer._settings.jit_compile:
        return "xla"
    assert optimizer._rule is not None
    if not native.why_not(optimizer._rule, item, optimizer._state.slots):
        return "native"
    dtype = master_copies.target(optimizer._state.slots, item).dtype
    return "fused" if kernels.kernel_for(optimizer._rule, dtype) else "ops"


def _why_not_native(optimizer: Optimizer, is_portable: bool) -> str:
    """The first reason why a variable is not updated by dtopt's own kernel; empty if all are."""
    if is_portable:
        return "the steps are portable"
    if optimizer._settings.jit_compile:
        return "jit_compile asks for XLA"
    state = optimizer._state
    reasons = (native.why_not(optimizer._rule, item, state.slots) for item in state.tracked)
    return next(filter(None, reasons), "")


def _why_portable(optimizer: Optimizer) -> str:
    settings = optimizer._settings
    if settings.executor == "portable":
        return 'executor="portable" was asked for'
    if not optimizer._uses_rule:
        return f"{type(optimizer).__name__} has its own update_step"
    if optimizer._rule is not None and not optimizer._rule.elementwise:
        return f"the rule of {type(optimizer).__name__} looks at whole tensors"
    lazy = next((t for t in optimizer._state.tracked if is_lazy(optimizer, t)), None)
    if lazy is not None:
        return f"lazy_rows names variable {lazy}"
    for item in optimizer._state.tracked:
        if why := _why_not_in_shards(optimizer, item):
            return why
    norms = settings.clip.clipnorm is not None or settings.clip.global_clipnorm is not None
    if (norms or settings.loss_scale is not None) and dtensor.num_clients() > 1:
        return "norms of gradients, or whether they are finite, span several clients"
    return ""


def _why_not_in_shards(optimizer: Optimizer, item: Tracked) -> str:
    """Why the slots of a variable are placed so that its shards cannot be updated one by one; empty if they can."""
    state = optimizer._state
    names = [
        *(slot.name for slot in (optimizer._rule.slots if optimizer._rule else ())),
        slot_layout.AVERAGE,
        slot_layout.MASTER,
    ]
    placed = {name: placement.layout_of(slot) for name, slot in state.slots.of(item, names).items()}
    odd = next((name for name, layout in placed.items() if layout != item.layout), None)
    if odd is None:
        return ""
    where = f"slot {odd!r} of {item} is placed otherwise than the variable (slot_placement)"
    layout = placed[odd]
    if layout is None or item.layout is None or not placement.is_finer(layout, item.layout):
        return f"{where}, and not only sharded further"
    if any(other != layout for other in placed.values()):
        return f"{where}, and its slots are not all placed alike"
    if slot_layout.MASTER in placed:
        return f"{where}, and so is its master copy"
    if optimizer._settings.jit_compile:
        return f"{where}, and jit_compile compiles the update of whole shards"
    return f"{where}, and the mesh has several clients" if dtensor.num_clients() > 1 else ""


def check_traceable(optimizer: Optimizer, tracked: Sequence[Tracked]) -> None:
    """Refuse, while tracing, what TensorFlow would run wrongly."""
    settings = optimizer._settings
    if settings.executor == "local":
        raise UnsupportedError(
            'executor="local" steps outside of tf.function: compute gradients in the function, return them, and call'
            " apply_gradients on them eagerly"
        )
    meshes = {t.mesh for t in tracked}
    if len(meshes) > 1:
        raise UnsupportedError(
            "one tf.function cannot update variables of several meshes, or of a mesh and of none (TensorFlow would run"
            " an assignment to a plain variable once per device); call apply_gradients eagerly"
        )
    for slot, index, variable in optimizer._state.slots.items():
        layout, own = optimizer._state.tracked.at(index).layout, placement.layout_of(variable)
        if layout is not None and own is not None and not placement.is_finer(own, layout):
            raise UnsupportedError(
                f"slot {slot!r} of {optimizer._state.tracked.at(index)} is sharded across its variable's layout; a read"
                " of the variable after the step in the same tf.function would give its old value (TensorFlow 2.21);"
                " call apply_gradients eagerly"
            )
    if settings.jit_compile and meshes != {None}:
        raise UnsupportedError(
            "jit_compile=True has no effect inside a tf.function over DTensors, which TensorFlow never compiles;"
            " call apply_gradients eagerly, or leave jit_compile out"
        )


def is_lazy(optimizer: Optimizer, tracked: Tracked) -> bool:
    patterns = optimizer._settings.lazy_rows
    return bool(patterns) and tracked.variable.shape.rank > 0 and matches(patterns, tracked)
