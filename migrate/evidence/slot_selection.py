"""Which slots of a source its optimizer goes on with: those that its options call for, all of them, and no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from migrate.algorithms import addons
from migrate.algorithms.configuration import Configuration
from migrate.algorithms.spec import ACCUMULATED, AVERAGE, SHARED_SLOTS, SLOW, Algorithm
from migrate.bytes.arrays import LazyArray
from migrate.bytes.messages import some
from migrate.claims import DEFAULT
from migrate.errors import ContradictionError, DamagedFileError, MissingHintError
from migrate.evidence.consistency import SWITCHES
from migrate.matching import optional_slots
from migrate.matching.slot_table import SlotTable
from migrate.operations.counting import begins_anew
from migrate.state import Stored

ASKED = {
    **{slot: (option, f"{option}=true") for slot, (option, _) in SWITCHES.items()},
    ACCUMULATED.name: ("gradient_accumulation_steps", "gradient_accumulation_steps=N"),
    SLOW.name: ("lookahead", """'lookahead={"sync_period": N, "slow_step_size": VALUE}'"""),
}
"""Slot -> the option that it stands and falls with, and how a person says it."""
WRAPPED = (
    "average_decay=VALUE, of a MovingAverage that has neither start_step nor dynamic_decay, --set"
    """ 'stochastic_average={"start_averaging": N, "average_period": N}', of SWA, or give the wrapper's whole config"""
    " in --optimizer-config"
)
"""How a person says it of averages that a wrapper of TensorFlow Addons keeps."""


def slots(
    found: SlotTable,
    made: Configuration,
    stored: Stored,
    values: dict[str, Any],
    iterations: int | None,
) -> dict[str, dict[str, LazyArray]]:
    """Slots in `optim`'s order.

    Raises:
      ContradictionError: the source keeps a slot that the hyperparameters switch off. MissingHintError: that nothing
        switches on.
    """
    algorithm = made.algorithm
    more, wanted = algorithm.adjust(values, frozenset(slot for slot, _ in found.pairs))
    values.update(more)
    if values.get("use_ema") or values.get("stochastic_average"):
        wanted = (*wanted, AVERAGE.name)
    if values.get("lookahead"):
        wanted = (*wanted, SLOW.name)
    if values.get("gradient_accumulation_steps"):
        wanted = (*wanted, ACCUMULATED.name)
    chosen: dict[str, dict[str, LazyArray]] = {}
    for name in (s.name for s in (*algorithm.slots, *SHARED_SLOTS)):
        arrays = {variable: found.pairs[name, variable] for variable in found.order if (name, variable) in found.pairs}
        owners = {variable: algorithm.slot(name).carried(array) for variable, array in arrays.items()}
        if name in algorithm.unread:
            found.unmapped |= {f"{name}/{variable}": array for variable, array in arrays.items()}
        elif owners and name in wanted:
            chosen[name] = owners
        elif owners:
            raise _switched_off(made, name, values, next(iter(owners.values())).stored_as, stored.generation)
    if wanted and not chosen:
        _check_new(wanted, algorithm, stored, values, iterations, found)
    _check_complete(chosen, wanted, algorithm, {v.name: v.shape for v in stored.variables}, values)
    return chosen


def _check_new(
    wanted: Sequence[str],
    algorithm: Algorithm,
    stored: Stored,
    values: Mapping[str, Any],
    iterations: int | None,
    found: SlotTable,
) -> None:
    """Refuse a source without slots that has taken steps, or holds some of which nothing tells the variables."""
    if iterations is None and stored.generation == "tf1" and algorithm.name != "SGD":
        raise MissingHintError(begins_anew(algorithm.name))
    if iterations != 0:
        raise DamagedFileError(_lost(wanted, algorithm, stored, values))
    shapes = {v.shape for v in stored.variables}
    nobodys = [name for name, array in found.unmapped.items() if "_variables/" in name and array.shape in shapes]
    if nobodys:
        raise DamagedFileError(
            f"the source counts no step and holds no slots ({', '.join(wanted)}) of {algorithm.name}, and nothing says"
            f" whose slots {some(nobodys)} are, which have the shapes of variables: it is incomplete"
        )


def _lost(wanted: Sequence[str], algorithm: Algorithm, stored: Stored, values: Mapping[str, Any]) -> str:
    """What to say of a source that has taken steps, and has no slots."""
    said = f"the source holds no slots ({', '.join(wanted)}) of {algorithm.name}, although it has taken steps"
    if stored.format in ("tf_object", "tf1_saver"):
        said += (
            ": neither tf.train.Saver(tf.trainable_variables()) nor a tf.train.Checkpoint of the optimizer without its"
            " model saves them"
        )
    idle = algorithm.name == "SGD" and values.get("momentum")
    begin = "If its momentum was 0 in them, say so with --set momentum=0; else migrate" if idle else "Migrate"
    return f"{said}. {begin} a checkpoint that has model and optimizer, or its weights alone with --weights-only"


def _check_complete(
    slots: Mapping[str, Mapping[str, LazyArray]],
    wanted: Sequence[str],
    algorithm: Algorithm,
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, Any],
) -> None:
    """Every variable that has one slot has them all."""
    owners = dict.fromkeys(name for per in slots.values() for name in per)
    for slot, per in slots.items():
        optional_slots.check(algorithm, values, slot, {name: shapes[name] for name in owners}, per)
    lacking = [
        f"{slot} of {name}"
        for slot in wanted
        for name in owners
        if name not in slots.get(slot, {}) and algorithm.shape_of(slot, values, shapes[name], name) is not None
    ]
    if lacking:
        raise DamagedFileError(
            f"the source lacks {some(lacking)}: it is incomplete, or its optimizer config is of another run"
        )


def _switched_off(
    made: Configuration, slot: str, values: Mapping[str, Any], stored_as: str, generation: str | None
) -> Exception:
    """What to say of a slot of the source that its options have no use for: wrong options, or none that says it."""
    option, form = ASKED.get(slot, ("momentum", "momentum=VALUE"))
    form = WRAPPED if slot == AVERAGE.name and generation in addons.GENERATIONS else form
    keeps, told = f"the source keeps the slot {slot} ({stored_as}, ...), and", made.origins.get(option)
    if told is None or told.kind == DEFAULT:
        return MissingHintError(f"{keeps} nothing says {option}, which it belongs to; say it with --set {form}")
    return ContradictionError(
        f"{keeps} {told.where or 'a hint'} switches it off ({made.algorithm.name} with {option}="
        f"{values.get(option)!r}): it was changed after they were made, or one of the two is of another run; if it was"
        f" on, say so with --set {form}"
    )
