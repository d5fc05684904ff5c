"""Convert `Stored` to `OptimizerState`: from a source's own terms to those of `optim`, by a list of questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from migrate import generations
from migrate.algorithms import foreign, keras_config, lazy_rows, patterns, wrappers
from migrate.algorithms.arguments import Arguments
from migrate.algorithms.configuration import Configuration
from migrate.algorithms.spec import AVERAGE, SLOW
from migrate.bytes.arrays import LazyArray
from migrate.claims import SET, Origin
from migrate.errors import AmbiguousError, ContradictionError
from migrate.evidence import (
    class_names,
    consistency,
    ftrl_proof,
    result,
    slot_selection,
    sparse_gradients,
    step_count,
    stored_scalars,
    trained_variables,
)
from migrate.evidence.configuration import configure
from migrate.evidence.known import Counted, Known
from migrate.evidence.slot_selection import Selection
from migrate.evidence.steps import Step, run
from migrate.evidence.user_input import config_hint, settings, used
from migrate.evidence.user_input.hints import Variables, checked_config
from migrate.evidence.user_input.used import Migrated
from migrate.evidence.user_input.variables import Hinted, with_hints
from migrate.generations import traits
from migrate.matching import slot_table
from migrate.matching.choosing import WEIGHTS_ALONE
from migrate.matching.slot_table import SlotTable
from migrate.models import missing_settings
from migrate.releases.narrowing import candidates
from migrate.state import OptimizerState, Stored
from optim import slot_layout
from optim.errors import MismatchError, UnsupportedError


def interpret(
    stored: Stored,
    *,
    optimizer_config: Mapping[str, Any] | None = None,
    variables: Variables | None = None,
    generation: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> OptimizerState:
    """Return optimizer state in `optim`'s terms. Arrays stay in the file until they are read.

    Args:
      optimizer_config: Keras JSON `{"class_name", "config"}`; adds what the source does not show.
      variables: `[{"name", "shape"}, ...]` in optimizer order, for sources that do not name them.
      generation: one of `generations.GENERATIONS`, for sources that do not show it.
      overrides: name -> value, used whatever the source shows.

    Raises:
      MissingHintError, AmbiguousError, ContradictionError, MismatchError, DamagedFileError, UnsupportedError.
    """
    hint = checked_config(optimizer_config)
    known = run(STEPS, Known(stored, hint, variables, generation, overrides or {}))
    return result.state(known)


def _check_generation(known: Known) -> None:
    algorithm, generation = known.configuration.algorithm, known.release
    if generation not in algorithm.generations:
        has = ", ".join(g for g in generations.GENERATIONS if g in algorithm.generations)
        raise UnsupportedError(
            f"generation {generation} of Keras has no {algorithm.name} (only {has} have), so this is another"
            f" project's, whose rule is not known: {foreign.HOW}; if it is from one of those generations, add"
            " --generation"
        )


def _check_accumulation(known: Known) -> None:
    """Check accumulation before the list is read: its order was different up to Keras 3.9."""
    if traits(known.release).accumulates_gradients:
        releases = candidates(known.release, known.stored.versions)
        keras_config.check_accumulation(known.configuration.config, releases)


def _table(known: Known) -> SlotTable:
    stored, configuration = known.stored, known.configuration
    try:
        return slot_table.slot_table(stored, configuration.algorithm, configuration.config, known.hinted.named)
    except (AmbiguousError, ContradictionError, MismatchError) as error:
        why = _why_slots_differ(error, stored, configuration)
        if why is not None:
            raise UnsupportedError(why) from error
        if isinstance(error, MismatchError):
            raise MismatchError(f"{error}; {WEIGHTS_ALONE}") from error
        raise


def _why_slots_differ(error: Exception, stored: Stored, configuration: Configuration) -> str | None:
    """Return why slots differ from those of the class, if the source shows more of it than the error does."""
    wrapper_names = wrappers.unknown(configuration.wrappers)
    if wrapper_names and not isinstance(error, AmbiguousError):
        return (
            f"{wrapper_names[0]} wraps the optimizer and is not supported: restart from the weights, with the"
            " optimizer in it"
        )
    lost = missing_settings.adapted(stored.model) if isinstance(error, MismatchError) else []
    lost += missing_settings.adapted_kernels(stored) if isinstance(error, MismatchError) and not lost else []
    lost += missing_settings.quantized(stored.model)
    if not lost:
        return None
    why = "so the old slots have no variables: there is no training to continue"
    return f"{lost[0]}, {why}; {WEIGHTS_ALONE}, and migrate to slots"


def _check_release(known: Known) -> None:
    versions = known.stored.versions | known.table.release
    problem = known.configuration.algorithm.check(known.configuration.config, known.release, versions)
    if problem is not None:
        raise UnsupportedError(problem)


def _without_averages(known: Known) -> SlotTable:
    """Return the table without averages that are kept in a way that `optim` does not know."""
    unknown = {*wrappers.AVERAGES} & {origin.subject for origin in known.configuration.claims}
    return known.table.without(lambda slot, variable: slot == AVERAGE.name) if unknown else known.table


def _with_flags(known: Known) -> SlotTable:
    if known.is_named:
        return known.table
    return _claimed(known.table, trained_variables.of_flags(known.stored, known.table, known.configuration))


def _with_order(known: Known) -> SlotTable:
    return _claimed(known.table, trained_variables.of_order(known.configuration, known.table, known.hinted.named))


def _claimed(table: SlotTable, claims: Sequence[Origin]) -> SlotTable:
    return replace(table, claims=(*table.claims, *claims))


def _counted(known: Known) -> tuple[Counted, dict[str, LazyArray]]:
    """Return the steps taken, and the scalars that do not count them."""
    left = dict(known.table.scalars)
    counted = step_count.iterations(known.stored, replace(known.table, scalars=left), known.configuration)
    return counted, left


def _arguments(known: Known) -> Arguments:
    trained = {v.dtype for v in known.trained if v.dtype.startswith(("float", "bfloat"))}
    dtypes = {array.dtype for array in known.table.pairs.values()} or trained
    return keras_config.arguments(
        known.configuration.config,
        known.scalars.hyperparameters,
        known.configuration.algorithm,
        known.release,
        known.stored.versions,
        dtypes,
        known.configuration.origins,
    )


def _selection(known: Known) -> Selection:
    table = replace(known.table, unmapped={**known.table.unmapped, **known.scalars.unmapped})
    values, count = known.arguments.values, known.counted[0][0]
    return slot_selection.select(table, known.configuration, known.stored, values, count)


def _proven(known: Known) -> Arguments:
    arguments = replace(known.arguments, values=dict(known.selection.arguments))
    return ftrl_proof.ftrl(arguments, known.selection.slots, known.stored, known.counted[0][0])


def _with_rows(known: Known) -> Arguments:
    arguments, configuration = known.arguments.copy(), known.configuration
    trained = [v.name for v in known.trained]
    sparse = sparse_gradients.of_source(known.stored, configuration)
    lazy_rows.put_in(
        arguments, configuration.config, configuration.algorithm, known.release, trained, sparse, known.stored.versions
    )
    patterns.check(arguments, trained)
    return arguments


def _configured(known: Known) -> Configuration:
    configuration = configure(known.stored, known.optimizer_config, known.overrides)
    settings.check_numbers(configuration.overrides, configuration.algorithm)
    return configuration


def _overridden(known: Known) -> Arguments:
    arguments, configuration = known.arguments.copy(), known.configuration
    defaults = configuration.algorithm.defaults(known.release)
    for key, value in known.overrides.items():
        if not settings.is_carried(key, configuration.algorithm, arguments.values):
            continue
        is_rounded = isinstance(value, float) and keras_config.same_number(arguments.values.get(key), value)
        if key == "learning_rate" and isinstance(value, Mapping):  # read above, with the arguments that it omits
            if arguments.origins[key].doubt:
                continue
        elif not is_rounded and (value is not None or key not in defaults):  # None: its own
            arguments.values[key] = settings.as_declared(key, value, configuration.algorithm)
        arguments.origins[key] = Origin(key, arguments.values[key], SET, configuration.origins[key].where)
    return arguments


def _check_slow(known: Known) -> None:
    ahead, slow = known.arguments.values.get("lookahead"), known.selection.slots.get(SLOW.name, {})
    consistency.check_slow(slow, known.stored.variables, ahead, known.steps[0])


def _state(known: Known) -> tuple[dict[str, float], tuple[Origin, ...]]:
    """Return the state of the whole optimizer, and its origins."""
    values, (iterations, _, gathered) = known.arguments.values, known.steps
    kept = stored_scalars.overridden(known.scalars.state, known.configuration)
    scalars, origins = known.configuration.algorithm.state(values, kept, known.release, iterations)
    batches = {} if gathered is None else {slot_layout.ACCUMULATED_STEPS: gathered}
    origins = tuple(replace(o, kind=SET, doubt="") if o.subject in known.overrides else o for o in origins)
    return {**scalars, **batches}, origins


def _check_used(known: Known) -> None:
    """Refuse values of the user that have no effect."""
    algorithm, called, values = known.configuration.algorithm, known.configuration.called, known.arguments.values
    migrated = Migrated(algorithm, called, known.release, values, known.state[0])
    used.check(known.overrides, known.configuration.hint, migrated)


def _hinted(known: Known) -> Hinted:
    return with_hints(known.source, known.optimizer_config, known.variables, known.generation, known.overrides)


def _chosen(known: Known) -> dict[str, Any]:
    return patterns.in_overrides(known.overrides, [v.name for v in known.stored.variables])


STEPS: tuple[Step[Known], ...] = (
    # What the user specifies.
    Step("Which learning rate is set?", lambda k: settings.with_one_rate(k.overrides), "overrides"),
    Step("Which generation and variables are named?", _hinted, "hinted"),
    Step("Which variables do patterns choose?", _chosen, "overrides"),
    Step(
        "Which variables have the slots that names and shapes do not distinguish?",
        lambda k: trained_variables.of_twins(k.stored, k.overrides, k.is_named),
        "twins",
    ),
    Step(
        "Has --optimizer-config members that nothing reads?",
        lambda k: config_hint.check_document(k.optimizer_config, k.stored.optimizer_config),
    ),
    # The class and its settings.
    Step("Which class, which settings?", _configured, "configuration"),
    Step("Has the generation this class?", _check_generation),
    Step("Is it the config of another class?", lambda k: consistency.check_config(k.stored, k.configuration)),
    Step(
        "Is the optimizer named after another class?",
        lambda k: class_names.with_name(k.stored, k.configuration),
        "configuration",
    ),
    Step("Can its accumulation of gradients be continued?", _check_accumulation),
    # Slots and the variables that they belong to.
    Step("Which array is which slot of which variable?", _table, "table"),
    Step("Can the state of this release be continued?", _check_release),
    Step("Which averages does no option of optim mean?", _without_averages, "table"),
    Step(
        "Which settings do the slots prove?",
        lambda k: consistency.with_slots(k.stored, k.configuration, k.table),
        "configuration",
    ),
    Step("Would the slots fit other variables, too?", _with_flags, "table"),  # the proven settings show which there are
    Step(
        "Does --variables leave out one that was trained?",
        lambda k: trained_variables.check_left_out(k.stored, k.hinted.named, k.table),
    ),
    Step("Is the order of --variables that of the model?", _with_order, "table"),
    Step(
        "Which slots are of frozen variables?",
        lambda k: trained_variables.without_frozen(k.stored, k.table, is_named=k.is_named),
        "table",
    ),
    Step(
        "Which variables does the user call untrained?",
        lambda k: trained_variables.with_untrained(k.stored, k.configuration),
        "flagged",
    ),
    # Numbers: the step counter, and what the optimizer keeps in addition to its slots.
    Step("How many steps were taken?", _counted, "counted"),
    Step(
        "Which scalars are settings, which are state?",
        lambda k: stored_scalars.sort(k.stored, k.configuration, k.counted[1]),
        "scalars",
    ),
    Step(
        "Does the class keep these settings as variables?",
        lambda k: consistency.check_kept(k.stored, k.configuration, k.scalars.hyperparameters),
    ),
    Step(
        "Was the learning rate a schedule?",
        lambda k: consistency.with_rate(k.stored, k.configuration, k.scalars.hyperparameters),
        "configuration",
    ),
    # What these become in `optim`.
    Step("Which arguments does the class of optim take?", _arguments, "arguments"),
    Step("Which slots do these call for?", _selection, "selection"),
    Step("What do the variables of Ftrl prove?", _proven, "arguments"),
    Step("Which rows did sparse gradients leave out?", _with_rows, "arguments"),  # --set can override the answer
    Step("Which arguments does the user set?", _overridden, "arguments"),
    Step("How many steps of optim are that?", lambda k: step_count.steps(k.counted[0], k.arguments.values), "steps"),
    Step("Do slow weights fit the number of steps?", _check_slow),
    Step("What is the state of the whole optimizer?", _state, "state"),
    Step("Does anything ignore a value of the user?", _check_used),
    Step("Where does everything come from?", result.claims, "claims"),
    Step("What else is worth knowing?", result.warnings, "warnings"),
)
"""The questions in the order in which they are asked. Each uses the answers above it."""
