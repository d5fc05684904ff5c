"""Proof that a migration is right: both sides are read again, by other code than wrote them, and compared.

Arrays: the source by its reader, the target by TensorFlow's own checkpoint reader, bit for bit. Meaning: one
  step with a
fixed pseudo-random gradient, by `optim` from the target and by the source generation's formula (`parity`)
from the source.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from migrate import list_plan, parity, readers, tf1, verify_list, verify_model
from migrate.convert import PathLike, read
from migrate.generations import version_tuple
from migrate.inspection import widened
from migrate.readers.keras_h5 import innermost
from migrate.state import LazyArray, OptimizerState
from optim import slot_layout
from optim.errors import UnsupportedError

GRADIENT_SCALE = 1.0
TF1_EPSILON = {"RMSprop": 1e-10}
ROUNDINGS = 8
"""A step may differ by so many roundings of the variable and of its change."""


@dataclass(frozen=True)
class Verification:
    """Result of `verify`. `ok` is whether nothing differs; `parity` is the worst error of the step, 1 being
    the limit."""

    ok: bool
    source: str
    dest: str
    slots: int
    variables: int
    iterations: int
    differences: tuple[str, ...]
    parity: float | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def verify(
    source: PathLike,
    dest: PathLike,
    *,
    format: str = "auto",
    optimizer_config: Mapping[str, Any] | None = None,
    variables: Sequence[Mapping[str, Any]] | None = None,
    generation: str | None = None,
    optimizer_path: str | None = None,
    order: str | None = None,
) -> Verification:
    """Compare a target with its source. Hints as for `migrate_checkpoint`.

    A target of Keras 3 or tf_keras is read by this package's own reader, and compared with what its writer is to make
    of the source; no step is taken.

    Args:
      order: for a list, the generation that shall read it, as it was given when the list was written.

    Returns:
      What was compared, and every difference. Nothing is raised for a difference.

    Raises:
      DtoptError: one of the two cannot be read at all.
    """
    state = read(
        source,
        format=format,
        optimizer_config=optimizer_config,
        variables=variables,
        generation=generation,
        optimizer_path=optimizer_path,
    )
    if verify_list.is_list(os.fspath(dest)):
        return _verify_list(state, os.fspath(source), os.fspath(dest), order)
    if os.path.isfile(dest):
        return _verify_model(state, os.fspath(source), os.fspath(dest))
    target = _Target(os.fspath(dest))
    differences = [*_array_differences(state, target), *_metadata_differences(state, target)]
    worst, notes = None, []
    if not differences:
        try:
            worst = _parity(state, target.folder)
        except UnsupportedError as error:
            notes.append(str(error))
        else:
            if not worst <= 1:
                differences.append(
                    f"a step from the target differs from the source's own by {worst:.3g} times what rounding explains"
                )
    return Verification(
        ok=not differences,
        source=os.fspath(source),
        dest=target.folder,
        slots=sum(len(owners) for owners in state.slots.values()),
        variables=sum(v.array is not None for v in state.variables),
        iterations=state.iterations,
        differences=tuple(differences),
        parity=worst,
        notes=tuple(notes),
    )


def _verify_list(state: OptimizerState, source: str, dest: str, order: str | None) -> Verification:
    """A list has no hyperparameters to take a step with: its arrays are compared."""
    made = list_plan.plan(state, order)
    found = tuple(verify_list.differences(made, dest))
    return Verification(
        ok=not found,
        source=source,
        dest=dest,
        slots=sum(len(owners) for owners in state.slots.values()),
        variables=0,
        iterations=state.iterations,
        differences=found,
        parity=None,
        notes=(
            f"the list of generation {made.generation} holds no hyperparameters, so that no step is compared",
            *made.reasons,
        ),
    )


def _verify_model(state: OptimizerState, source: str, dest: str) -> Verification:
    """Of a target that Keras 3 or tf_keras loads."""
    found = readers.detect(dest)
    if found.name not in verify_model.FORMATS:
        raise UnsupportedError(f"{dest} is {found.description}, which verify does not compare with a source")
    differences = tuple(verify_model.differences(state, read(dest), verify_model.writer_of(found.name)))
    return Verification(
        ok=not differences,
        source=source,
        dest=dest,
        slots=sum(len(owners) for owners in state.slots.values()),
        variables=sum(v.array is not None for v in state.variables),
        iterations=state.iterations,
        differences=differences,
        parity=None,
        notes=("no step was taken: hyperparameters were compared, as the target's reader has them",),
    )


class _Target:
    """A slot-variable checkpoint through TensorFlow's own reader."""

    def __init__(self, folder: str) -> None:
        import tensorflow as tf

        self.folder = folder
        self.reader = tf.train.load_checkpoint(slot_layout.current_prefix(folder))
        self.keys: set[str] = set(self.reader.get_variable_to_shape_map())
        document = self.reader.get_tensor(slot_layout.METADATA_KEY) if slot_layout.METADATA_KEY in self.keys else b"{}"
        self.metadata = slot_layout.Metadata.from_json(bytes(document).decode("utf-8", "replace"), folder)

    def load(self, key: str) -> np.ndarray:
        return np.asarray(self.reader.get_tensor(key))


def _expected(state: OptimizerState) -> Iterator[tuple[str, LazyArray]]:
    for slot, owners in state.slots.items():
        yield from ((slot_layout.slot_key(slot, name), array) for name, array in owners.items())
    yield from ((slot_layout.variable_key(v.name), v.array) for v in state.variables if v.array is not None)
    yield from ((slot_layout.unmapped_key(name), array) for name, array in state.unmapped.items())


def _array_differences(state: OptimizerState, target: _Target) -> Iterator[str]:
    wanted = dict(_expected(state))
    for key, array in wanted.items():
        problem = "is missing" if key not in target.keys else _difference(array, target.load(key))
        if problem:
            yield f"{key} {problem} (source: {array.stored_as})"
    prefixes = ("optimizer/slots/", "variables/", "unmapped/")
    yield from (
        f"{key} is in no source" for key in sorted(target.keys) if key.startswith(prefixes) and key not in wanted
    )
    counter = slot_layout.scalar_key(slot_layout.ITERATIONS)
    if counter not in target.keys or int(target.load(counter)) != state.iterations:
        yield f"{counter} is not {state.iterations} (source: {state.iterations_source})"


def _difference(array: LazyArray, got: np.ndarray) -> str:
    """How two arrays differ in shape, dtype or any bit; empty if they do not."""
    want = np.asarray(array.load())
    if got.shape != array.shape or got.dtype.name != array.dtype:
        return f"is {got.dtype.name}{list(got.shape)}, not {array.dtype}{list(array.shape)}"
    if np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(want).tobytes():
        return ""
    a, b = (
        widened(want, array.dtype),
        widened(got.view(np.uint16) if array.dtype == "bfloat16" else got, array.dtype),
    )
    unequal = int(np.sum(~((a == b) | (np.isnan(a) & np.isnan(b)))))
    return f"differs in {unequal} of {a.size} numbers" if unequal else "differs in bits (NaN payload or sign of zero)"


def _metadata_differences(state: OptimizerState, target: _Target) -> Iterator[str]:
    metadata = target.metadata
    if metadata.class_name != state.algorithm:
        yield f"the target's optimizer is {metadata.class_name}, the source's {state.algorithm}"
    for key, value in state.hyperparameters.items():
        if key != "name" and metadata.config.get(key) != value:
            yield f"the target has {key} = {metadata.config.get(key)!r}, the source {value!r}"


def _parity(state: OptimizerState, folder: str) -> float:
    """Worst difference of one step, 1 being what rounding explains."""
    import tensorflow as tf

    import optim

    if state.hyperparameters.get("gradient_accumulation_steps"):
        raise UnsupportedError("gradients are accumulated over several batches, so that no single step is compared")
    source = _parity_source(state)
    names = list(dict.fromkeys(name for owners in state.slots.values() for name in owners))
    chosen = [v for v in state.variables if v.name in names] or [v for v in state.variables if v.trainable]
    shapes = {v.name: (v.shape, v.dtype) for v in chosen}
    gradients: dict[str, Callable[[], np.ndarray]] = {
        n: partial(_random, n, *s, GRADIENT_SCALE) for n, s in shapes.items()
    }
    start = {
        v.name: _random(v.name + "/value", v.shape, v.dtype, 1.0)
        if v.array is None
        else widened(v.array.load(), v.dtype).reshape(v.shape)
        for v in chosen
    }
    live = {name: tf.Variable(tf.cast(start[name], dtype)) for name, (_, dtype) in shapes.items()}
    optimizer = optim.load_checkpoint(folder, live, mesh=None, restore_variables=False)
    optimizer.apply_gradients([(tf.cast(gradients[n](), shapes[n][1]), live[n]) for n in live])
    clip = parity.gradient_scale(source, gradients)
    worst = 0.0
    for name, (_, dtype) in shapes.items():
        slots = {s: _widened(o[name]) for s, o in state.slots.items() if name in o}
        want, magnitude = parity.step(source, start[name], clip(gradients[name]()), slots)
        got = tf.cast(live[name].read_value(), "float64").numpy()
        worst = max(worst, _worst(got, want, ROUNDINGS * _epsilon(dtype) * (np.abs(want) + magnitude)))
    return worst


def _widened(array: LazyArray) -> np.ndarray:
    return widened(array.load(), array.dtype).reshape(array.shape)


def _worst(got: np.ndarray, want: np.ndarray, limit: np.ndarray) -> float:
    """Greatest difference in units of its limit; infinite where one side alone is not finite."""
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)):
        return float("inf")
    if not finite.any():
        return 0.0
    return float(np.max(np.abs(got - want)[finite] / np.maximum(limit[finite], np.finfo(np.float64).tiny)))


def _epsilon(dtype: str) -> float:
    """Distance from 1 to the next number of a dtype."""
    return 2.0**-7 if dtype == "bfloat16" else float(np.finfo(dtype).eps)


def _random(name: str, shape: tuple[int, ...], dtype: str, scale: float) -> np.ndarray:
    """Fixed pseudo-random numbers of a variable, representable in its dtype, as float64."""
    values = scale * np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    if dtype == "bfloat16":
        bits = np.asarray(values, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        return bits.view(np.float32).astype(np.float64)
    return values.astype(dtype).astype(np.float64)


def _parity_source(state: OptimizerState) -> parity.Source:
    stored = state.source
    if stored is None or stored.format == "slots" or stored.optimizer_config is None or stored.generation is None:
        raise UnsupportedError(
            "the source is a slot-variable checkpoint itself, so there is no other formula to compare with"
        )
    inner = innermost(stored.optimizer_config)
    config = dict(inner.get("config", {}))
    if stored.generation == "tf1":
        _, config = tf1.keras_style(str(inner.get("class_name", "")), config)
        config.setdefault("epsilon", TF1_EPSILON.get(state.algorithm, 1e-8))
    config |= _kept_as_variables(stored.scalars, config)
    if not {"learning_rate", "lr"} & set(config) or stored.generation == "keras3":  # a Keras 3 list has its own
        config["learning_rate"] = state.hyperparameters["learning_rate"]
    version = version_tuple(stored.versions.get("tensorflow" if stored.generation == "tf1" else "keras"))
    dtypes = {a.dtype for owners in state.slots.values() for a in owners.values()}
    dtype = "float32" if dtypes == {"float32"} else "float64"
    return parity.Source(
        state.algorithm,
        config,
        stored.generation,
        version,
        state.iterations,
        dtype,
        product=state.scalars.get("u_product"),
        scaled_linear=bool(state.hyperparameters.get("learning_rate_in_linear")),
    )


def _kept_as_variables(scalars: Mapping[str, LazyArray], config: Mapping[str, Any]) -> dict[str, float]:
    """Hyperparameters that a TF2 checkpoint holds as variables: newer than the config."""
    named = {name.lstrip("_"): array for name, array in scalars.items()}
    wanted = [k for k in ("learning_rate", "decay", "momentum", "rho", "beta_1", "beta_2") if k in named]
    if isinstance(config.get("learning_rate"), Mapping):
        wanted = [k for k in wanted if k != "learning_rate"]
    return {k: float(np.asarray(named[k].load()).reshape(-1)[0]) for k in wanted}
