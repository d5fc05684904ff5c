"""Proof that a migration is right: both sides are read again, by other code than wrote them, and compared.

Arrays: source and target by their readers, bit for bit, with all checksums. Format: TensorFlow's own checkpoint reader
sees the same keys, shapes, dtypes and, in tensors of up to READ_BY_TENSORFLOW bytes, the same values. Meaning: one step
with a fixed pseudo-random gradient, by `optim` from the target and by the source generation's formula (`parity`) from
the source; of a large checkpoint on a sample (`parity_sample`).
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from migrate import list_plan, parity, parity_sample, readers, tf1, verify_list, verify_model
from migrate.compare import Comparer
from migrate.convert import PathLike, Progress, read
from migrate.generations import version_tuple
from migrate.inspection import widened
from migrate.readers.keras_h5 import innermost
from migrate.readers.slots import read as read_slots
from migrate.state import LazyArray, OptimizerState
from migrate.tensor_bundle import STRING, BundleReader, numpy_dtype
from migrate.writers.slots import write as write_slots
from optim import slot_layout
from optim.errors import UnsupportedError

GRADIENT_SCALE = 1.0
TF1_EPSILON = {"RMSprop": 1e-10}
READ_BY_TENSORFLOW = 1 << 20
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
    progress: Progress | None = None,
) -> Verification:
    """Compare a target with its source. Hints as for `migrate_checkpoint`.

    A target of Keras 3 or tf_keras is read by this package's own reader, and compared with what its writer is to make
    of the source; no step is taken.

    Args:
      order: for a list, the generation that shall read it, as it was given when the list was written.
      progress: called with (bytes compared, bytes in all).

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
    if os.path.isfile(dest):
        state.finish_checks()
    if verify_list.is_list(os.fspath(dest)):
        return _verify_list(state, os.fspath(source), os.fspath(dest), order)
    if os.path.isfile(dest):
        return _verify_model(state, os.fspath(source), os.fspath(dest))
    target = _Target(os.fspath(dest))
    differences = [*_array_differences(state, target, progress), *_metadata_differences(state, target)]
    worst, notes = None, []
    if not differences:
        differences += _tensorflow_differences(target)
    if not differences:
        try:
            worst, left_out = _sampled_parity(state, target.folder)
            notes += [left_out] if left_out else []
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
    """A slot-variable checkpoint, without what the metadata says of it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.bundle = BundleReader(slot_layout.current_prefix(folder))
        self.bundle.check_sizes()
        document = (
            self.bundle.load_bytes(slot_layout.METADATA_KEY) if slot_layout.METADATA_KEY in self.bundle else b"{}"
        )
        self.metadata = slot_layout.Metadata.from_json(document.decode("utf-8", "replace"), folder)

    def array(self, key: str) -> LazyArray:
        entry = self.bundle[key]
        return LazyArray(entry.shape, entry.dtype, partial(self.bundle.load, key), key, self.bundle.extent(key))


def _expected(state: OptimizerState) -> Iterator[tuple[str, LazyArray]]:
    for slot, owners in state.slots.items():
        yield from ((slot_layout.slot_key(slot, name), array) for name, array in owners.items())
    yield from ((slot_layout.variable_key(v.name), v.array) for v in state.variables if v.array is not None)
    yield from ((slot_layout.unmapped_key(name), array) for name, array in state.unmapped.items())


def _array_differences(state: OptimizerState, target: _Target, progress: Progress | None) -> Iterator[str]:
    wanted, done = dict(_expected(state)), 0
    total = sum(_bytes(array) for array in wanted.values())

    def report(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    for check in state.checks():
        check.start()
    comparer = Comparer(report)
    for key, array in wanted.items():
        problem = comparer.difference(array, target.array(key)) if key in target.bundle else "is missing"
        if problem:
            yield f"{key} {problem} (source: {array.stored_as})"
    state.finish_checks()
    prefixes = ("optimizer/slots/", "variables/", "unmapped/")
    yield from (
        f"{key} is in no source" for key in sorted(target.bundle) if key.startswith(prefixes) and key not in wanted
    )
    counter = slot_layout.scalar_key(slot_layout.ITERATIONS)
    if counter not in target.bundle or int(target.array(counter).load()) != state.iterations:
        yield f"{counter} is not {state.iterations} (source: {state.iterations_source})"


def _bytes(array: LazyArray) -> int:
    return 0 if array.dtype == STRING else array.size * numpy_dtype(array.dtype).itemsize


def _tensorflow_differences(target: _Target) -> Iterator[str]:
    """Where TensorFlow's own reader sees other keys, shapes, dtypes or, of tensors that are not large, other values."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(target.bundle.prefix)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    yield from (f"TensorFlow alone, or dtopt alone, sees {key}" for key in sorted(shapes.keys() ^ target.bundle.keys()))
    for key in sorted(shapes.keys() & target.bundle.keys()):
        array = target.array(key)
        seen = f"{dtypes[key].name}{shapes[key]}"
        if seen != f"{array.dtype}{list(array.shape)}":
            yield f"{key} is {seen} to TensorFlow, not {array.dtype}{list(array.shape)}"
        elif array.dtype != STRING and _bytes(array) <= READ_BY_TENSORFLOW:
            value = np.asarray(reader.get_tensor(key))
            if value.tobytes() != array.load().tobytes():
                yield f"{key} has other bits when TensorFlow reads it"


def _metadata_differences(state: OptimizerState, target: _Target) -> Iterator[str]:
    metadata = target.metadata
    if metadata.class_name != state.algorithm:
        yield f"the target's optimizer is {metadata.class_name}, the source's {state.algorithm}"
    for key, value in state.hyperparameters.items():
        if key != "name" and metadata.config.get(key) != value:
            yield f"the target has {key} = {metadata.config.get(key)!r}, the source {value!r}"


def _sampled_parity(state: OptimizerState, folder: str) -> tuple[float, str]:
    """Worst difference of one step on as much as memory allows, and what of the checkpoint that leaves out."""
    chosen, left_out = parity_sample.sample(state)
    if not left_out:
        return _parity(state, folder), left_out
    with tempfile.TemporaryDirectory() as scratch:
        part = os.path.join(scratch, "sample")
        write_slots(parity_sample.reduced(read_slots(folder), chosen), part)
        return _parity(parity_sample.reduced(state, chosen), part), left_out


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
