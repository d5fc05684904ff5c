"""The state of one optimizer: counters, tracked variables, slots, and their names in `tf.train.Checkpoint`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim import slot_layout
from optim.devices import is_for_xla, on_host, wait_for_pending
from optim.errors import HyperparameterError, MismatchError
from optim.hyperparameters import to_number
from optim.layouts import meshes, placement
from optim.layouts.policies import Placement
from optim.native import gpu
from optim.state import weights
from optim.state.counter import Counter
from optim.state.initializers import initializer_of
from optim.state.names import listed
from optim.state.object_graph import FormerNames, SlotNode
from optim.state.slots import SlotTable
from optim.state.tracked import Tracked, TrackedVariables, common_mesh, plain_name, unwrap
from optim.state.unsettled import Unsettled


def check_has_shape(slot: str, tracked: Tracked) -> None:
    """Raise MismatchError: the shape of a variable is not fully known."""
    if tracked.shape is None:
        raise MismatchError(
            f"variable {tracked} has the shape {tracked.variable.shape}, which is not fully known, so its slot"
            f" {slot} has no shape either. Make the variable with a fixed shape"
        )


class State:
    """The whole state of an optimizer, tracked in `owner` under the names of docs/formats/slot-variables.md."""

    def __init__(self, owner: tf.Module, name: str, mesh: dtensor.Mesh | None):
        self._owner = owner
        self._name = name
        self.scope = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", name) + "/"
        self.mesh = meshes.check(mesh)
        """Mesh of the counters: the constructor's, or the one that all variables share."""
        self.built = False
        """Whether the place of the variables is known."""
        self._mesh_was_given = mesh is not None
        self.tracked = TrackedVariables()
        self.slots = SlotTable()
        self._scalars: dict[str, tf.Variable] = {}
        self.unsettled: Unsettled | None = None
        """The last step, while it is unknown whether a GPU made it."""
        self._references: set[tuple[str, int]] = set()
        self._counters: dict[str, Counter] = {}
        self._slot_nodes: dict[str, SlotNode] = {}
        self._former_names = FormerNames()
        self._late: list[tuple[tf.Variable, Tracked]] = []
        self._slots_node = tf.Module(name="slots")
        owner._track_trackable(self._slots_node, "slots")
        self.new_scalar(slot_layout.ITERATIONS, 0, tf.int64, "iteration")

    # Scalars and other variables of the whole optimizer.

    @property
    def scalars(self) -> dict[str, tf.Variable]:
        """Scalars by key, with their values after all steps."""
        if self.unsettled is not None:
            self.settle()
        return self._scalars

    def place_scalars(self) -> None:
        """While tracing for XLA: move scalars from the host to the device of the variables."""
        if not gpu.is_on() or not is_for_xla() or self.mesh is not None or not len(self.tracked):
            return
        device = self.tracked.at(0).variable.device
        marks = [variable for slot, _, variable in self.slots.items() if slot == slot_layout.GATHERED]
        moved = [v for v in (*self.scalars.values(), *marks) if not isinstance(v, tf.distribute.DistributedValues)]
        with tf.init_scope():
            for variable in moved:
                placement.move_to_device(variable, device)
        self._counters.clear()

    def settle(self) -> None:
        """Wait until it is known whether a GPU made the last step."""
        unsettled, self.unsettled = self.unsettled, None
        if unsettled is not None:
            unsettled.settle()

    def counter(self, key: str) -> Counter:
        """Return the handle-level view of a scalar."""
        counter_ = self._counters.get(key)
        if counter_ is None or counter_.variable is not self.scalars[key]:
            counter_ = self._counters[key] = Counter(self.scalars[key])
        return counter_

    def put_scalar(self, key: str, variable: tf.Variable) -> tf.Variable:
        """Store a variable of the whole optimizer, `optimizer/<key>` in its checkpoints."""
        self.scalars[key] = variable
        self._owner._track_trackable(variable, key, overwrite=True)
        return variable

    def remove_scalar(self, key: str) -> None:
        """Remove a variable of the whole optimizer, if there is one."""
        if self.scalars.pop(key, None) is not None:
            self._owner._delete_tracking(key)

    def new_scalar(self, key: str, value: Any, dtype: Any, name: str) -> tf.Variable:
        """Make and store a scalar: replicated on the mesh, or plain."""
        layout = None if self.mesh is None else dtensor.Layout.replicated(self.mesh, 0)
        with tf.init_scope(), tf.name_scope(""), _on_host(layout):
            return self.put_scalar(key, placement.new_variable(value, dtype, name, layout))

    def set_built(self, value: bool) -> None:
        self.built = bool(value)

    def get_iterations(self) -> tf.Variable:
        """Return the number of real steps taken: int64 scalar, on the mesh if there is one. May be set before the first
        step."""
        return self.scalars[slot_layout.ITERATIONS]

    def set_iterations(self, value: Any) -> None:
        """Start counting from an integer >= 0."""
        if self.built:
            raise RuntimeError("Cannot set iterations after the optimizer was built; use iterations.assign(...)")
        number = to_number("iterations", value)
        if number is None or number < 0 or number != int(number):
            raise HyperparameterError(f"iterations must be an integer >= 0, got {value!r}")
        self.scalars[slot_layout.ITERATIONS].assign(int(number))

    def add_variable(
        self, shape: Sequence[int] | None = (), dtype: Any = None, initializer: Any = "zeros", name: str | None = None
    ) -> tf.Variable:
        """Create a variable of the whole optimizer, replicated on the mesh if there is one.

        Args:
          shape: tuple of ints; a scalar by default. dtype: float32 by default.
          initializer: a Keras name, such as `"zeros"`, or a callable `(shape, dtype) -> tensor`.
          name: its name, and its key in checkpoints.

        Raises:
          HyperparameterError: an unknown initializer, or a name that is in use.
        """
        dtype = tf.as_dtype(dtype or tf.float32)
        dims = [int(n) for n in (() if shape is None else shape)]
        layout = None if self.mesh is None else dtensor.Layout.replicated(self.mesh, len(dims))
        key = name or f"variable_{len(self.scalars)}"
        if key in self.scalars or key == "slots":
            raise HyperparameterError(f"add_variable: the optimizer has a variable {key!r} already; give another name")
        with tf.init_scope():
            variable = placement.new_variable(initializer_of(initializer)(dims, dtype=dtype), dtype, key, layout)
        return self.put_scalar(key, variable)

    # Model variables.

    def track(self, variables: Iterable[Any], names: Iterable[str] | None = None) -> list[Tracked]:
        """Track all these model variables; if one is invalid, track nothing. Tracked ones stay unchanged.

        Raises:
          GradientsError: not a variable. MismatchError: the optimizer was made with a mesh and a variable is not on it.
        """
        variables = listed(variables)
        chosen: list[str | None] = [None] * len(variables) if names is None else list(names)
        for item in variables:
            self._check_mesh(item)
        known = len(self.tracked)
        tracked_ = [self.tracked.add(item, name) for item, name in zip(variables, chosen, strict=True)]
        if len(self.tracked) > known:
            self._former_names.read_again()
        self._adopt_mesh()
        return tracked_

    @property
    def given_mesh(self) -> dtensor.Mesh | None:
        """The mesh that the optimizer was made with, whatever the mesh of its variables."""
        return self.mesh if self._mesh_was_given else None

    def _check_mesh(self, variable: Any) -> None:
        layout = placement.layout_of(unwrap(variable))
        if not self._mesh_was_given or (layout is not None and layout.mesh == self.mesh):
            return
        assert self.mesh is not None
        where = "on no mesh" if layout is None else f"on mesh {layout.mesh.dim_names} {layout.mesh.shape()}"
        raise MismatchError(
            f"variable {plain_name(variable)!r} is {where}, the optimizer was made with mesh={self.mesh.dim_names}"
            f" {self.mesh.shape()}; put the variable there, or make the optimizer with mesh=None to mix"
        )

    def _adopt_mesh(self) -> None:
        """Move the counters to the mesh of the variables, without `mesh=`, when these turn out to share one.

        Inside a `tf.function` over DTensors only a DVariable counts right: TensorFlow runs an assignment to a plain
        variable there once per device. The counters stay the same objects, so that other references to them stay valid.
        """
        mesh = common_mesh(self.tracked)
        if self.mesh is not None or mesh is None:
            return
        self.mesh = mesh
        self._counters.clear()
        wait_for_pending()  # `tf.train.Checkpoint` restores plain variables next to DVariables in DTensor's own time
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
        is_counter: bool = False,
    ) -> tf.Variable:
        """Make and store a slot with the dims of its variable, or some of them, filled with a number or with `value`.

        A slot that an interrupted `build` left is returned unchanged. `is_counter`: it is placed like the scalars of
        the whole optimizer.

        Raises:
          MismatchError: a slot filled with a number, for a variable whose shape is not fully known; or no dims are.
        """
        existing = self.slots.find(slot, tracked)
        if existing is not None:
            return existing
        if value is None or tracked.variable.shape.rank is None:
            check_has_shape(slot, tracked)
        shape = tracked.variable.shape.as_list()
        layout = placement.slot_layout(policy, tracked.variable, slot)
        if dims is not None and dims != tuple(range(len(shape))):
            shape, layout = [shape[d] for d in dims], placement.only_dims(tracked.layout, dims)
        dtype = dtype or tracked.variable.dtype
        name = slot_variable_name(slot, tracked.variable)
        with placement.beside(tracked.variable), _on_host(layout) if is_counter else nullcontext():
            if value is None:
                variable = placement.filled_variable(shape, fill, dtype, name, layout)
            else:
                variable = placement.new_variable(value, dtype, name, layout)
        return self.put_slot(slot, tracked, variable)

    def new_block_slot(self, slot: str, tracked: Tracked, blocks: int, fill: float) -> tf.Variable:
        """Make and keep a float32 slot of one number for each block of elements; each device of a mesh has all."""
        existing = self.slots.find(slot, tracked)
        if existing is not None:
            return existing
        with placement.beside(tracked.variable):
            name = slot_variable_name(slot, tracked.variable)
            layout = None if tracked.mesh is None else dtensor.Layout.replicated(tracked.mesh, rank=1)
            variable = placement.filled_variable([blocks], fill, tf.float32, name, layout)
        return self.put_slot(slot, tracked, variable)

    def new_copy(self, slot: str, tracked: Tracked, policy: Placement, dtype: tf.DType) -> tf.Variable:
        """Make and store a slot that starts as the value of its variable.

        A variable of a model that is built inside a `tf.function` has no value yet: TensorFlow traces such a function
        twice, and gives the variables their values in between. `copy_late_values` copies these.
        """
        if _has_value(tracked):
            value = tf.cast(tracked.variable.read_value(), dtype)
            return self.new_slot(slot, tracked, policy, value=value, dtype=dtype)
        copy = self.new_slot(slot, tracked, policy, dtype=dtype)
        self._late.append((copy, tracked))
        return copy

    def copy_late_values(self) -> None:
        """Set the copies of variables that had no value at the time of copying."""
        if not self._late:
            return
        with tf.init_scope():
            for copy, tracked in [pair for pair in self._late if _has_value(pair[1])]:
                copy.assign(tf.cast(tracked.variable.read_value(), copy.dtype))
            self._late = [pair for pair in self._late if not _has_value(pair[1])]

    def settle_checkpoints(self) -> None:
        """Load values that a checkpoint has under other names of variables, before a step needs them."""
        for node in self._slot_nodes.values():
            node.settle()

    def new_reference(
        self, slot: str, tracked: Tracked, policy: Placement, shape: Sequence[int] | None, initial_value: Any
    ) -> tf.Variable:
        """Return the result of `Optimizer.add_variable_from_reference`."""
        existing = self.slots.find(slot, tracked)
        if existing is not None:
            dims = tracked.variable.shape.as_list() if shape is None else [int(n) for n in shape]
            if (slot, tracked.index) in self._references and existing.shape.as_list() == dims:
                return existing  # a subclass's `build` that is called again
            raise HyperparameterError(
                f"add_variable_from_reference: variable {tracked} has a slot {slot!r} already; give another name"
            )
        self._references.add((slot, tracked.index))
        if shape is None or list(shape) == tracked.variable.shape.as_list():
            return self.new_slot(slot, tracked, policy, value=_broadcast(initial_value, tracked))
        dims = [int(n) for n in shape]
        layout = None if tracked.mesh is None else dtensor.Layout.replicated(tracked.mesh, len(dims))
        value = tf.zeros(dims, tracked.variable.dtype) if initial_value is None else initial_value
        name = slot_variable_name(slot, tracked.variable)
        with placement.beside(tracked.variable):
            variable = placement.new_variable(value, tracked.variable.dtype, name, layout)
        return self.put_slot(slot, tracked, variable)

    def placeholder(self, tracked: Tracked) -> tf.Variable:
        """Return a scalar zero on the mesh of a variable, for a slot that it does not have."""
        layout = None if tracked.mesh is None else dtensor.Layout.replicated(tracked.mesh, 0)
        return placement.new_variable(0, tracked.variable.dtype, "placeholder", layout)

    def put_slot(self, slot: str, tracked: Tracked, variable: tf.Variable) -> tf.Variable:
        """Store a slot variable, `optimizer/slots/<slot>/<variable>` in checkpoints."""
        node = self._slot_nodes.get(slot)
        if node is None:
            node = self._slot_nodes[slot] = SlotNode(self._former_names)
            self._slots_node._track_trackable(node, slot)
        node.keep(tracked, variable)
        self.slots.put(slot, tracked, variable)
        return variable

    def all_variables(self) -> weights.CallableList:
        """Return iterations, learning rate, other scalars, then slot by slot in build order; all are non-trainable."""
        return weights.CallableList([*self.scalars.values(), *(variable for _, _, variable in self.slots.items())])

    # Values.

    def get_weights(self) -> list[Any]:
        """Return the values of `variables`, as whole numpy arrays whatever the layouts."""
        return weights.read(self.all_variables())

    def set_weights(self, values: Sequence[Any]) -> None:
        """Assign all `variables`, in the order of `get_weights`. Raises MismatchError for wrong arrays; then nothing
        was assigned."""
        weights.write(self.all_variables(), values, self._name)

    def save_own_variables(self, store: Any) -> None:
        """Write `variables` into a mapping, under their positions as text, as Keras does."""
        store.update({str(i): value for i, value in enumerate(self.get_weights())})

    def load_own_variables(self, store: Any) -> None:
        """Read what `save_own_variables` wrote. Raises MismatchError."""
        self.set_weights([store[str(i)] for i in range(len(store.keys()))])


def _on_host(layout: dtensor.Layout | None) -> AbstractContextManager[Any]:
    """Put scalars without a mesh on the host if GPU steps are launched from there: reading them on a GPU would wait."""
    is_placed = layout is not None or tf.distribute.has_strategy()
    return on_host() if gpu.is_on() and not is_placed else nullcontext()


def _has_value(tracked: Tracked) -> bool:
    if tracked.layout is not None or isinstance(tracked.variable, tf.distribute.DistributedValues):
        return True
    return bool(tf.raw_ops.VarIsInitializedOp(resource=tracked.variable.handle))


def slot_variable_name(slot: str, variable: tf.Variable) -> str:
    """Return `m/dense/kernel`, with the name under which TensorFlow shares the variable, as Keras 2.9 names slots."""
    return f"{slot}/{variable._shared_name}"


def _broadcast(initial_value: Any, tracked: Tracked) -> Any:
    """Return an initial value in the shape of its variable: a number fills it."""
    if isinstance(initial_value, tf.Variable):
        return initial_value.read_value()
    if initial_value is None or dtensor.is_dtensor(initial_value):
        return initial_value
    value = tf.convert_to_tensor(initial_value, dtype=tracked.variable.dtype)
    return tf.broadcast_to(value, tracked.variable.shape)
