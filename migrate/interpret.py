"""`Stored` -> `OptimizerState`: from a source's own terms to those of `optim`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from migrate import algorithms, conventions, generations, lazy_rows, tf1
from migrate.algorithms.spec import ACCUMULATED, AVERAGE, SHARED_SLOTS, Algorithm, number
from migrate.errors import DamagedFileError, MissingHintError
from migrate.hints import with_hints
from migrate.slot_table import COUNTERS, SlotTable, slot_table
from migrate.state import LazyArray, OptimizerState, Stored, StoredVariable
from optim import slot_layout
from optim.errors import UnsupportedError

RATES = ("learning_rate", "_learning_rate", "lr")
FLOAT32_EXACT = 2**24


def interpret(
    stored: Stored,
    *,
    optimizer_config: Mapping[str, Any] | None = None,
    variables: Sequence[Mapping[str, Any]] | None = None,
    generation: str | None = None,
) -> OptimizerState:
    """Optimizer state in `optim`'s terms. Arrays stay in the file until they are asked for.

    Args:
      optimizer_config: Keras JSON `{"class_name", "config"}`, for sources that do not say; overrides one
        that does.
      variables: `[{"name", "shape"}, ...]` in optimizer order, for sources that do not name them.
      generation: one of `generations.GENERATIONS`, for sources that cannot say.

    Raises:
      MissingHintError, AmbiguousError, MismatchError, DamagedFileError, UnsupportedError.
    """
    stored, warnings = with_hints(stored, optimizer_config, variables, generation)
    assert stored.generation is not None
    algorithm, config = _configured(stored, warnings)
    found = slot_table(stored, algorithm, config, complete=variables is not None)
    problem = algorithm.check(config, stored.generation, {**stored.versions, **found.release})
    if problem is not None:
        raise UnsupportedError(problem)
    _leave_frozen_out(stored, found)
    iterations, source = _iterations(stored, found, algorithm, config)
    if stored.generation == "keras1" and iterations == 0 and not algorithm.uses_count:
        warnings.append("iterations is 0: Keras 1 counts steps only where decay is set, so it need not be untrained")
    scalars, kept = _scalars(found, algorithm)
    dtypes = {array.dtype for array in found.pairs.values()} or {v.dtype for v in stored.variables if v.trainable}
    told = conventions.arguments(config, scalars, algorithm, stored.generation, stored.versions, dtypes)
    slots = _by_slot(found, algorithm, told.values, iterations, {v.name: v.shape for v in stored.variables}, warnings)
    trained = [*found.order, *(v.name for v in stored.variables if v.trainable and v.name not in found.order)]
    lazy_rows.put_in(told, config, algorithm, stored.generation, trained)
    batches = told.values.get("gradient_accumulation_steps")
    if batches and iterations is not None:
        iterations, gathered = divmod(iterations, batches)
        source = f"{source} (counts batches; {batches} make a step)"
    state, notes = algorithm.state(told.values, kept, stored.generation, iterations or 0)
    state |= {slot_layout.ACCUMULATED_STEPS: gathered} if batches and iterations is not None else {}
    warnings += notes
    reasons = [
        *_outside(stored, config),
        *found.reasons,
        *told.reasons,
        *_lost_iterations(iterations, source, told.values),
    ]
    return OptimizerState(
        algorithm=algorithm.name,
        hyperparameters=told.values,
        iterations=iterations or 0,
        iterations_source=source,
        slots=slots,
        variables=_ordered(stored, found.order),
        scalars=state,
        unmapped=found.unmapped,
        matched=_matched(found, slots),
        source=stored,
        fidelity="approximate" if reasons else "exact",
        reasons=tuple(reasons),
        warnings=(*stored.warnings, *warnings, *told.warnings, *found.warnings),
    )


def _configured(stored: Stored, warnings: list[str]) -> tuple[Algorithm, dict[str, Any]]:
    """The algorithm, and its config with the defaults of its generation."""
    assert stored.generation is not None
    class_name, raw = _unwrapped(stored, warnings)
    if stored.generation == "tf1":
        class_name, raw = tf1.keras_style(class_name, raw)
    algorithm = algorithms.find(class_name)
    _check_generation(algorithm, stored.generation)
    config, defaulted = conventions.completed(raw, algorithm, stored.generation)
    if defaulted:
        shown = ", ".join(f"{key}={config[key]!r}" for key in defaulted)
        warnings.append(f"not in the optimizer's config, taken from the constructor of that generation: {shown}")
    return algorithm, config


def _matched(found: SlotTable, slots: Mapping[str, Mapping[str, LazyArray]]) -> dict[str, str]:
    """How each slot that is carried was matched."""
    keys = [(slot, name) for slot, owners in slots.items() for name in owners]
    return {"/".join(key): found.how[key] for key in keys if key in found.how}


def _check_generation(algorithm: Algorithm, generation: str) -> None:
    if generation not in algorithm.generations:
        has = ", ".join(g for g in generations.GENERATIONS if g in algorithm.generations)
        raise UnsupportedError(
            f"generation {generation} of Keras has no {algorithm.name} (only {has} have), so this is another project's,"
            " whose rule is not known; if it is one of those generations after all, say so with --generation"
        )


def _outside(stored: Stored, config: Mapping[str, Any]) -> list[str]:
    """What the program did around the optimizer and the config does not repeat."""
    told = {
        "learning_rate": isinstance(config.get("learning_rate"), Mapping),
        "clipping": any(config.get(key) for key in ("clipnorm", "clipvalue", "global_clipnorm")),
    }
    return [
        f"{what}: {how}, which the config does not say; give it in --optimizer-config"
        for what, how in stored.outside.items()
        if not told[what]
    ]


def _unwrapped(stored: Stored, warnings: list[str]) -> tuple[str, Mapping[str, Any]]:
    """Class and config of the optimizer proper, without the LossScaleOptimizer around it."""
    optimizer: Mapping[str, Any] = stored.optimizer_config or {}
    while True:
        config = optimizer.get("config", {})
        inner = config.get("inner_optimizer", config.get("optimizer"))
        if not isinstance(inner, Mapping) or "class_name" not in inner:
            return str(optimizer.get("class_name", "")), config
        warnings.append(
            f"{optimizer.get('class_name')} wraps the optimizer: its loss scale is not part of the state"
            " that is carried; optim.load_checkpoint(..., loss_scale=...) switches loss scaling on again"
        )
        optimizer = inner


def _leave_frozen_out(stored: Stored, found: SlotTable) -> None:
    """Move slots of variables that the source calls frozen to the unmapped, for generations that ask at each step.

    Optimizers before OptimizerV2 train what `compile` found, whatever was frozen since; and a model that is frozen as a
    whole, as a GAN's discriminator often is when it is saved, was trained by the optimizer it is saved with.
    """
    frozen = {v.name for v in stored.variables if v.trainable is False}
    kept = [name for name in found.order if name in frozen]
    if stored.generation in generations.NATIVE or len(kept) == len(found.order):
        return
    for key in [key for key in found.pairs if key[1] in frozen]:
        found.unmapped["/".join(key)] = found.pairs.pop(key)
        found.how.pop(key, None)
    if kept:
        found.order = [name for name in found.order if name not in frozen]
        found.warnings.append(f"{', '.join(kept)}: frozen by now, so that their slots are carried among the unmapped")


def _iterations(
    stored: Stored, found: SlotTable, algorithm: Algorithm, config: Mapping[str, Any]
) -> tuple[int | None, str]:
    """Steps taken and where that number came from; None where it is not saved and does not have to be known."""
    for name in COUNTERS:
        if name in found.scalars:
            return _count(found.scalars.pop(name))
    if stored.generation == "tf1" and "iterations" not in config:
        told = tf1.steps(found.scalars, config) if algorithm.uses_count else None
        if told is not None:
            return told
        if tf1.GLOBAL_STEP in found.scalars:
            return _count(found.scalars.pop(tf1.GLOBAL_STEP))
    if "iterations" in config:
        return int(number(config, "iterations")), "iterations in the config of --optimizer-config"
    if stored.generation in algorithm.counts and stored.generation != "experimental":
        raise DamagedFileError(
            f"the source holds no step counter (iterations), and {algorithm.name} of generation"
            f" {stored.generation} always saves one: it is incomplete, or of another generation (--generation)"
        )
    if algorithm.uses_count:
        raise MissingHintError(
            f"the source does not say how many steps {algorithm.name} has taken, and its update depends on that;"
            ' add "iterations": N to the config in --optimizer-config'
        )
    return None, f"not saved: {algorithm.name} of generation {stored.generation} keeps no iterations"


def _count(array: LazyArray) -> tuple[int, str]:
    value = np.asarray(array.load()).reshape(-1)
    if value.size != 1 or not math.isfinite(float(value[0])) or float(value[0]) != int(value[0]) or value[0] < 0:
        raise DamagedFileError(
            f"the step counter {array.stored_as} holds {value[:3].tolist()}, which is no number of steps"
        )
    count = int(value[0])
    if array.dtype.startswith("float") and count >= FLOAT32_EXACT:
        return count, f"{array.stored_as} (a float32, which stops counting at {FLOAT32_EXACT})"
    return count, array.stored_as


def _lost_iterations(iterations: int | None, source: str, values: Mapping[str, Any]) -> list[str]:
    if iterations is not None:
        return []
    if "decay" in values or isinstance(values["learning_rate"], Mapping):
        return [
            f"iterations: {source}; the learning rate's decay starts again from step 0, as it did when"
            ' Keras reloaded such a file. If the count is known, add "iterations": N to the config in'
            " --optimizer-config"
        ]
    return []


def _scalars(found: SlotTable, algorithm: Algorithm) -> tuple[dict[str, float], dict[str, float]]:
    """Hyperparameters that the source keeps as variables, and state of the whole optimizer; the rest is unmapped."""
    state_names = {alias: name for name, aliases in algorithm.state_scalars for alias in (name, *aliases)}
    values: dict[str, float] = {}
    state: dict[str, float] = {}
    for name in list(found.scalars):
        array = found.scalars.pop(name)
        key = "learning_rate" if name in RATES else name.lstrip("_")
        if name in state_names and array.shape == ():
            state[state_names[name]] = float(array.load())
        elif array.shape == () and key in ("learning_rate", "decay", *algorithm.scalars):
            values[key] = float(array.load())
        else:
            found.unmapped[name] = array
    return values, state


def _by_slot(
    found: SlotTable,
    algorithm: Algorithm,
    values: dict[str, Any],
    iterations: int | None,
    shapes: Mapping[str, tuple[int, ...]],
    warnings: list[str],
) -> dict[str, dict[str, LazyArray]]:
    """Slots in `optim`'s order; those that the hyperparameters leave no place for go to the unmapped."""
    more, wanted = algorithm.adjust(values, frozenset(slot for slot, _ in found.pairs))
    values.update(more)
    if values.get("use_ema"):
        wanted = (*wanted, AVERAGE.name)
    if values.get("gradient_accumulation_steps"):
        wanted = (*wanted, ACCUMULATED.name)
    slots: dict[str, dict[str, LazyArray]] = {}
    for name in (s.name for s in (*algorithm.slots, *SHARED_SLOTS)):
        owners = {variable: found.pairs[name, variable] for variable in found.order if (name, variable) in found.pairs}
        if owners and name in wanted:
            slots[name] = owners
        elif owners:
            found.unmapped.update({f"{name}/{variable}": array for variable, array in owners.items()})
            warnings.append(f"slot {name}: the optimizer's config switches it off, so it is carried among the unmapped")
    _check_complete(slots, wanted, algorithm, iterations, shapes)
    return slots


def _check_complete(
    slots: Mapping[str, Mapping[str, LazyArray]],
    wanted: Sequence[str],
    algorithm: Algorithm,
    iterations: int | None,
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    """Every variable that has one slot has them all; a source with steps taken has slots."""
    if wanted and not slots and iterations != 0:
        raise DamagedFileError(
            f"the source holds no slots ({', '.join(wanted)}) of {algorithm.name}, although it has taken"
            " steps: a"
            " tf.train.Checkpoint of the optimizer alone, without its model, does not save them. Migrate"
            " one that has the model"
        )
    owners = dict.fromkeys(name for per in slots.values() for name in per)
    lacking = [
        f"{slot} of {name}"
        for slot in wanted
        for name in owners
        if name not in slots.get(slot, {}) and algorithm.slot(slot).shape(shapes[name]) is not None
    ]
    if lacking:
        shown = ", ".join(lacking[:5]) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
        raise DamagedFileError(f"the source lacks {shown}: it is incomplete, or its optimizer config is of another run")


def _ordered(stored: Stored, order: Sequence[str]) -> tuple[StoredVariable, ...]:
    """Those with slots first, in optimizer order; then the other trainable ones; then the rest."""
    by_name = {v.name: v for v in stored.variables}
    first = [replace(by_name[name], trainable=True) for name in order]
    others = [v for v in stored.variables if v.name not in set(order)]
    # Where the source does not say, a variable without slots beside others with slots is not trained.
    settled = [replace(v, trainable=not first) if v.trainable is None else v for v in others]
    return (*first, *(v for v in settled if v.trainable), *(v for v in settled if not v.trainable))
