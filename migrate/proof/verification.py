"""Proof that a migration is right: both sides are read again, by other code than wrote them, and compared.

Arrays: source and target by their readers, bit for bit, with all checksums. Format: TensorFlow's own checkpoint reader
sees the same keys, shapes, dtypes and, in tensors of up to READ_BY_TENSORFLOW bytes, the same values. Meaning: one step
with a fixed pseudo-random gradient, by `optim` from the target and by the source generation's formula (`parity`) from
the source; of a large checkpoint on a sample (`parity_sample`). Where TensorFlow is not installed, the format is not
compared, the step is that of the rule alone (`by_rule`), and a note says so.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from migrate import readers
from migrate.bytes import files, urls
from migrate.bytes.arrays import LazyArray
from migrate.bytes.bundle import STRING, BundleReader, numpy_dtype
from migrate.lists import planning
from migrate.operations.convert import PathLike, Progress, for_target, read
from migrate.operations.hints import Hints
from migrate.proof import by_rule, list_target, loaded, model_target, parity, parity_sample, stepping
from migrate.proof.compare import Comparer
from migrate.readers.slots import read as read_slots
from migrate.state import OptimizerState
from migrate.writers.slots import write as write_slots
from optim import slot_layout
from optim.errors import UnsupportedError

if TYPE_CHECKING:
    from typing_extensions import Unpack

GRADIENT_SCALE = 1.0
READ_BY_TENSORFLOW = 1 << 20
WITHOUT_TENSORFLOW = (
    "TensorFlow is not installed, so its own reader was not asked, and a step is the rule's alone, in float64 on numpy"
)


@dataclass(frozen=True)
class Verification:
    """Result of `verify`.

    Attributes:
      ok: whether nothing differs.
      source, dest: what was compared.
      slots, variables: how many of them were compared, bit for bit.
      iterations: steps taken, by both.
      differences: every one of them.
      parity: the worst error of the step taken with each, in units of what rounding explains: 1 is the limit. None
        where no step was taken, and `notes` say why.
      notes: what was compared on a sample, by other means, or not at all.
    """

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
        """For JSON."""
        return asdict(self)


def verify(
    source: PathLike,
    dest: PathLike,
    *,
    order: str | None = None,
    progress: Progress | None = None,
    **hints: Unpack[Hints],
) -> Verification:
    """Compare a target with its source.

    A target of Keras 3 or tf_keras is read by this package's own reader, array by array; steps are compared by the
    formulas of both releases, and with those that Keras takes, which loads the target in a process of its own.

    Args:
      source: what was migrated.
      dest: what it was migrated to.
      order: for a list, the generation that shall read it, as it was given when the list was written.
      progress: called with (bytes compared, bytes in all).
      hints: the keywords of `read`, as they were given to `migrate_checkpoint`.

    Returns:
      What was compared, and every difference. Nothing is raised for a difference.

    Raises:
      DtoptError: one of the two cannot be read at all.
    """
    state = read(source, **hints)
    with files.here(os.fspath(dest)) as local:
        found = _compared(state, urls.shown(os.fspath(source)), local, order, progress)
    return replace(found, dest=urls.shown(os.fspath(dest)))


def _compared(
    state: OptimizerState, source: str, dest: str, order: str | None, progress: Progress | None
) -> Verification:
    if os.path.isfile(dest):
        state.finish_checks()
    if list_target.is_list(dest):
        return _verify_list(state, source, dest, order)
    if os.path.isfile(dest):
        return _verify_model(state, source, dest)
    target = _Target(dest)
    differences = [*_array_differences(state, target, progress), *_metadata_differences(state, target)]
    worst, notes = None, []
    if not _has_tensorflow():
        notes.append(WITHOUT_TENSORFLOW)
    elif not differences:
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
        source=source,
        dest=target.folder,
        slots=sum(len(owners) for owners in state.slots.values()),
        variables=sum(v.array is not None for v in state.variables),
        iterations=state.iterations,
        differences=tuple(differences),
        parity=worst,
        notes=tuple(notes),
    )


def _has_tensorflow() -> bool:
    return find_spec("tensorflow") is not None


def _verify_list(state: OptimizerState, source: str, dest: str, order: str | None) -> Verification:
    """A list has no hyperparameters to take a step with: its arrays are compared."""
    made = planning.plan(state, order)
    found = tuple(list_target.differences(made, dest))
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
    if found.name not in model_target.FORMATS:
        raise UnsupportedError(f"{dest} is {found.description}, which verify does not compare with a source")
    library = model_target.FORMATS[found.name]
    known = for_target(state, {"keras": "keras", "tf_keras": "tf-keras"}[library], None).reasons
    compared = model_target.compared(state, read(dest), known)
    differences, notes = list(compared.differences), list(compared.notes)
    if not differences:
        others, note = loaded.differences(state, compared.renamed, dest, library)
        differences += others
        (differences if loaded.is_off(note) and not known else notes).append(note)
    return Verification(
        ok=not differences,
        source=source,
        dest=dest,
        slots=sum(len(owners) for owners in state.slots.values()),
        variables=sum(v.array is not None for v in state.variables),
        iterations=state.iterations,
        differences=tuple(differences),
        parity=compared.worst,
        notes=tuple(notes),
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
    if not parity.has_formula(state.algorithm):
        raise UnsupportedError(
            f"no formula of {state.algorithm} is known here, so that no step is compared; its arrays are"
        )
    chosen, left_out = parity_sample.sample(state)
    if not left_out:
        return _parity(state, folder), left_out
    with tempfile.TemporaryDirectory() as scratch:
        part = os.path.join(scratch, "sample")
        write_slots(parity_sample.reduced(read_slots(folder), chosen), part)
        return _parity(parity_sample.reduced(state, chosen), part), left_out


def _parity(state: OptimizerState, folder: str) -> float:
    """Worst difference of one step, 1 being what rounding explains."""
    if state.hyperparameters.get("gradient_accumulation_steps"):
        raise UnsupportedError("gradients are accumulated over several batches, so that no single step is compared")
    ahead = state.hyperparameters.get("lookahead")
    if ahead and (state.iterations + 1) % ahead["sync_period"] == 0:
        raise UnsupportedError("the next step is one of Lookahead's slow weights, which no formula here has")
    source = stepping.parity_source(state)
    parity.rate(source)  # raises UnsupportedError for a schedule whose formula is not known
    names = list(dict.fromkeys(name for owners in state.slots.values() for name in owners))
    chosen = [v for v in state.variables if v.name in names] or [v for v in state.variables if v.trainable]
    shapes = {v.name: (v.shape, v.dtype) for v in chosen}
    gradients: dict[str, Callable[[], np.ndarray]] = {
        n: partial(stepping.random, n, *s, GRADIENT_SCALE) for n, s in shapes.items()
    }
    start = {
        v.name: stepping.random(v.name + "/value", v.shape, v.dtype, 1.0)
        if v.array is None
        else stepping.numbers(v.array)
        for v in chosen
    }
    if _has_tensorflow():
        got = _after_step(folder, {n: dtype for n, (_, dtype) in shapes.items()}, start, gradients)
    else:
        got = by_rule.after(folder, start, {name: gradient() for name, gradient in gradients.items()})
    clip = parity.gradient_scale(source, gradients)
    worst = 0.0
    for name, (_, dtype) in shapes.items():
        slots = {s: stepping.numbers(o[name]) for s, o in state.slots.items() if name in o}
        want, magnitude = parity.step(replace(source, variable=name), start[name], clip(gradients[name]()), slots)
        worst = max(worst, stepping.error(got[name], want, magnitude, dtype))
    return worst


def _after_step(
    folder: str,
    dtypes: Mapping[str, str],
    start: Mapping[str, np.ndarray],
    gradients: Mapping[str, Callable[[], np.ndarray]],
) -> dict[str, np.ndarray]:
    """What variables of those values become by a step of `optim` from the target, in float64."""
    import tensorflow as tf

    import optim

    live = {name: tf.Variable(tf.cast(start[name], dtype)) for name, dtype in dtypes.items()}
    optimizer = optim.load_checkpoint(folder, live, mesh=None, restore_variables=False)
    optimizer.apply_gradients([(tf.cast(gradients[n](), dtype), live[n]) for n, dtype in dtypes.items()])
    return {name: tf.cast(variable.read_value(), "float64").numpy() for name, variable in live.items()}
