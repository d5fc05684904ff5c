"""Select the slots that an optimizer continues with: all that its options require, and no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from migrate.algorithms.configuration import Configuration
from migrate.algorithms.spec import ACCUMULATED, AVERAGE, SHARED_SLOTS, SLOW, Algorithm
from migrate.bytes.arrays import LazyArray
from migrate.bytes.messages import some
from migrate.claims import DEFAULT
from migrate.errors import ContradictionError, DamagedFileError, MissingHintError
from migrate.evidence.consistency import SWITCHES
from migrate.evidence.step_count import no_slots_and_no_steps
from migrate.generations import traits
from migrate.matching import optional_slots
from migrate.matching.slot_table import SlotTable
from migrate.state import Stored

ASKED = {
    **{slot: (option, f"{option}=true") for slot, (option, _) in SWITCHES.items()},
    ACCUMULATED.name: ("gradient_accumulation_steps", "gradient_accumulation_steps=N"),
    SLOW.name: ("lookahead", """'lookahead={"sync_period": N, "slow_step_size": VALUE}'"""),
}
"""Slot -> the option that it depends on, and how the user sets it."""
WRAPPED = (
    "average_decay=VALUE, of a MovingAverage that has neither start_step nor dynamic_decay, --set"
    """ 'stochastic_average={"start_averaging": N, "average_period": N}', of SWA, or give the wrapper's whole config"""
    " in --optimizer-config"
)
"""How the user sets averages that a wrapper of TensorFlow Addons keeps."""


@dataclass(frozen=True)
class Selection:
    """Slots that the optimizer continues with: slot -> variable -> array, in `optim`'s order.

    `arguments`: of the optimizer's class, as the slots show them. `unmapped`: slots that no step reads.
    """

    slots: Mapping[str, Mapping[str, LazyArray]]
    arguments: Mapping[str, Any]
    unmapped: Mapping[str, LazyArray]


def select(
    table: SlotTable, configuration: Configuration, stored: Stored, arguments: Mapping[str, Any], iterations: int | None
) -> Selection:
    """Select the slots that the optimizer's options require.

    Raises:
      ContradictionError: the source keeps a slot that the hyperparameters switch off.
      MissingHintError: the source keeps a slot, and no option switches it on.
    """
    algorithm = configuration.algorithm
    implied, slot_names = algorithm.wanted(arguments, frozenset(slot for slot, _ in table.pairs))
    values = {**arguments, **implied}
    if values.get("use_ema") or values.get("stochastic_average"):
        slot_names = (*slot_names, AVERAGE.name)
    if values.get("lookahead"):
        slot_names = (*slot_names, SLOW.name)
    if values.get("gradient_accumulation_steps"):
        slot_names = (*slot_names, ACCUMULATED.name)
    slots: dict[str, dict[str, LazyArray]] = {}
    unmapped = dict(table.unmapped)
    for name in (s.name for s in (*algorithm.slots, *SHARED_SLOTS)):
        arrays = {variable: table.pairs[name, variable] for variable in table.order if (name, variable) in table.pairs}
        owners = {variable: algorithm.slot(name).for_optim(array) for variable, array in arrays.items()}
        if name in algorithm.unread:
            unmapped |= {f"{name}/{variable}": array for variable, array in arrays.items()}
        elif owners and name in slot_names:
            slots[name] = owners
        elif owners:
            raise _switched_off(configuration, name, values, next(iter(owners.values())).stored_as, stored.generation)
    if slot_names and not slots:
        _check_new(slot_names, algorithm, stored, values, iterations, unmapped)
    _check_complete(slots, slot_names, algorithm, {v.name: v.shape for v in stored.variables}, values)
    return Selection(slots, values, unmapped)


def _check_new(
    slot_names: Sequence[str],
    algorithm: Algorithm,
    stored: Stored,
    values: Mapping[str, Any],
    iterations: int | None,
    unmapped: Mapping[str, LazyArray],
) -> None:
    """Refuse a source without slots that has taken steps, or that has slots without variables."""
    if iterations is None and stored.traits.counts_in_program and algorithm.name != "SGD":
        raise MissingHintError(no_slots_and_no_steps(algorithm.name))
    if iterations != 0:
        raise DamagedFileError(_lost(slot_names, algorithm, stored, values))
    shapes = {v.shape for v in stored.variables}
    nobodys = [name for name, array in unmapped.items() if "_variables/" in name and array.shape in shapes]
    if nobodys:
        raise DamagedFileError(
            f"the source counts no step and holds no slots ({', '.join(slot_names)}) of {algorithm.name}, and nothing"
            f" shows whose slots {some(nobodys)} are, which have the shapes of variables: it is incomplete"
        )


def _lost(slot_names: Sequence[str], algorithm: Algorithm, stored: Stored, values: Mapping[str, Any]) -> str:
    """Return the message for a source that has taken steps and has no slots."""
    text = f"the source holds no slots ({', '.join(slot_names)}) of {algorithm.name}, although it has taken steps"
    if stored.format in ("tf_object", "tf1_saver"):
        text += (
            ": neither tf.train.Saver(tf.trainable_variables()) nor a tf.train.Checkpoint of the optimizer without its"
            " model saves them"
        )
    idle = algorithm.name == "SGD" and values.get("momentum")
    begin = "If its momentum was 0, add --set momentum=0; if not, migrate" if idle else "Migrate"
    return f"{text}. {begin} a checkpoint that has model and optimizer, or its weights alone with --weights-only"


def _check_complete(
    slots: Mapping[str, Mapping[str, LazyArray]],
    slot_names: Sequence[str],
    algorithm: Algorithm,
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, Any],
) -> None:
    """Refuse a variable that has one slot and lacks another."""
    owners = dict.fromkeys(name for per in slots.values() for name in per)
    for slot, per in slots.items():
        optional_slots.check(algorithm, values, slot, {name: shapes[name] for name in owners}, per)
    lacking = [
        f"{slot} of {name}"
        for slot in slot_names
        for name in owners
        if name not in slots.get(slot, {}) and algorithm.shape_of(slot, values, shapes[name], name) is not None
    ]
    if lacking:
        raise DamagedFileError(
            f"the source lacks {some(lacking)}: it is incomplete, or its optimizer config is from another run"
        )


def _switched_off(
    configuration: Configuration, slot: str, values: Mapping[str, Any], stored_as: str, generation: str | None
) -> Exception:
    """Return the error for a slot that the options do not use: the options are wrong, or the option is missing."""
    option, form = ASKED.get(slot, ("momentum", "momentum=VALUE"))
    form = WRAPPED if slot == AVERAGE.name and traits(generation).is_extended_by_addons else form
    keeps, origin = f"the source keeps the slot {slot} ({stored_as}, ...), and", configuration.origins.get(option)
    if origin is None or origin.kind == DEFAULT:
        return MissingHintError(f"{keeps} nothing shows {option}, which it belongs to. Set it with --set {form}")
    return ContradictionError(
        f"{keeps} {origin.where or 'a hint'} switches it off ({configuration.algorithm.name} with"
        f" {option}={values.get(option)!r}): it was changed later, or one of the two is from another run. If it was"
        f" on, add --set {form}"
    )
