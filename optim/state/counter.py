"""Scalar variables with or without a mesh, read and set without the round trip through DTensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from optim import devices
from optim.native import direct, library
from optim.precision import constant


class Counter:
    """A scalar variable, replicated on its mesh if there is one."""

    def __init__(self, variable: tf.Variable):
        self.variable = variable
        self._handles = devices.handles_of(variable)
        self._groups: list[Any] = []
        self._numbers: list[int] = []
        """Numbers of the variable on each device for dtopt's own kernel, if there is a kernel: it needs no op."""

    def now(self) -> Any:
        """Return the value after all pending work on any mesh (waits)."""
        devices.wait_for_pending()
        return self.peek()

    def peek(self) -> Any:
        """Return the value on the first device, without waiting. Call it only directly after `now()` of a counter of
        the mesh."""
        value = direct.read_scalar(self._numbers[0]) if self._is_known() else None
        return devices.read(self._handles[0], self.variable.dtype).numpy() if value is None else value

    def set(self, value: Any) -> None:
        """Assign eagerly on every device. Call it only directly after `now()` of a counter of the mesh."""
        if self._is_known():
            for number in self._numbers:
                if not direct.write_scalar(number, value):
                    break
            else:
                return
        scalar = constant(value, self.variable.dtype)
        for handle in self._handles:
            devices.assign(handle, scalar)

    def _is_known(self) -> bool:
        """Whether there are numbers; they are looked up once there is a kernel."""
        if not self._numbers and library.status().available:
            groups = scalar_groups(self._handles)
            self._groups, self._numbers = [group for group, _ in groups], [number for _, number in groups]
        return bool(self._numbers)


def scalar_groups(handles: Sequence[Any]) -> list[tuple[Any, int]]:
    """Return a group of one and its number for each handle of a variable, one per device; empty if a device is not a
    CPU."""
    if any("CPU" not in handle.device.upper() for handle in handles):
        return []
    empty = tf.constant([], tf.int64, [0])
    groups = []
    for handle in handles:
        with tf.device(handle.device):
            group, number = devices.call("DtoptGroup", [handle], [], [], [], empty, empty, empty, empty)
            groups.append((group, int(number.numpy())))
    return groups
