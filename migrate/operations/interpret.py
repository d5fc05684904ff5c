"""`Stored` -> `OptimizerState`: from a source's own terms to those of `optim`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from migrate import generations, surfaces
from migrate.algorithms import addons, foreign, keras_config, lazy_rows, patterns, wrappers
from migrate.algorithms.arguments import Arguments
from migrate.algorithms.clipping import LIMITS
from migrate.algorithms.lazy_rows import Sparse
from migrate.algorithms.spec import AVERAGE, SLOW, Algorithm, number
from migrate.bytes.arrays import LazyArray
from migrate.errors import AmbiguousError, ContradictionError
from migrate.evidence import DEFAULT, FILE, GRAPH, NAME, RELEASE, SET, TRAINED, UNINTERPRETED, Origin
from migrate.facts.steps import CONTINUES, FROZEN
from migrate.matching.slot_table import SlotTable, slot_table
from migrate.models import sparse_inputs, unsaved
from migrate.operations import carried, counting, hinted, outside, overriding, partial, proven, settled, trained
from migrate.operations.configuration import RATES, Configuration, configure
from migrate.operations.hints import Variables, checked_config, with_hints
from migrate.releases.narrowing import candidates
from migrate.releases.versions import YES
from migrate.state import (
    NamedVariables,
    OptimizerState,
    Stored,
    StoredVariable,
)
from optim import slot_layout
from optim.errors import MismatchError, UnsupportedError

Slots = Mapping[str, Mapping[str, LazyArray]]
"""Slot -> variable -> array."""


def interpret(
    stored: Stored,
    *,
    optimizer_config: Mapping[str, Any] | None = None,
    variables: Variables | None = None,
    generation: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> OptimizerState:
    """Optimizer state in `optim`'s terms. Arrays stay in the file until they are asked for.

    Args:
      optimizer_config: Keras JSON `{"class_name", "config"}`, adds what the source does not say.
      variables: `[{"name", "shape"}, ...]` in optimizer order, for sources that do not name them.
      generation: one of `generations.GENERATIONS`, for sources that cannot say.
      overrides: name -> value, taken whatever the source says.

    Raises:
      MissingHintError, AmbiguousError, ContradictionError, MismatchError, DamagedFileError, UnsupportedError.
    """
    hint = None if optimizer_config is None else checked_config(optimizer_config)
    overrides = overriding.with_one_rate(overrides or {})
    stored, named, of_generation = with_hints(stored, hint, variables, generation, overrides)
    assert stored.generation is not None
    overrides = patterns.in_overrides(overrides, [v.name for v in stored.variables])
    alike = trained.of_twins(stored, overrides, named is not None)
    hinted.check_document(hint, stored.optimizer_config)
    made = configure(stored, hint, overrides)
    found = _slot_table(stored, made, named)
    flagged = trained.with_untrained(stored, made)
    values = _values(stored, made, found, overrides)
    late = outside.late_reads(stored, values.told.values)
    return OptimizerState(
        algorithm=made.algorithm.name,
        hyperparameters=values.told.values,
        iterations=values.iterations,
        iterations_source=values.counted_where,
        slots=values.slots,
        variables=_ordered(flagged, found.order),
        scalars=values.scalars,
        unmapped=found.unmapped,
        matched=_matched(found, values.slots),
        source=replace(flagged, optimizer_config=_whole_config(stored, hint, made)),
        origins=(
            *_stated(made, values.told.origins),
            of_generation,
            *values.origins,
            *_of_owners(stored, made, found, named, values.slots, alike),
            *outside.origins(stored, made, values.told.origins, found.unmapped),
            *found.origins,
        ),
        warnings=(*stored.warnings, *_wrapped(made), *made.notes, *values.told.warnings, *found.warnings, *late),
    )


@dataclass(frozen=True)
class _Values:
    """What the source holds, as `optim` has it.

    Attributes: told: hyperparameters; iterations: steps taken, and where they are counted; scalars: state of the whole
      optimizer; origins: of all these.
    """

    told: Arguments
    slots: Slots
    iterations: int
    counted_where: str
    scalars: Mapping[str, float]
    origins: tuple[Origin, ...]


def _values(stored: Stored, made: Configuration, found: SlotTable, overrides: Mapping[str, Any]) -> _Values:
    assert stored.generation is not None
    counted = counting.iterations(stored, found, made)
    told, kept = _arguments(stored, made, found)
    slots = carried.slots(found, made, stored, told.values, counted[0])
    proven.ftrl(told, slots, stored, counted[0])
    _put_rows_in(stored, made, found, told)
    _override(told, made, stored.generation, overrides)
    iterations, of_steps, gathered = counting.steps(counted, told.values)
    settled.check_slow(slots.get(SLOW.name, {}), stored.variables, told.values.get("lookahead"), iterations)
    scalars, of_scalars = made.algorithm.state(told.values, kept, stored.generation, iterations)
    scalars |= {slot_layout.ACCUMULATED_STEPS: gathered} if gathered is not None else {}
    _check_used(made, overrides, stored.generation, told.values, scalars)
    set_scalars = [replace(o, kind=SET, doubt="") if o.subject in overrides else o for o in of_scalars]
    origins = (*told.origins.values(), of_steps, *set_scalars)
    return _Values(told, slots, iterations, of_steps.where, scalars, origins)


def _check_used(
    made: Configuration,
    overrides: Mapping[str, Any],
    generation: str,
    values: Mapping[str, Any],
    state: Mapping[str, Any],
) -> None:
    """Refuse what a person said and nothing uses."""
    called = str(made.stated[0].value)
    overriding.check(overrides, made.algorithm, called, generation, [*values, *state])
    hinted.check(made.hinted, made.algorithm, called, generation, values)


def _of_owners(
    stored: Stored,
    made: Configuration,
    found: SlotTable,
    named: NamedVariables | None,
    slots: Slots,
    alike: Sequence[Origin],
) -> list[Origin]:
    """Where slots are from, and the variables that have them."""
    return [
        *settled.of_slots(slots, _matched(found, slots)),
        *(alike if slots else ()),
        trained.of_trained(stored, found.order, named is not None, made),
        *trained.of_late(stored, found, made, named is not None),
        *trained.of_several(stored, named),
    ]


def _slot_table(stored: Stored, made: Configuration, named: NamedVariables | None) -> SlotTable:
    """The slots that the algorithm makes, after what config, name and slots deny of one another was refused."""
    assert stored.generation is not None
    _check_generation(made.algorithm, stored.generation)
    settled.check_config(stored, made)
    settled.check_name(stored, made)
    if stored.generation == "keras3":  # before its list is read, whose order was another up to 3.9
        keras_config.check_accumulation(made.config, candidates(stored.generation, stored.versions))
    try:
        found = slot_table(stored, made.algorithm, made.config, named)
    except (AmbiguousError, ContradictionError, MismatchError) as error:
        why = _why_slots_differ(error, stored, made)
        if not why and isinstance(error, MismatchError):
            raise MismatchError(f"{error}; {partial.WEIGHTS_ALONE}") from error
        if not why:
            raise
        raise UnsupportedError(why) from error
    problem = made.algorithm.check(made.config, stored.generation, stored.versions | found.release)
    if problem is not None:
        raise UnsupportedError(problem)
    _leave_averages_out(made, found)
    settled.by_slots(stored, made, found)
    found.origins += trained.of_flags(stored, found, made) if named is None else []
    trained.check_left_out(stored, named, found)
    found.origins += trained.of_order(made, found, named)
    _leave_frozen_out(stored, found, told=named is not None)
    return found


def _why_slots_differ(error: Exception, stored: Stored, made: Configuration) -> str:
    """From what the class keeps, where the source says more of it than the error does; else empty."""
    around = wrappers.unknown(made.wrappers)
    if around and not isinstance(error, AmbiguousError):
        return (
            f"{around[0]} is around the optimizer, and neither its steps nor what it keeps are known here: begin anew"
            " from the weights, with the optimizer that is in it"
        )
    lost = unsaved.adapted(stored.model) if isinstance(error, MismatchError) else []
    lost += unsaved.adapted_kernels(stored) if isinstance(error, MismatchError) and not lost else []
    lost += unsaved.quantized(stored.model)
    if not lost:
        return ""
    why = "so the old slots have no variables: there is no training to continue"
    return f"{lost[0]}, {why}; {partial.WEIGHTS_ALONE}, and migrate to slots"


def _arguments(stored: Stored, made: Configuration, found: SlotTable) -> tuple[Arguments, dict[str, float]]:
    """What the optimizer's class is given, and the state of the whole optimizer."""
    assert stored.generation is not None
    scalars, kept = _scalars(stored, found, made)
    trained = {v.dtype for v in _trained(stored, found) if v.dtype.startswith(("float", "bfloat"))}
    dtypes = {array.dtype for array in found.pairs.values()} or trained
    told = keras_config.arguments(
        made.config, scalars, made.algorithm, stored.generation, stored.versions, dtypes, made.origins
    )
    return told, kept


def _put_rows_in(stored: Stored, made: Configuration, found: SlotTable, told: Arguments) -> None:
    assert stored.generation is not None
    trained = [v.name for v in _trained(stored, found)]
    lazy_rows.put_in(
        told, made.config, made.algorithm, stored.generation, trained, _sparse(stored, made), stored.versions
    )
    patterns.check(told, trained)


def _override(told: Arguments, made: Configuration, generation: str, overrides: Mapping[str, Any]) -> None:
    for key, value in overrides.items():
        if not overriding.is_carried(key, made.algorithm, told.values):
            continue
        is_rounded = isinstance(value, float) and keras_config.same_number(told.values.get(key), value)
        if key == "learning_rate" and isinstance(value, Mapping):  # read above, with what it leaves out
            if told.origins[key].doubt:
                continue
        elif not is_rounded and (value is not None or key not in made.algorithm.defaults(generation)):  # None: its own
            told.values[key] = value
        told.origins[key] = Origin(key, told.values[key], SET, made.origins[key].where)


def _stated(made: Configuration, told: Mapping[str, Origin]) -> list[Origin]:
    """What was said of the whole, without the defaults of what the file gave after all."""
    read = {origin.subject for origin in told.values() if origin.kind == FILE}
    return [origin for origin in made.stated if not (origin.kind == DEFAULT and origin.subject in read)]


def _whole_config(stored: Stored, hint: Mapping[str, Any] | None, made: Configuration) -> Mapping[str, Any]:
    """What the source and the hints say together, for those who read the formula of the release from it."""
    if not made.overrides and hint is None and stored.graph_config is None and stored.optimizer_config is not None:
        return stored.optimizer_config
    said = next((each for each in (stored.optimizer_config, stored.graph_config, hint) if each is not None), {})
    around = said if made.wrappers else {}
    inner = {"class_name": made.algorithm.name, "config": dict(made.config)}
    if not around:
        return inner
    limits = {key: made.config.get(key) for key in LIMITS}
    return {**around, "config": {**around.get("config", {}), **limits, "inner_optimizer": inner}}


def _wrapped(made: Configuration) -> list[str]:
    return [
        f"{name} wraps the optimizer: its loss scale is not part of the state that is carried;"
        " optim.load_checkpoint(..., loss_scale=...) switches loss scaling on again"
        for name in made.wrappers
        if wrappers.plain(name) in wrappers.LOSS_SCALE
    ]


def _sparse(stored: Stored, made: Configuration) -> Sparse:
    """Which variables have sparse gradients, as far as the source tells it."""
    if stored.sparse is not None:
        return Sparse(GRAPH, stored.sparse)
    if stored.versions.dtensor == YES:
        return Sparse(FILE, frozenset())  # its optimizers raise for sparse gradients
    if stored.generation == "keras3" and not stored.versions.may_be_on_tensorflow:
        return Sparse(FILE, frozenset())  # Keras has none there
    if dense := wrappers.makes_dense(made.wrappers, stored.generation or "", stored.versions):
        return Sparse(RELEASE, frozenset())
    model = stored.model.config if stored.model is not None else None
    layers, loose = sparse_inputs.fed(model, stored.versions) if stored.generation == "optimizer_v2" else ((), False)
    more = frozenset(v.name for v in stored.variables for layer in layers if _is_kernel(v.name, layer))
    kind, stock = NAME if model is None else FILE, lazy_rows.only_stock(model)
    single = frozenset(v.name for v in stored.variables if v.shape[:1] in ((), (1,)))
    return Sparse(kind, None, stock, dense is None, more, loose or (bool(layers) and not more), single)


def _is_kernel(name: str, layer: str) -> bool:
    return f"/{name.removesuffix(':0')}".replace(".", "/").endswith(f"/{layer}/kernel")


def _matched(found: SlotTable, slots: Slots) -> dict[str, str]:
    """How each slot that is carried was matched."""
    keys = [(slot, name) for slot, owners in slots.items() for name in owners]
    return {"/".join(key): found.how[key] for key in keys if key in found.how}


def _check_generation(algorithm: Algorithm, generation: str) -> None:
    if generation not in algorithm.generations:
        has = ", ".join(g for g in generations.GENERATIONS if g in algorithm.generations)
        raise UnsupportedError(
            f"generation {generation} of Keras has no {algorithm.name} (only {has} have), so this is another project's,"
            f" whose rule is not known: {foreign.HOW}; if it is one of those generations after all, say so with"
            " --generation"
        )


def _leave_averages_out(made: Configuration, found: SlotTable) -> None:
    """Move averages that are kept in a way that `optim` does not know to the unmapped."""
    if not {*wrappers.AVERAGES} & {origin.subject for origin in made.stated}:
        return
    for key in [key for key in found.pairs if key[0] == AVERAGE.name]:
        found.unmapped["/".join(key)] = found.pairs.pop(key)
        found.how.pop(key, None)


def _leave_frozen_out(stored: Stored, found: SlotTable, *, told: bool) -> None:
    """Move slots of variables that the source calls frozen to the unmapped, for generations that ask at each compile.

    Which was last, the freezing or the `compile`, no source says, and until it `fit` goes on training them (run with
    TF 2.3, 2.12 and Keras 3.15): `told` is whether a person named the trained variables. Optimizers before OptimizerV2
    train what `compile` found, whatever was frozen since; and a model that is frozen as a whole, as a GAN's
    discriminator often is when it is saved, was trained by the optimizer it is saved with. What a graph calls trainable
    is a collection that anybody may fill: there the slots are believed.
    """
    frozen = {v.name for v in stored.variables if v.trainable is False}
    kept = [name for name in found.order if name in frozen]
    if not kept or stored.generation in generations.NATIVE or len(kept) == len(found.order):
        return
    shown, every = ", ".join(kept), tuple(found.order)
    if stored.format == "tf1_saver" and not told:
        text = f"{shown}: the graph does not list them as trainable, and they have slots: taken as trained"
        found.origins.append(Origin(TRAINED, kept, GRAPH, doubt=text))
        return
    for key in [key for key in found.pairs if key[1] in frozen]:
        found.unmapped["/".join(key)] = found.pairs.pop(key)
        found.how.pop(key, None)
    found.order = [name for name in found.order if name not in frozen]
    if FROZEN.may_be(CONTINUES, candidates(stored.generation or "", stored.versions)):
        text = f"{shown}: frozen by now, and Keras before 3.4 goes on training what its optimizer was built on"
        found.origins.append(Origin(TRAINED, kept, UNINTERPRETED, doubt=text))
    elif not told:
        text = (
            f"{shown}: frozen by now, and trained before: fit continues to train them if they were frozen after the"
            " last compile"
        )
        confirm = f"{surfaces.naming(found.order)} or {surfaces.naming(every)}"
        found.origins.append(Origin(TRAINED, kept, UNINTERPRETED, doubt=text, confirm=confirm))
    found.warnings.append(f"{shown}: frozen by now, so that their slots are carried among the unmapped")


def _scalars(stored: Stored, found: SlotTable, made: Configuration) -> tuple[dict[str, float], dict[str, float]]:
    """Hyperparameters that the source keeps as variables, and state of the whole optimizer; the rest is unmapped.

    Raises:
      ContradictionError: the source keeps a hyperparameter or a state that the class does not have.
    """
    algorithm = made.algorithm
    state_names = {alias: name for name, aliases in algorithm.state_scalars for alias in (name, *aliases)}
    values: dict[str, float] = {}
    state: dict[str, float] = {}
    for name in list(found.scalars):
        array = found.scalars.pop(name)
        key = "learning_rate" if name in RATES else addons.setting(name.lstrip("_"), made.config)
        if name in state_names and array.shape == ():
            state[state_names[name]] = settled.fraction(array)
        elif array.shape == () and key in keras_config.kept_as_variables(algorithm):
            values[key] = array.number()
        else:
            if not algorithm.is_foreign:
                settled.check_foreign(stored, key, name, algorithm)
            found.unmapped[name] = array
    settled.check_kept(stored, made, values)
    settled.check_rate(stored, made, values)
    for name in (name for name, _ in algorithm.state_scalars if name in made.overrides):
        state[name] = number(made.overrides, name)
    return values, state


def _trained(stored: Stored, found: SlotTable) -> list[StoredVariable]:
    return [v for v in _ordered(stored, found.order) if v.trainable]


def _ordered(stored: Stored, order: Sequence[str]) -> tuple[StoredVariable, ...]:
    """Those with slots first, in optimizer order; then the other trainable ones; then the rest."""
    by_name, slotted = {v.name: v for v in stored.variables}, set(order)
    first = [replace(by_name[name], trainable=True) for name in order]
    others = [v for v in stored.variables if v.name not in slotted]
    # Where the source does not say, a variable without slots among others with slots is not trained.
    settled = [replace(v, trainable=not first) if v.trainable is None else v for v in others]
    return (*first, *(v for v in settled if v.trainable), *(v for v in settled if not v.trainable))
