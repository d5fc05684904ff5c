"""What an optimizer knows about the model's variables, and where it keeps their slots."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor
from tensorflow.python.framework.ops import EagerTensor

from optim import placement
from optim.errors import GradientsError, HyperparameterError, MismatchError, UnknownVariableError
from optim.native import direct, library
from optim.native.direct import Expected


def unwrap(variable: Any) -> tf.Variable:
    """The `tf.Variable` inside a Keras 3 variable or a mixed-precision wrapper, or the variable itself.

    Raises:
      GradientsError: not a variable.
    """
    if isinstance(variable, tf.Variable) and not hasattr(variable, "_variable"):
        return variable
    inner = getattr(variable, "_value", None)  # Keras 3 on the TensorFlow backend
    if not isinstance(inner, tf.Variable):
        inner = getattr(variable, "_variable", None)  # tf_keras AutoCastVariable
    if isinstance(inner, tf.Variable):
        return inner
    raise GradientsError(f"expected a variable, got {type(variable).__name__}: {str(variable)[:80]!r}")


def plain_name(variable: Any) -> str:
    """Name of a variable without TensorFlow's output suffix; Keras 3 gives its full path."""
    name = getattr(variable, "path", None) or getattr(variable, "name", None) or "variable"
    return str(name).split(":")[0]


@dataclass(frozen=True, eq=False)
class Tracked:
    """One model variable that an optimizer was built on.

    `given` is what the caller handed in, `variable` the `tf.Variable` in it, `name` its unique name in checkpoints.
    """

    index: int
    name: str
    given: Any
    variable: tf.Variable
    layout: dtensor.Layout | None
    mesh: dtensor.Mesh | None
    layout_text: str | None
    """`layout` as DTensor writes it: parsing the layout of every gradient of a step would take as long as the step."""

    shape: tuple[int, ...] | None
    """None if it is not known in full."""
    dtype_number: int
    """The variable's dtype as TensorFlow's C API numbers it."""
    expected: Expected
    """These three for `optim.native`."""

    def __str__(self) -> str:
        return repr(self.name)


class TrackedVariables:
    """The model variables of one optimizer in build order, found again by identity."""

    def __init__(self) -> None:
        self._items: list[Tracked] = []
        self._by_id: dict[int, Tracked] = {}
        self._meshes: dict[Any, Any] = {}
        self._names: set[str] = set()
        self._last: tuple[tuple[int, ...], list[Any], list[Tracked]] = ((), [], [])

    def __iter__(self) -> Iterator[Tracked]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, variable: Any) -> bool:
        return id(unwrap(variable)) in self._by_id

    def __getitem__(self, variable: Any) -> Tracked:
        found = self._by_id.get(id(unwrap(variable)))
        if found is None:
            known = ", ".join(str(t) for t in self._items[:5]) or "none yet"
            raise UnknownVariableError(
                f"the optimizer was not built on variable {plain_name(variable)!r} (it knows {known}"
                f"{', ...' if len(self._items) > 5 else ''}); call optimizer.build([...]) with it first"
            )
        return found

    def at(self, index: int) -> Tracked:
        """By build order."""
        return self._items[index]

    def recall(self, variables: Sequence[Any]) -> list[Tracked] | None:
        """What `find` returned last, if it was for the same variables."""
        return self._last[2] if self._last[0] == tuple(map(id, variables)) else None

    def find(self, variables: Sequence[Any]) -> list[Tracked]:
        """Each variable by identity. Raises UnknownVariableError."""
        found = [self[variable] for variable in variables]
        if all(item.variable is variable for item, variable in zip(found, variables, strict=True)):
            # Held, so that no other object takes over an id. Wrappers may change what is in them.
            self._last = (tuple(map(id, variables)), list(variables), found)
        return found

    def add(self, given: Any, name: str | None = None) -> Tracked:
        """Track a variable; one that is tracked already is returned as it is."""
        variable = unwrap(given)
        if id(variable) in self._by_id:
            return self._by_id[id(variable)]
        unique = self._unique(name or plain_name(given))
        layout = placement.layout_of(variable)
        mesh = None if layout is None else layout.mesh
        mesh = self._meshes.setdefault(mesh, mesh)  # one object for each, found by identity
        text = None if layout is None else layout.to_string()
        shape = tuple(variable.shape.as_list()) if variable.shape.is_fully_defined() else None
        number = variable.dtype.as_datatype_enum
        wanted = direct.expected(text, number, shape)
        tracked = Tracked(len(self._items), unique, given, variable, layout, mesh, text, shape, number, wanted)
        self._items.append(tracked)
        self._by_id[id(variable)] = tracked
        self._names.add(unique)
        return tracked

    def _unique(self, name: str) -> str:
        candidate, count = name, 0
        while candidate in self._names:
            count += 1
            candidate = f"{name}_{count}"
        return candidate


def check_patterns(argument: str, values: Any) -> tuple[str, ...]:
    """Regular expressions of variable names, checked. Raises HyperparameterError."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise HyperparameterError(f"{argument} must be a list of regular expressions, got {values!r}")
    for value in values:
        try:
            re.compile(value)
        except (re.error, TypeError) as error:
            raise HyperparameterError(f"{argument}: {value!r} is no regular expression: {error}") from error
    return tuple(values)


def matches(patterns: Sequence[str], tracked: Tracked) -> bool:
    """Whether one of the regular expressions is found in the variable's name, here or in checkpoints."""
    names = (tracked.name, plain_name(tracked.given))
    return any(re.search(pattern, name) for pattern in patterns for name in names)


def common_mesh(tracked: Iterable[Tracked]) -> dtensor.Mesh | None:
    """The one mesh that all these variables are on; None if there is none, or more than one."""
    meshes = {t.mesh for t in tracked}
    return meshes.pop() if len(meshes) == 1 else None


def split_pairs(grads_and_vars: Any) -> tuple[list[Any], list[Any]]:
    """The gradients and the variables of (gradient, variable) pairs.

    Raises:
      GradientsError: not an iterable of pairs.
    """
    try:
        pairs = list(grads_and_vars)
    except TypeError as error:
        raise GradientsError(
            f"grads_and_vars must be an iterable of (gradient, variable) pairs, got {type(grads_and_vars).__name__}"
        ) from error
    for position, pair in enumerate(pairs):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise GradientsError(
                f"grads_and_vars[{position}] must be a (gradient, variable) pair, got {type(pair).__name__}"
                f" {str(pair)[:60]!r}"
            )
    return [gradient for gradient, _ in pairs], [variable for _, variable in pairs]


def check_distinct(variables: Sequence[Any]) -> None:
    """Raises GradientsError: not a variable, or the same variable twice."""
    seen: set[int] = set()
    for given in variables:
        variable = unwrap(given)
        if id(variable) in seen:
            raise GradientsError(f"grads_and_vars names variable {plain_name(given)!r} twice; add its gradients up")
        seen.add(id(variable))


def check_pairs(grads_and_vars: Any) -> list[tuple[Any, Any]]:
    """`grads_and_vars` as a list of pairs.

    Raises:
      GradientsError: not an iterable of pairs, or the same variable twice.
    """
    gradients, variables = split_pairs(grads_and_vars)
    check_distinct(variables)
    return list(zip(gradients, variables, strict=True))


def conform_all(gradients: Sequence[Any], tracked: Sequence[Tracked]) -> list[Any]:
    """`conform` of each; an eager gradient that is as it should be, which is usual, costs little."""
    if not tf.executing_eagerly():
        return [conform(gradient, item) for gradient, item in zip(gradients, tracked, strict=True)]
    if library.status().available:
        conformed = list(gradients)
        for i in direct.misfits(gradients, [item.expected for item in tracked]):
            conformed[i] = conform(gradients[i], tracked[i])
        return conformed
    on_mesh = any(item.layout is not None for item in tracked)
    reader = placement.DTensorReader() if on_mesh else None

    def fits(gradient: Any, item: Tracked) -> bool:
        if type(gradient) is not EagerTensor or gradient._datatype_enum() != item.dtype_number:
            return False
        if gradient._shape_tuple() != item.shape:
            return False
        if item.layout is None:  # a DTensor is on a custom device; asking DTensor is slow
            return "CUSTOM" not in gradient.device
        assert reader is not None
        return reader.layout_text(gradient) == item.layout_text

    return [g if fits(g, item) else conform(g, item) for g, item in zip(gradients, tracked, strict=True)]


def conform(gradient: Any, tracked: Tracked) -> Any:
    """A dense gradient of the variable's shape and dtype, on its mesh (eagerly: in its layout).

    `IndexedSlices` are made dense; repeated indices add up. Floating dtypes are cast to the variable's.

    Raises:
      MismatchError: shape, dtype or mesh differ. GradientsError: not a tensor.
    """
    if isinstance(gradient, tf.IndexedSlices):
        gradient = densify(gradient, tracked)
    try:
        gradient = gradient if isinstance(gradient, tf.Tensor) else tf.convert_to_tensor(gradient)
    except (TypeError, ValueError) as error:
        raise GradientsError(f"the gradient of {tracked} is no tensor: {type(gradient).__name__}") from error
    if not gradient.shape.is_compatible_with(tracked.variable.shape):
        raise MismatchError(
            f"the gradient of {tracked} has shape {gradient.shape}, the variable {tracked.variable.shape}"
        )
    if gradient.dtype != tracked.variable.dtype:
        if not (gradient.dtype.is_floating and tracked.variable.dtype.is_floating):
            raise MismatchError(
                f"the gradient of {tracked} is {gradient.dtype.name}, the variable {tracked.variable.dtype.name}; cast"
                " it"
            )
        gradient = tf.cast(gradient, tracked.variable.dtype)  # as Keras 3 does
    return _on_mesh(gradient, tracked) if tf.executing_eagerly() else gradient


def densify(gradient: tf.IndexedSlices, tracked: Tracked) -> tf.Tensor:
    """The dense form of `IndexedSlices` of a variable: rows with the same index are added."""
    if tracked.variable.shape.rank == 0:
        raise MismatchError(f"the gradient of {tracked} is IndexedSlices, but the variable is a scalar")
    rows = tracked.variable.shape[0]
    indices = tf.convert_to_tensor(gradient.indices)  # `IndexedSlices` keeps tuples and arrays as they were given
    if tf.executing_eagerly():  # TensorFlow would drop a negative index without a word
        named = placement.to_host(indices)
        outside = named[(named < 0) | (named >= rows)]
        if outside.size:
            raise MismatchError(f"the gradient of {tracked} is for row {outside[0]}, the variable has {rows} rows")
    return tf.math.unsorted_segment_sum(gradient.values, indices, rows)


def _on_mesh(gradient: Any, tracked: Tracked) -> Any:
    layout = tracked.layout
    if not dtensor.is_dtensor(gradient):
        if layout is None:
            return gradient
        raise MismatchError(
            f"the gradient of {tracked} is not on the variable's mesh ({layout.mesh.dim_names}); compute it from"
            " DTensors, or put it there with dtensor.copy_to_mesh"
        )
    found = dtensor.fetch_layout(gradient)
    if layout is not None and found == layout:
        return gradient
    if layout is None:
        raise MismatchError(f"the gradient of {tracked} is on a mesh ({found.mesh.dim_names}), the variable is not")
    if found.mesh != layout.mesh:
        raise MismatchError(
            f"the gradient of {tracked} is on mesh {found.mesh.dim_names} {found.mesh.shape()}, the variable on"
            f" {layout.mesh.dim_names} {layout.mesh.shape()}"
        )
    return dtensor.relayout(gradient, layout)


class SlotTable:
    """Slot variables by slot name and model variable, in the order in which they were made."""

    def __init__(self) -> None:
        self._slots: dict[str, dict[int, tf.Variable]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    @property
    def names(self) -> list[str]:
        return list(self._slots)

    def put(self, slot: str, tracked: Tracked, value: tf.Variable) -> None:
        self._slots.setdefault(slot, {})[tracked.index] = value

    def find(self, slot: str, tracked: Tracked) -> tf.Variable | None:
        return self._slots.get(slot, {}).get(tracked.index)

    def get(self, slot: str, tracked: Tracked) -> tf.Variable:
        """One slot variable. Raises UnknownVariableError."""
        found = self.find(slot, tracked)
        if found is None:
            raise UnknownVariableError(
                f"variable {tracked} has no slot {slot!r}; the slots are {', '.join(self._slots) or 'none'}"
            )
        return found

    def of(self, tracked: Tracked, names: Sequence[str]) -> dict[str, tf.Variable]:
        """Those of the named slots that the variable has."""
        found = {name: self.find(name, tracked) for name in names}
        return {name: variable for name, variable in found.items() if variable is not None}

    def items(self) -> Iterator[tuple[str, int, tf.Variable]]:
        """(slot, index of the model variable, slot variable), slot by slot."""
        for slot, per_variable in self._slots.items():
            for index, value in per_variable.items():
                yield slot, index, value
