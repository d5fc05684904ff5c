"""Report the memory of an optimizer and the code that runs its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from optim import lazy, slot_layout
from optim.errors import DtoptError
from optim.options.option_objects import EMAOption, GradientsClipOption

if TYPE_CHECKING:
    import tensorflow as tf

    from optim.layouts import placement
    from optim.state.state import State
else:
    tf, placement = lazy.modules("tensorflow", "optim.layouts.placement")


@dataclass(frozen=True)
class MemoryReport:
    """Bytes on each local device. `variables` are the model's, `slots` maps slot name to bytes by device."""

    variables: dict[str, int]
    slots: dict[str, dict[str, int]]
    replicated_slots: dict[str, dict[str, int]]
    """Bytes of the same slots if each device held them whole."""

    @property
    def slot_bytes(self) -> dict[str, int]:
        """Bytes of all slots together, by device."""
        total: dict[str, int] = {}
        for per_device in self.slots.values():
            for device, size in per_device.items():
                total[device] = total.get(device, 0) + size
        return total

    def __str__(self) -> str:
        lines = [f"{'device':<10}{'variables':>14}{'slots':>14}"]
        for device, size in self.variables.items():
            lines.append(f"{device:<10}{size:>14,}{self.slot_bytes.get(device, 0):>14,}")
        return "\n".join(lines)


@dataclass(frozen=True)
class ExecutorReport:
    """Which executor an eager step uses and why, and what updates each variable.

    `kernels` maps variable name to `"native"` (dtopt's own kernel, see `optim.build_kernels`), `"fused"` (one
    TensorFlow kernel), `"ops"` (the rule's ops), `"xla"` or `"update_step"` (a subclass's own). `why_not_native` is
    empty if all are `"native"`. `why_dense_rows` is the first reason why `IndexedSlices` are made dense in a
    `tf.function`; empty if they are not. `why_whole_tables` is the same if `repeated_rows` has `"square"`, else empty.
    """

    executor: str
    reason: str
    kernels: dict[str, str]
    why_not_native: str = ""
    why_whole_tables: str = ""
    why_dense_rows: str = ""


def shard_bytes(variable: tf.Variable) -> dict[str, int]:
    """Return the bytes of a variable by local device, from its layout."""
    layout = placement.layout_of(variable)
    size = variable.dtype.size
    if layout is None:
        return {_short(variable.device): int(np.prod(variable.shape.as_list(), dtype=np.int64)) * size}
    per_device = int(np.prod(placement.local_shape(variable.shape.as_list(), layout), dtype=np.int64)) * size
    return {_short(device): per_device for device in layout.mesh.local_devices()}


def memory_report(state: State) -> MemoryReport:
    """Return the bytes on each local device, of the variables that the optimizer was built on and of their slots."""
    by_variable: dict[str, int] = {}
    for tracked in state.tracked:
        _add(by_variable, shard_bytes(tracked.variable))
    by_slot: dict[str, dict[str, int]] = {}
    whole: dict[str, dict[str, int]] = {}
    for slot, _, variable in state.slots.items():
        mine = shard_bytes(variable)
        _add(by_slot.setdefault(slot, {}), mine)
        full = int(np.prod(variable.shape.as_list(), dtype=np.int64)) * variable.dtype.size
        _add(whole.setdefault(slot, {}), dict.fromkeys(mine, full))
    return MemoryReport(by_variable, by_slot, whole)


def _add(total: dict[str, int], more: dict[str, int]) -> None:
    for device, size in more.items():
        total[device] = total.get(device, 0) + size


def _short(device: str) -> str:
    return device.rpartition("device:")[2] or "CPU:0"


def _shown(name: str, value: Any) -> str:
    """Format one entry of a config, shortened."""
    if name == "learning_rate" and isinstance(value, Mapping):
        return str(value["class_name"])
    if name == "groups":
        return ", ".join(f"{pattern!r}: {member['class_name']}" for pattern, member in value)
    return repr(value)


def summary(optimizer: Any, steps: str, variables: int) -> str:
    """Return the `repr` of an optimizer: its hyperparameters, the options that differ from their defaults, its
    state."""
    owner = type(optimizer).__name__
    defaults = {name: p.default for name, p in optimizer.__signature__.parameters.items()}
    defaults |= {**asdict(GradientsClipOption()), **asdict(EMAOption())}
    items = []
    try:
        for name, value in optimizer.get_config().items():
            default = defaults.get(name)
            is_usual = (name == "name" and value == owner) or value == default or (not value and not default)
            if name == "learning_rate" or not is_usual:
                items.append(f"{name}={_shown(name, value)}")
    except DtoptError as error:
        items = [f"config: {error}"]
    of_state = f"{steps} step{'s' * (steps != '1')}, {variables} variable{'s' * (variables != 1)}"
    return f"<{owner}({', '.join(items)}): {of_state}>"


def steps_of(state: State) -> str:
    """Return the number of steps that were taken, as text; "?" while a function is traced."""
    is_known = not lazy.uses_tensorflow() or tf.executing_eagerly()
    return str(int(state.counter(slot_layout.ITERATIONS).now())) if is_known else "?"
