"""Decide which variables are trained and which slots belong to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from migrate import surfaces
from migrate.algorithms import patterns, tf_train
from migrate.algorithms.configuration import Configuration
from migrate.bytes.messages import some
from migrate.claims import DEFAULT, FILE, GRAPH, HINT, NAME, SET, TRAINED, UNINTERPRETED, Origin
from migrate.errors import AmbiguousError, ContradictionError
from migrate.facts.steps import CONTINUES, FROZEN
from migrate.matching import strategies
from migrate.matching.slot_table import SlotTable, slot_table
from migrate.releases.narrowing import candidates
from migrate.state import NamedVariables, Stored
from optim.errors import DtoptError, HyperparameterError

TWINS, IN_SOURCE, AS_NAMED = "slot_order", "source", "variables"
"""An override that confirms the order of identical variables: that of the source, or that of --variables."""
ORDER = "order of variables"
"""The subject of origins that show which variables slots in a list belong to."""
WITH_FLAGS = ("h5", "keras")
"""Formats that list slots by position, next to a config that shows which layers are frozen."""


def of_twins(stored: Stored, overrides: Mapping[str, Any], named: bool) -> list[Origin]:
    """Return the owners of slots that neither names nor shapes distinguish.

    Args:
      named: whether the user named the trained variables.

    Raises:
      AmbiguousError: their order in the source does not show it either. HyperparameterError: an unknown order.
    """
    order = overrides.get(TWINS, IN_SOURCE)
    if order not in (IN_SOURCE, AS_NAMED) or (order == AS_NAMED and not named):
        raise HyperparameterError(
            f"{TWINS} is {order!r}; it takes {IN_SOURCE}, the order of such variables in the source, or {AS_NAMED},"
            " their order in --variables"
        )
    if stored.twins is None:
        return []
    alike = [name for group in stored.twins.groups for name in group]
    text = f"only their order distinguishes the slots of {some(alike, 4)}"
    form = "--variables FILE can name all that the optimizer trains, in its order"
    open_ = any(len(set(group) & set(stored.twins.order)) < len(group) for group in stored.twins.groups)
    if open_ or (stored.twins.is_contradicted and TWINS not in overrides):
        why = (
            "some of these have no slots" if open_ else "the optimizer had others in another order than the source has"
        )
        json_ = '[{"name": "dense/kernel", "shape": [5, 7]}, ...]'
        raise AmbiguousError(
            f"{text}, and {why}, so nothing shows which slots belong to which variable. {form}, as JSON: {json_}"
        )
    if TWINS in overrides:
        return [Origin(ORDER, alike, SET, "that of the source")]
    text += f": slots were assigned in the order of the source, which may not be the optimizer's ({form})"
    return [Origin(ORDER, alike, DEFAULT, doubt=text, confirm=f"--set {TWINS}={IN_SOURCE}")]


def of_several(stored: Stored, named: NamedVariables | None) -> list[Origin]:
    """Return a warning if AdamOptimizers cannot be distinguished and the user does not name the variables of one."""
    powers = tf_train.of_several(stored.scalars) if stored.traits.has_tf_train_names and named is None else []
    text = f"{some(powers)} are of several Adam optimizers: name the variables of the one meant in --variables"
    return [Origin("optimizer", powers, UNINTERPRETED, doubt=text)] if powers else []


def of_order(configuration: Configuration, table: SlotTable, named: NamedVariables | None) -> list[Origin]:
    """Return an origin if the user's order of variables differs from the source's model, and slots have no names.

    `compile` passes a model's variables to its optimizer in the model's order. A custom loop may use another order.
    """
    source = named.unnamed if named is not None else None
    if (
        named is None
        or source is None
        or source.twins is not None
        or not {"position", "shape"} & set(table.methods.values())
    ):
        return []
    flagged = tuple(replace(v, trainable=v.name in named.order) for v in source.variables)
    try:
        model_table = slot_table(replace(source, variables=flagged), configuration.algorithm, configuration.config)
    except DtoptError:  # the model does not show the order
        return []
    difference = next(((a, b) for a, b in zip(table.order, model_table.order, strict=True) if a != b), None)
    open_ = {origin.subject for origin in of_flags(source, model_table, configuration)}
    if difference is None or ORDER in open_:
        return []
    if configuration.overrides.get(TWINS) == AS_NAMED:
        return [Origin(ORDER, list(table.order), SET, "that of --variables")]
    text = (
        f"--variables assigns slots to {difference[0]} that belong to {difference[1]} by the order of the model in the"
        " source, which is the order that compile gives to an optimizer"
    )
    return [Origin(ORDER, list(table.order), HINT, doubt=text, confirm=f"--set {TWINS}={AS_NAMED}")]


def of_late(stored: Stored, table: SlotTable, configuration: Configuration, hinted: bool) -> list[Origin]:
    """Return variables that the source calls trainable and that have no slots although others have.

    Raises:
      ContradictionError: the user calls a variable untrained, and it has slots.
    """
    owned, untrained = set(table.order), _untrained(stored, configuration)
    if owned & untrained:
        raise ContradictionError(
            f"untrained names {some(sorted(owned & untrained))}, which have slots in the source, so they were"
            " trained. Remove them from it"
        )
    late = [v.name for v in stored.variables if v.trainable and v.name not in owned]
    if hinted or not owned or not late or untrained.issuperset(late) or stored.effects.lost:
        return []
    text = f"{some(late)}: can be trained and have no slots, although others have: lost, or not trained yet"
    confirm = patterns.naming(patterns.UNTRAINED, late, [v.name for v in stored.variables])
    return [Origin(TRAINED, late, UNINTERPRETED, doubt=text, confirm=confirm)]


def _untrained(stored: Stored, configuration: Configuration) -> frozenset[str]:
    """Return the variables that the user calls untrained."""
    return frozenset(configuration.overrides.get(patterns.UNTRAINED) or ())


def with_untrained(stored: Stored, configuration: Configuration) -> Stored:
    """Return the source with the flags of the variables that the user calls untrained."""
    untrained = _untrained(stored, configuration)
    if not untrained:
        return stored
    flagged = (replace(v, trainable=False) if v.name in untrained else v for v in stored.variables)
    return replace(stored, variables=tuple(flagged))


def check_left_out(stored: Stored, named: NamedVariables | None, table: SlotTable) -> None:
    """Refuse a list of trained variables that lacks one which the source trains, as slots or the graph show.

    Raises:
      ContradictionError: with these variables.
    """
    left_out = named.left_out if named is not None else ()
    is_seen = stored.traits.counts_in_program and stored.graph_seen
    lacking = [name for name in left_out if name in table.order or (is_seen and not table.order)]
    if lacking:
        why = "has slots there" if table.order else "is updated in its graph"
        raise ContradictionError(
            f"--variables leaves out {some(lacking)}, which can be trained in the source, and {why}. Name all that"
            " are trained; freeze a variable from now on in the program"
        )


def of_flags(stored: Stored, table: SlotTable, configuration: Configuration) -> list[Origin]:
    """Return other variables that the slots would fit, if only flags at the time of saving show the trained ones."""
    if stored.format not in WITH_FLAGS or not set(table.methods.values()) & {"position", "shape"}:
        return []
    untrained, by_name = _untrained(stored, configuration), {v.name: v for v in stored.variables}
    chosen = [by_name[name] for name in table.order]
    unknown = [v.name for v in chosen if v.trainable is None]
    if unknown and stored.traits.reads_flags_at_compile and TWINS not in configuration.overrides:
        text = (
            f"{some(unknown)}: their names do not show their layers, and layers that are frozen by now are saved last"
        )
        return [Origin(ORDER, unknown, DEFAULT, doubt=text, confirm=f"--set {TWINS}={IN_SOURCE}")]
    variables = [v for v in stored.variables if v.name not in untrained]
    other = strategies.another_choice(chosen, variables)
    if other is None:
        return []
    frozen = [v.name for v in variables if v.name not in table.order]
    text = (
        f"the slots would fit {some([v.name for v in other])} as well: they were assigned by the flags of the layers,"
        " which differ from what the optimizer saw if a layer was frozen or unfrozen after compile"
    )
    confirm = patterns.naming(patterns.UNTRAINED, frozen, [v.name for v in stored.variables])
    return [Origin(TRAINED, table.order, UNINTERPRETED, doubt=text, confirm=confirm)]


def of_trained(stored: Stored, order: Sequence[str], hinted: bool, configuration: Configuration) -> Origin:
    """Return the origin of the trained variables."""
    trained = {v.name for v in stored.variables if v.trainable}
    count = f"{len(order) or len(trained)} of {len(stored.variables)}"
    if hinted:
        return Origin(TRAINED, count, HINT, "--variables")
    if configuration.overrides.get("untrained"):
        return Origin(TRAINED, count, SET, "untrained")
    where = "those with slots" if order else "flags of the model" if trained else "names"
    return Origin(TRAINED, count, FILE if order or trained else NAME, where)


def without_frozen(stored: Stored, table: SlotTable, *, is_named: bool) -> SlotTable:
    """Move slots of frozen variables to the unmapped arrays, for generations that ask at each compile.

    No source shows whether the freezing or the last `compile` came first. Until the next `compile`, `fit` continues to
    train frozen variables (run with TF 2.3, 2.12 and Keras 3.15). Optimizers before OptimizerV2 train what `compile`
    found, frozen since or not. A model that is frozen as a whole was trained by the optimizer saved with it; a GAN's
    discriminator often is. The trainable collection of a graph may hold anything: there the slots decide.

    Args:
      is_named: whether the user names the trained variables.
    """
    frozen = {v.name for v in stored.variables if v.trainable is False}
    kept = [name for name in table.order if name in frozen]
    if not kept or stored.traits.reads_flags_at_compile or len(kept) == len(table.order):
        return table
    shown = ", ".join(kept)
    if stored.format == "tf1_saver" and not is_named:
        text = (
            f"{shown}: the graph does not list them as trainable, and they have slots: dtopt assumes that they were"
            " trained"
        )
        return replace(table, claims=(*table.claims, Origin(TRAINED, kept, GRAPH, doubt=text)))
    order = [name for name in table.order if name not in frozen]
    claims = []
    if FROZEN.may_be(CONTINUES, candidates(stored.generation or "", stored.versions)):
        text = f"{shown}: frozen by now, and Keras before 3.4 continues to train what its optimizer was built on"
        claims = [Origin(TRAINED, kept, UNINTERPRETED, doubt=text)]
    elif not is_named:
        text = (
            f"{shown}: frozen by now, and trained before: fit continues to train them if they were frozen after the"
            " last compile"
        )
        confirm = f"{surfaces.naming(order)} or {surfaces.naming(tuple(table.order))}"
        claims = [Origin(TRAINED, kept, UNINTERPRETED, doubt=text, confirm=confirm)]
    note = f"{shown}: frozen by now, so their slots are unmapped"
    return replace(
        table.without(lambda slot, variable: variable in frozen),
        order=order,
        claims=(*table.claims, *claims),
        warnings=(*table.warnings, note),
    )
