"""The state of one optimizer: counters, tracked variables, slots, and their names in `tf.train.Checkpoint`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim import placement
from optim.errors import HyperparameterError, MismatchError
from optim.executors import kernels, local, native
from optim.native import direct, library
from optim.placement import Placement
from optim.variables import SlotTable, Tracked, TrackedVariables, common_mesh, plain_name, unwrap


class Counter:
    """A scalar variable, on the mesh if there is one, read and set without DTensor's round trip."""

    def __init__(self, variable: tf.Variable):
        self.variable = variable
        self._handles = local.handles_of(variable)
        self._groups: list[tuple[Any, int]] | None = None

    def now(self) -> Any:
        """The value once everything pending on any mesh is done (waits)."""
        local.wait_for_pending()
        return self.peek()

    def peek(self) -> Any:
        """The value on the first device, without waiting: only right after `now()` of some counter of the mesh."""
        numbers = self._numbers()
        value = direct.read_scalar(numbers[0]) if numbers else None
        return kernels.read(self._handles[0], self.variable.dtype).numpy() if value is None else value

    def set(self, value: Any) -> None:
        """Assign eagerly on every device: only right after `now()` of some counter of the mesh."""
        numbers = self._numbers()
        if numbers and all(direct.write_scalar(number, value) for number in numbers):
            return
        scalar = tf.constant(value, self.variable.dtype)
        for handle in self._handles:
            kernels.assign(handle, scalar)

    def _numbers(self) -> list[int]:
        """What dtopt's own kernel knows the variable by on each device, if there is a kernel: it needs no op."""
        if not library.status().available:
            return []
        if self._groups is None:
            self._groups = native.scalar_groups(self._handles)
        return [number for _, number in self._groups]


class State:
    """Everything that an optimizer keeps, tracked in `owner` under the names of docs/formats/slot-variables.md."""

    def __init__(self, owner: tf.Module, name: str, mesh: dtensor.Mesh | None):
        self._owner = owner
        self.scope = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", name) + "/"
        self.mesh = mesh
        self._mesh_was_given = mesh is not None
        self.tracked = TrackedVariables()
        self.slots = SlotTable()
        self.scalars: dict[str, tf.Variable] = {}
        self._counters: dict[str, Counter] = {}
        self._slot_nodes: dict[str, tf.Module] = {}
        self._slots_node = tf.Module(name="slots")
        owner._track_trackable(self._slots_node, "slots")

    # Scalars and other variables of the whole optimizer.

    def counter(self, key: str) -> Counter:
        """The handle-level view of a scalar."""
        found = self._counters.get(key)
        if found is None or found.variable is not self.scalars[key]:
            found = self._counters[key] = Counter(self.scalars[key])
        return found

    def put_scalar(self, key: str, variable: tf.Variable) -> tf.Variable:
        """Keep a variable of the whole optimizer, `optimizer/<key>` in its checkpoints."""
        self.scalars[key] = variable
        self._owner._track_trackable(variable, key, overwrite=True)
        return variable

    def remove_scalar(self, key: str) -> None:
        """Forget a variable of the whole optimizer, if there is one."""
        if self.scalars.pop(key, None) is not None:
            self._owner._delete_tracking(key)

    def new_scalar(self, key: str, value: Any, dtype: tf.DType, name: str) -> tf.Variable:
        """Make and keep a scalar: replicated on the mesh, or plain."""
        layout = None if self.mesh is None else dtensor.Layout.replicated(self.mesh, 0)
        with tf.init_scope(), tf.name_scope(""):
            return self.put_scalar(key, placement.new_variable(value, dtype, name, layout))

    def new_variable(
        self, shape: Sequence[int] | None, dtype: tf.DType, initializer: Any, name: str | None
    ) -> tf.Variable:
        """What `Optimizer.add_variable` returns."""
        dims = [int(n) for n in (() if shape is None else shape)]
        if isinstance(initializer, str):
            known = {"zeros": tf.zeros, "ones": tf.ones}
            if initializer.lower() not in known:
                raise HyperparameterError(
                    f"initializer must be a callable or one of {list(known)}, got {initializer!r}"
                )
            initializer = known[initializer.lower()]
        layout = None if self.mesh is None else dtensor.Layout.replicated(self.mesh, len(dims))
        key = name or f"variable_{len(self.scalars)}"
        with tf.init_scope():
            made = placement.new_variable(initializer(dims, dtype=dtype), dtype, key, layout)
        return self.put_scalar(key, made)

    # Model variables.

    def track(self, given: Iterable[Any], names: Iterable[str] | None = None) -> list[Tracked]:
        """Track model variables, all or none; those tracked before are left as they are.

        Raises:
          GradientsError: not a variable. MismatchError: the optimizer was given a mesh and a variable is not on it.
        """
        given = list(given)
        chosen: list[str | None] = [None] * len(given) if names is None else list(names)
        for item in given:
            self._check_mesh(item)
        found = [self.tracked.add(item, name) for item, name in zip(given, chosen, strict=True)]
        self._adopt_mesh()
        return found

    @property
    def given_mesh(self) -> dtensor.Mesh | None:
        """The mesh that the optimizer was made with, whatever its variables turned out to be on."""
        return self.mesh if self._mesh_was_given else None

    def _check_mesh(self, given: Any) -> None:
        layout = placement.layout_of(unwrap(given))
        if not self._mesh_was_given or (layout is not None and layout.mesh == self.mesh):
            return
        assert self.mesh is not None
        where = "on no mesh" if layout is None else f"on mesh {layout.mesh.dim_names} {layout.mesh.shape()}"
        raise MismatchError(
            f"variable {plain_name(given)!r} is {where}, the optimizer was made with mesh={self.mesh.dim_names}"
            f" {self.mesh.shape()}; put the variable there, or make the optimizer with mesh=None to mix"
        )

    def _adopt_mesh(self) -> None:
        """Without `mesh=`, the counters move to the mesh of the variables once these turn out to share one.

        Inside a `tf.function` over DTensors only a DVariable counts right: TensorFlow runs an assignment to a plain
        variable there once per device. They stay the same objects, so that whoever holds one goes on holding it.
        """
        mesh = common_mesh(self.tracked)
        if self.mesh is not None or mesh is None:
            return
        self.mesh = mesh
        self._counters.clear()
        for variable in self.scalars.values():
            placement.move_to_mesh(variable, mesh)

    # Slots.

    def new_slot(
        self,
        slot: str,
        tracked: Tracked,
        policy: Placement,
        *,
        fill: float = 0.0,
        value: Any = None,
        dtype: tf.DType | None = None,
        dims: tuple[int, ...] | None = None,
    ) -> tf.Variable:
        """Make and keep a slot with the dims of its variable, or some of them, filled with a number or with `value`."""
        shape = tracked.variable.shape.as_list()
        layout = placement.slot_layout(policy, tracked.variable, slot)
        if dims is not None and dims != tuple(range(len(shape))):
            shape, layout = [shape[d] for d in dims], placement.only_dims(tracked.layout, dims)
        dtype = dtype or tracked.variable.dtype
        name = slot_variable_name(slot, tracked.variable)
        if value is None:
            made = placement.filled_variable(shape, fill, dtype, name, layout)
        else:
            made = placement.new_variable(value, dtype, name, layout)
        return self.put_slot(slot, tracked, made)

    def new_reference(
        self, slot: str, tracked: Tracked, policy: Placement, shape: Sequence[int] | None, initial_value: Any
    ) -> tf.Variable:
        """What `Optimizer.add_variable_from_reference` returns."""
        if shape is None or list(shape) == tracked.variable.shape.as_list():
            return self.new_slot(slot, tracked, policy, value=_broadcast(initial_value, tracked))
        dims = [int(n) for n in shape]
        layout = None if tracked.mesh is None else dtensor.Layout.replicated(tracked.mesh, len(dims))
        value = tf.zeros(dims, tracked.variable.dtype) if initial_value is None else initial_value
        name = slot_variable_name(slot, tracked.variable)
        return self.put_slot(slot, tracked, placement.new_variable(value, tracked.variable.dtype, name, layout))

    def placeholder(self, tracked: Tracked) -> tf.Variable:
        """A scalar zero on the mesh of a variable, for a slot that it does not have."""
        layout = None if tracked.mesh is None else dtensor.Layout.replicated(tracked.mesh, 0)
        return placement.new_variable(0, tracked.variable.dtype, "placeholder", layout)

    def put_slot(self, slot: str, tracked: Tracked, variable: tf.Variable) -> tf.Variable:
        """Keep a slot variable, `optimizer/slots/<slot>/<variable>` in checkpoints."""
        node = self._slot_nodes.get(slot)
        if node is None:
            node = self._slot_nodes[slot] = tf.Module(name="slot")
            self._slots_node._track_trackable(node, slot)
        node._track_trackable(variable, tracked.name, overwrite=True)
        self.slots.put(slot, tracked, variable)
        return variable

    def all_variables(self) -> list[tf.Variable]:
        """Scalars first, then slot by slot."""
        return [*self.scalars.values(), *(variable for _, _, variable in self.slots.items())]


def slot_variable_name(slot: str, variable: tf.Variable) -> str:
    """`m/dense/kernel`, after the name TensorFlow shares the variable under, as Keras 2.9 names slots."""
    return f"{slot}/{variable._shared_name}"


def _broadcast(initial_value: Any, tracked: Tracked) -> Any:
    """An initial value in the shape of its variable: a number fills it."""
    if isinstance(initial_value, tf.Variable):
        return initial_value.read_value()
    if initial_value is None or dtensor.is_dtensor(initial_value):
        return initial_value
    value = tf.convert_to_tensor(initial_value, dtype=tracked.variable.dtype)
    return tf.broadcast_to(value, tracked.variable.shape)
