"""An optimizer's knowledge of the variables of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim.errors import GradientsError, MismatchError, UnknownVariableError
from optim.layouts import placement
from optim.native import direct
from optim.native.direct import AllExpected, Expected
from optim.state.names import plain_name


def unwrap(variable: Any) -> tf.Variable:
    """Return the `tf.Variable` inside a Keras 3 variable or a mixed-precision wrapper, or the variable itself.

    Raises:
      GradientsError: not a variable.
    """
    inner = variable_in(variable)
    if inner is None:
        raise GradientsError(f"expected a variable, got {type(variable).__name__}: {str(variable)[:80]!r}")
    return inner


def variable_in(value: Any) -> tf.Variable | None:
    """Return the result of `unwrap`; None for an object that is not a variable."""
    if isinstance(value, tf.Variable) and not hasattr(value, "_variable"):
        return value
    inner = getattr(value, "_value", None)  # Keras 3 on the TensorFlow backend
    if not isinstance(inner, tf.Variable):
        inner = getattr(value, "_variable", None)  # tf_keras AutoCastVariable
    return inner if isinstance(inner, tf.Variable) else None


@dataclass(frozen=True, eq=False)
class Tracked:
    """One model variable that an optimizer was built on.

    `user_variable` is the caller's object, `variable` the `tf.Variable` in it, `name` its unique name in checkpoints.
    """

    index: int
    name: str
    user_variable: Any
    variable: tf.Variable
    layout: dtensor.Layout | None
    mesh: dtensor.Mesh | None
    layout_text: str | None
    """`layout` as DTensor writes it: parsing the layout of every gradient would last as long as the rest of the
    step."""

    shape: tuple[int, ...] | None
    """Shape; None if it is not fully known."""
    dtype_number: int
    """The variable's dtype as TensorFlow's C API numbers it."""
    expected: Expected
    """These three are for `optim.native`."""
    may_be_constrained: bool
    """Whether it has a constraint, or is one of Keras's, which may get one at any time."""

    def __str__(self) -> str:
        return repr(self.name)

    @property
    def is_overwritten(self) -> bool:
        """Whether steps assign the gradient to it unchanged (`overwrite_with_gradient` of Keras, for float8 scales)."""
        return bool(getattr(self.user_variable, "overwrite_with_gradient", False))

    @property
    def names(self) -> tuple[str, str]:
        """The names that regular expressions of options match: its name in checkpoints, and its own."""
        return self.name, plain_name(self.user_variable)


class TrackedList(list[Tracked]):
    """The variables of one step, with facts about all of them: examining each takes long while they are not in a
    cache."""

    @cached_property
    def expected(self) -> AllExpected:
        return AllExpected([item.expected for item in self])

    @cached_property
    def may_be_constrained(self) -> bool:
        return any(item.may_be_constrained for item in self)

    @cached_property
    def has_complex(self) -> bool:
        return any(item.variable.dtype.is_complex for item in self)


class TrackedVariables:
    """The model variables of one optimizer in build order, looked up by identity."""

    unwrap = staticmethod(unwrap)

    def __init__(self) -> None:
        self._items: list[Tracked] = []
        self._by_id: dict[int, Tracked] = {}
        self._meshes: dict[Any, Any] = {}
        self._names: set[str] = set()
        self.any_overwritten = False
        self._last: tuple[tuple[int, ...], list[Any], TrackedList] = ((), [], TrackedList())

    def __iter__(self) -> Iterator[Tracked]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, variable: Any) -> bool:
        return id(unwrap(variable)) in self._by_id

    def __getitem__(self, variable: Any) -> Tracked:
        item = self._by_id.get(id(unwrap(variable)))
        if item is None:
            raise UnknownVariableError(self._why_unknown(plain_name(variable)))
        return item

    def _why_unknown(self, name: str) -> str:
        if name in self._names:
            return (
                f"the optimizer was built on another variable with the name {name!r}, perhaps of a copied model or"
                " optimizer. Make a new optimizer for the copy, or call optimizer.build([...]) with"
                " its variables first"
            )
        known = ", ".join(str(t) for t in self._items[:5]) or "no variable yet"
        more = ", ..." if len(self._items) > 5 else ""
        return (
            f"the optimizer was not built on variable {name!r} (it knows {known}{more}); call optimizer.build([...])"
            " with it first"
        )

    def at(self, index: int) -> Tracked:
        """Return a variable by build order."""
        return self._items[index]

    def in_build_order(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the caller's variables, for this number of gradients. Raises MismatchError."""
        if len(gradients) != len(self):
            raise MismatchError(
                f"{len(gradients)} gradients for the {len(self)} variables that the optimizer was built on; pass"
                " trainable_variables"
            )
        return [item.user_variable for item in self]

    def recall(self, variables: Sequence[Any]) -> TrackedList | None:
        """Return the last result of `find`, if it was for the same variables."""
        ids, _, items = self._last
        return items if ids == tuple(map(id, variables)) else None

    def find(self, variables: Sequence[Any]) -> TrackedList:
        """Look up each variable by identity. Raises UnknownVariableError."""
        items = TrackedList(self[variable] for variable in variables)
        if all(item.variable is variable for item, variable in zip(items, variables, strict=True)):
            # References prevent reuse of an id by another object. Wrappers may change their contents.
            self._last = (tuple(map(id, variables)), list(variables), items)
        return items

    def add(self, value: Any, name: str | None = None) -> Tracked:
        """Track a variable; return a tracked one unchanged."""
        variable = unwrap(value)
        if id(variable) in self._by_id:
            return self._by_id[id(variable)]
        unique = self._unique(name or plain_name(value))
        layout = placement.layout_of(variable)
        mesh = None if layout is None else layout.mesh
        mesh = self._meshes.setdefault(mesh, mesh)  # one object for each, found by identity
        text = None if layout is None else layout.to_string()
        shape = tuple(variable.shape.as_list()) if variable.shape.is_fully_defined() else None
        number = variable.dtype.as_datatype_enum
        expected = direct.expected(text, number, shape)
        constrained = value is not variable or variable.constraint is not None
        fields = (len(self._items), unique, value, variable, layout, mesh, text, shape, number, expected, constrained)
        tracked = Tracked(*fields)
        self._items.append(tracked)
        self.any_overwritten = self.any_overwritten or tracked.is_overwritten
        self._by_id[id(variable)] = tracked
        self._names.add(unique)
        return tracked

    def _unique(self, name: str) -> str:
        candidate, count = name, 0
        while candidate in self._names:
            count += 1
            candidate = f"{name}_{count}"
        return candidate


def common_mesh(tracked: Iterable[Tracked]) -> dtensor.Mesh | None:
    """Return the one mesh of all these variables; None without a mesh, or with more than one."""
    meshes = {t.mesh for t in tracked}
    return meshes.pop() if len(meshes) == 1 else None
