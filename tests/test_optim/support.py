"""Models of a few variables on any mesh or none, and the ways to run a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from tests.helpers.dtensor_asserts import layout_of
from tests.test_optim.values import MODES, SHAPES, gradient_values, scaled_values, start_values

__all__ = ["MODES", "SHAPES", "gradient_values", "scaled_values", "start_values"]

# Mesh fixture, and sharding by variable; what is not named is replicated.
LAYOUTS: Mapping[str, tuple[str | None, Mapping[str, Sequence[str]]]] = {
    "plain": (None, {}),
    "replicated": ("mesh_2", {}),
    "rows": ("mesh_2", {"kernel": ["x", "unsharded"], "table": ["x", "unsharded"], "bias": ["x"]}),
    "columns": ("mesh_2", {"kernel": ["unsharded", "x"]}),
    "mixed": (
        "mesh_2x2",
        {"kernel": ["batch", "model"], "table": ["model", "unsharded"], "bias": ["batch"]},
    ),
}


def put(value: Any, layout: dtensor.Layout | None, dtype: Any = tf.float64) -> Any:
    """A constant in a layout, or plain."""
    tensor = tf.constant(np.asarray(value, np.float64), dtype)
    if layout is None:
        return tensor
    whole = dtensor.copy_to_mesh(tensor, dtensor.Layout.replicated(layout.mesh, layout.rank))
    return dtensor.relayout(whole, layout)


def variable(value: Any, layout: dtensor.Layout | None, name: str, dtype: Any = tf.float64, **options: Any) -> Any:
    if layout is None:
        return tf.Variable(tf.constant(np.asarray(value, np.float64), dtype), name=name, **options)
    return dtensor.DVariable(put(value, layout, dtype), name=name, **options)


@dataclass(frozen=True)
class Place:
    """Where a model's variables are."""

    mesh: dtensor.Mesh | None
    sharding: Mapping[str, Sequence[str]]

    @classmethod
    def named(cls, name: str, request: Any) -> Place:
        """One of `LAYOUTS`; `request` is pytest's."""
        mesh, sharding = LAYOUTS[name]
        return cls(None if mesh is None else request.getfixturevalue(mesh), sharding)

    def layout(self, name: str, rank: int) -> dtensor.Layout | None:
        if self.mesh is None:
            return None
        return dtensor.Layout(list(self.sharding.get(name, ["unsharded"] * rank)), self.mesh)

    def variables(self, values: Mapping[str, Any], dtype: Any = tf.float64) -> dict[str, Any]:
        return {n: variable(v, self.layout(n, np.ndim(v)), n, dtype) for n, v in values.items()}


def slot_layout(layout: dtensor.Layout | None, slot: str, rank: int) -> dtensor.Layout | None:
    """The layout of a slot of that rank: its variable's, without the dim that Adafactor's means are over."""
    if layout is not None and rank == 0:
        return dtensor.Layout.replicated(layout.mesh, 0)
    name, _, dim = slot.rpartition("_")
    if layout is not None and name in ("statistics", "root", "basis"):  # a matrix, or its diagonal
        return dtensor.Layout([layout.sharding_specs[int(dim)], dtensor.UNSHARDED][:rank], layout.mesh)
    if layout is None or slot not in ("r", "c"):
        return layout
    specs = list(layout.sharding_specs)
    del specs[-1 if slot == "r" else -2]
    return dtensor.Layout(specs, layout.mesh)


def put_gradients(
    gradients: Mapping[str, Any], variables: Mapping[str, Any], *, replicated: bool = False
) -> list[tuple[Any, Any]]:
    """(gradient, variable) pairs, each gradient in its variable's layout or replicated on its mesh."""
    pairs = []
    for name, value in gradients.items():
        layout = layout_of(variables[name])
        if replicated and layout is not None:
            layout = dtensor.Layout.replicated(layout.mesh, layout.rank)
        pairs.append((None if value is None else put(value, layout, variables[name].dtype), variables[name]))
    return pairs


def stepper(optimizer: Any, mode: str) -> Callable[[Sequence[tuple[Any, Any]]], None]:
    """`apply_gradients`, eagerly, or in one `tf.function` per set of None gradients, which may trace at first only."""
    if mode not in ("function", "native_function"):
        return optimizer.apply_gradients
    functions: dict[tuple[Any, ...], Any] = {}
    traces: dict[tuple[Any, ...], int] = {}

    def step(pairs: Sequence[tuple[Any, Any]]) -> None:
        variables = [v for _, v in pairs]
        key = tuple(g is None for g, _ in pairs)
        if key not in functions:

            @tf.function(autograph=False)
            def function(gradients: Sequence[Any]) -> None:
                optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

            functions[key] = function
        functions[key]([g for g, _ in pairs])
        now = functions[key].experimental_get_tracing_count()
        assert traces.setdefault(key, now) == now, "a later step traced again"

    return step


def dense_gradients(call: int) -> dict[str, np.ndarray]:
    """Those of `gradient_values`, zeros for a variable that has none."""
    return {name: np.zeros(SHAPES[name]) if g is None else g for name, g in gradient_values(call).items()}


@dataclass
class Trained:
    """Plain variables after some calls of an optimizer."""

    variables: dict[str, tf.Variable]
    optimizer: Any

    def arrays(self) -> list[np.ndarray]:
        """All that the calls left: variables and slots, in float64."""
        return [np.asarray(tf.cast(v, tf.float64)) for v in (*self.variables.values(), *self.optimizer.variables)]


def trained(
    optimizer: Any,
    start: Mapping[str, np.ndarray],
    calls: Iterable[Mapping[str, np.ndarray]],
    dtype: str,
    in_function: bool,
    device: str = "",
) -> Trained:
    """Train plain variables on a device with the gradients of some calls, eagerly or in one `tf.function`."""
    with tf.device(device or None):
        variables = {name: tf.Variable(tf.constant(value, dtype), name=name) for name, value in start.items()}
        optimizer.build(list(variables.values()))

        def step(*gradients: Any) -> None:
            optimizer.apply_gradients(list(zip(gradients, variables.values(), strict=True)))

        run = tf.function(step) if in_function else step
        for call in calls:
            run(*(tf.constant(call[name], dtype) for name in variables))
    return Trained(variables, optimizer)


def executor_for(mode: str) -> str:
    return {"function": "auto", "native": "local", "native_function": "auto"}.get(mode, mode)


def snapshot(variables: Sequence[Any]) -> list[bytes]:
    """The exact bits of variables."""
    from tests.helpers.dtensor_asserts import value_of

    return [value_of(v).tobytes() for v in variables]
