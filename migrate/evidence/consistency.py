"""What the state itself proves, or denies: names, which slots there are, and hyperparameters kept as variables."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from migrate.algorithms import ALGORITHMS, addons, keras_config, keras_packages, tf_train
from migrate.algorithms.clipping import LIMITS
from migrate.algorithms.configuration import Configuration
from migrate.algorithms.spec import Algorithm
from migrate.bytes.arrays import LazyArray
from migrate.bytes.messages import some
from migrate.claims import DEFAULT, FILE, GRAPH, HINT, RELEASE, SET, UNINTERPRETED, Origin, confirming
from migrate.errors import ContradictionError, DamagedFileError, MissingHintError
from migrate.evidence.configuration import CLASS, PROVEN_BY_SLOTS, SCHEDULE
from migrate.generations import NATIVE, NEW
from migrate.matching.slot_table import COUNTERS, SlotTable
from migrate.state import Stored, StoredVariable

SWITCHES = {"vhat": ("amsgrad", False), "average_gradient": ("centered", False), "average": ("use_ema", False)}
"""Slot -> the option that it stands and falls with, and what that is where there is no such slot."""
MOMENTUM = {"SGD": "m", "RMSprop": "momentum", "LARS": "m"}
HYPERPARAMETERS = {name for algorithm in ALGORITHMS for name in algorithm.scalars}
STATES = {alias for a in ALGORITHMS for name, aliases in a.state_scalars for alias in (name, *aliases)}
_NO_NAME = ("", "training", "variable", "optimizer", "lossscaleoptimizer", "innerlossscaleoptimizer")


def check_config(stored: Stored, made: Configuration) -> None:
    """Compare the class with what its config holds: names and arguments that only other classes have.

    Raises:
      ContradictionError: the config is that of another class.
    """
    generation = stored.generation or ""
    if generation == "tf1" or CLASS in made.overrides or made.algorithm not in ALGORITHMS:
        return
    _check_release(stored, made)
    _check_limits(stored, made)
    mine, own = made.algorithm, set(made.algorithm.defaults(generation))
    others = [a for a in ALGORITHMS if a.name != mine.name and generation in a.generations]
    said = [key for key, origin in made.origins.items() if origin.kind in (FILE, HINT) and key in made.config]
    for key in said:
        owners = [a.name for a in others if key in a.defaults(generation)]
        if owners and key not in own and key not in SHARED:
            raise ContradictionError(
                f"{made.stated[0].where} says {made.stated[0].value} and has {key}, which {mine.name} does not have and"
                f" {', '.join(owners)} {'have' if len(owners) > 1 else 'has'}: it is the config of another class; leave"
                f" {key} out if it is not, or decide with {confirming(CLASS, made.stated[0].value)}"
            )


OWN = ("SGD", "RMSprop", "Adagrad", "Adadelta", "Adam", "Adamax", "Nadam")
"""Classes that Keras has had in every generation."""


def _check_release(stored: Stored, made: Configuration) -> None:
    """Compare what a file says of its optimizer with its generation: a name and `learning_rate` came with OptimizerV2.

    Raises:
      ContradictionError: the config is that of another release's file.
    """
    document = stored.optimizer_config or {}
    said, config = document.get("class_name"), document.get("config")
    if said not in OWN or not isinstance(config, Mapping) or "generation" in made.overrides:
        return
    is_named, is_native = "name" in config, stored.generation in NATIVE
    if (is_named and is_native) or ("lr" in config and not is_named and not is_native):
        key = "name" if is_named else "lr"
        raise ContradictionError(
            f"the optimizer's config has {key}, which no {said} of generation {stored.generation} saves: it is of"
            f" another release's file; copy the file again, or decide with {confirming(CLASS, said)}"
        )


def _check_limits(stored: Stored, made: Configuration) -> None:
    """Compare limits of gradients, and averages, in a hint with the source's own config: before Keras 2.9 one that is
    whole, with what is around it, has each that is set, and no other.

    Raises:
      ContradictionError: the source has none.
    """
    whole = (made.origins[key].kind in (FILE, RELEASE) for key in made.algorithm.defaults(stored.generation or ""))
    if stored.optimizer_config is None or stored.generation in NEW or not all(whole):
        return
    for key in (*LIMITS, addons.AVERAGED):
        value = made.config.get(key)
        if value and made.origins[key].kind == HINT:
            raise ContradictionError(
                f"{key} is {value!r} in {made.origins[key].where}, and the optimizer's config in the source, which has"
                f" it where it is set, has none; leave it out, or decide with {confirming(key, value)}"
            )


_SAID_APART = (
    *(keras_config.EXCLUDED, keras_config.LAZY_ROWS, keras_config.PER_STEP, keras_config.PER_RATE),
    *(keras_config.AVERAGED, keras_config.LAZY),
)
SHARED = frozenset({*keras_config.SHARED, *keras_config.NO_EFFECT, *_SAID_APART, "epsilon", "beta"})
"""Arguments that classes take besides their own."""


def check_name(stored: Stored, made: Configuration) -> None:
    """Compare the class with what names in the source call the optimizer.

    Raises:
      ContradictionError: they are called after another class.
    """
    if made.algorithm.is_foreign:  # usually a subclass of one of Keras's, whose name it has taken over
        return
    called = stored.optimizer_name or _called(stored)
    _doubt_exchanged(stored, made, called)
    if _doubt_summed(stored, made, called):
        return
    mine, given = _folded(made.algorithm.name), made.config.get("name")
    own = _folded(str(made.stated[0].value).rpartition(">")[2].rpartition(".")[2])
    if called is None or _folded(called) in (own, mine, *_NO_NAME):
        return
    if made.stated[0].value == addons.EXTENDED and addons.DECAYED.get(called) == made.algorithm.name:
        return  # which its program may call so
    known = {_folded(name): name for name in (*(a.name for a in ALGORITHMS), *OF_OTHERS)}
    if OF_OTHERS.get(known.get(_folded(called), "")) == made.algorithm.name:
        return
    by_variables = stored.weights is None or any(f"{called}/" in name for name, _ in stored.weights)
    what = f"its variables are named {called}/..." if by_variables else f"its optimizer is named {called}"
    if CLASS in made.overrides and (_folded(called) in known or stored.generation != "tf1"):
        said = confirming(CLASS, made.stated[0].value)
        made.notes = (*made.notes, f"{what}, and {said} overrides what that tells")
        return
    if _folded(called) in known:
        other = known[_folded(called)]
        raise ContradictionError(
            f"{what}, as those of {other} are, and {made.stated[0].where} says"
            f" {made.stated[0].value}; leave the wrong one out, or decide with"
            f" {confirming(CLASS, made.stated[0].value)}"
        )
    proven = stored.graph_config is not None and bool(stored.graph_config.get("class_name"))
    if proven or (isinstance(given, str) and _folded(given) == _folded(called)):
        return
    text = f"{what}, which is not the name of {made.algorithm.name}"
    origin = Origin("name", called, DEFAULT, doubt=text, confirm=confirming("name", called))
    made.stated = (*made.stated, origin)


def _doubt_exchanged(stored: Stored, made: Configuration, called: str | None) -> None:
    """A doubt where Keras 3 wrote the state of one optimizer and the config of another, which `compile` was given:
    `model.optimizer` was set since. Both have one name otherwise; from 3.15 on a second of a class has another."""
    given = made.config.get("name")
    by_file = stored.generation == "keras3" and stored.optimizer_config is not None and isinstance(given, str)
    if not by_file or called is None or called == given or {CLASS, "name"} & made.overrides.keys():
        return
    text = f"the state is that of an optimizer {called!r}, and the config that of {given!r}, which compile() was given"
    made.stated = (*made.stated, Origin("name", called, UNINTERPRETED, doubt=text, confirm=confirming("name", called)))


def _doubt_summed(stored: Stored, made: Configuration, called: str | None) -> bool:
    """A doubt where the name, and not the class, is one of Horovod's; whether it is."""
    name = next((each for each in (called, made.config.get("name")) if addons.summed(each)), None)
    if name is None or addons.summed((stored.optimizer_config or {}).get("class_name")):
        return False
    if "name" not in made.overrides:
        origin = Origin("name", name, UNINTERPRETED, doubt=addons.summed(name), confirm=confirming("name", name))
        made.stated = (*made.stated, origin)
    return True


def _called(stored: Stored) -> str | None:
    """What the names in an optimizer's list call it, None where they say nothing."""
    names = [name.split(":")[0] for name, _ in stored.weights or ()]
    counter = next((n for n in names if "/" in n and n.rpartition("/")[2] in COUNTERS), None)
    if counter is not None:
        return counter.split("/")[-2]
    if stored.generation == "tf1" and not tf_train.of_objects(stored):
        bases = {re.sub(r"_\d+$", "", name) for name in stored.slots} - {tf_train.AVERAGES}
        base = bases.pop() if len(bases) == 1 else ""
        return tf_train.NAMED.get(base, base) or None
    if stored.generation in NATIVE:
        scopes = sorted({n.split("/")[-2] for n in names if "/" in n})
        return scopes[0] if len(scopes) == 1 else None
    return None


OF_OTHERS = {
    "LAMB": "Lamb",
    "RAdam": "RectifiedAdam",
    **dict.fromkeys(("AdamWeightDecay", "MomentumW", "SGDW", "LazyAdam"), ""),
}
"""Names of other classes whose rules are known, and under which name; of none, where only options tell them apart."""


def _folded(name: str) -> str:
    """`RMSprop_1`, `rms_prop`, `RMSProp` and `RMSPropOptimizer` are one name."""
    folded = re.sub(r"_\d+$", "", name).replace("_", "").lower()
    return folded.removesuffix("optimizer") or folded


def by_slots(stored: Stored, made: Configuration, found: SlotTable) -> None:
    """Settle what nobody said and the slots show.

    Raises:
      ContradictionError: momentum is 0, and there are slots of it.
    """
    present, is_native = {slot for slot, _ in found.pairs}, stored.generation in NATIVE
    for slot, (option, off) in SWITCHES.items():
        if slot not in present and (present or not made.algorithm.slots):
            _settle(made, option, off, f"the source keeps no slot {slot}")
        elif slot in present and not is_native and option in PROVEN_BY_SLOTS and _is_assumed(made, option):
            made.config[option] = True
            made.origins[option] = Origin(option, True, FILE, f"the source keeps the slot {slot}")
    if present and "accumulated_gradient" not in present:
        _settle(made, "gradient_accumulation_steps", None, "the source keeps no sums of gradients")
    momentum = MOMENTUM.get(made.algorithm.name)
    if momentum is None:
        return
    if momentum not in present and stored.variables and not is_native:
        _settle(made, "momentum", 0.0, "the source keeps no slot of momentum")
        _settle(made, "nesterov", False, "without momentum it does nothing")
    if momentum in present and not made.config.get("momentum"):
        _check_idle(stored, made, [array for (name, _), array in found.pairs.items() if name == momentum])


def check_slow(
    slow: Mapping[str, LazyArray], variables: Sequence[StoredVariable], ahead: Mapping[str, Any] | None, steps: int
) -> None:
    """Compare Lookahead's period with its slow weights, which are the variables themselves right after they went along.

    Raises:
      ContradictionError: they are where they should not be, or are not where they should be.
    """
    if not ahead or not slow or not steps:
        return
    owners = {v.name: v.array for v in variables}
    arrays = [(array, owners.get(name)) for name, array in slow.items()]
    along = all(own is not None and np.array_equal(array.load(), own.load()) for array, own in arrays)
    due = steps % ahead["sync_period"] == 0
    if along != due and all(own is not None for _, own in arrays):
        raise ContradictionError(
            f"sync_period of Lookahead is {ahead['sync_period']}, and after {steps} steps the slow weights"
            f" {'are' if along else 'are not'} the variables, which they would {'be' if due else 'not be'}: the period,"
            " or the number of steps, is of another run"
        )


def _is_assumed(made: Configuration, option: str) -> bool:
    known = made.origins.get(option)
    return known is not None and known.kind == DEFAULT


def _settle(made: Configuration, option: str, off: Any, why: str) -> None:
    """An assumption that is one no longer."""
    known = made.origins.get(option)
    if known is not None and known.kind == DEFAULT and not made.config.get(option):
        made.origins[option] = replace(known, kind=FILE, where=why, doubt="", confirm="")
    made.stated = tuple(
        replace(o, kind=FILE, where=why, doubt="", confirm="") if o.subject == option and o.kind == DEFAULT else o
        for o in made.stated
    )


def _check_idle(stored: Stored, made: Configuration, arrays: Sequence[LazyArray]) -> None:
    """Slots of momentum that no step reads: some releases keep them all the same.

    From 2.11 on SGD of Keras 2 makes and moves them whatever `momentum` is (`optimizers/sgd.py` 2.11, `build`; not
    2.9 and 2.10), so that they do not deny a hint, and what the source says of itself holds. A graph shows the kernel
    of MomentumOptimizer, which moves them with a momentum of 0, too.
    """
    always = stored.generation in NATIVE or (stored.generation == "tf1" and made.algorithm.name == "RMSprop")
    told = made.origins["momentum"]
    moved = stored.generation in ("optimizer", "experimental") and made.algorithm.name == "SGD"
    if always or told.kind in (SET, GRAPH) or (stored.generation == "optimizer" and moved and told.kind == FILE):
        return
    if stored.generation in ("optimizer", "experimental", "keras3") and not any(np.any(a.load()) for a in arrays):
        return
    if moved and told.kind == HINT:
        doubt = "momentum is 0 in the hint, and the source has slots of momentum, as TF 2.11 and later always have"
        made.origins["momentum"] = replace(told, doubt=doubt, confirm=confirming("momentum", 0.0))
        return
    unknown = stored.outside.get("momentum")
    if told.kind == DEFAULT:
        keeps = ", as that release does also without momentum, and" if moved else ", and"
        why = f"{unknown}, which is not understood" if unknown else "nothing says how much momentum there is"
        raise MissingHintError(
            f"the source keeps slots of momentum ({arrays[0].stored_as}, ...){keeps} {why}; say it with"
            " --set momentum=VALUE"
        )
    raise ContradictionError(
        f"momentum is 0 ({told.where}), and the source keeps slots of momentum ({arrays[0].stored_as}, ...): it was"
        " changed after they were made, or one of the two is of another run; say what it is from here on with"
        " --set momentum=VALUE, be it 0"
    )


def check_foreign(stored: Stored, key: str, name: str, algorithm: Algorithm) -> None:
    """Refuse a class that does not have a hyperparameter or a state which the source keeps."""
    if key in HYPERPARAMETERS or name in STATES:
        owners = [a.name for a in ALGORITHMS if key in a.scalars or any(name in (n, *x) for n, x in a.state_scalars)]
        decayed = name == "weight_decay" and stored.generation in addons.GENERATIONS
        owners += [c for c in addons.DECAYED if c not in tf_train.ARGUMENTS] if decayed else []
        raise ContradictionError(
            f"the source keeps {name}, which {algorithm.name} does not have; {', '.join(owners)}"
            f" {'have' if len(owners) > 1 else 'has'} it, so the class is wrong"
        )


def check_kept(stored: Stored, made: Configuration, kept: Collection[str]) -> None:
    """Compare the class with the hyperparameters that OptimizerV2 keeps as variables: all of its class's, or none.

    Raises:
      ContradictionError: only those of another class are there.
    """
    called, generation = str(made.stated[0].value), stored.generation or ""
    if (
        generation != "optimizer_v2"
        or not kept
        or made.algorithm.is_foreign
        or keras_packages.inner(called, generation)
    ):
        return
    decayed = [addons.PER_STEP] if called.rpartition(">")[2] in (*addons.DECAYED, addons.EXTENDED) else []
    settled = {*kept, "beta", *(key for key, origin in made.origins.items() if origin.kind not in (HINT, DEFAULT))}
    lacking = [key for key in (*made.algorithm.scalars, *decayed) if key not in settled]  # beta came with TF 2.5
    if lacking:
        raise ContradictionError(
            f"the source keeps {some(sorted(kept))} as variables, and no {some(lacking)}, as {called} of generation"
            f" {generation} does with them: the class is wrong; if it is right, say {lacking[0]} with"
            f" --set {lacking[0]}=VALUE"
        )


FROM_V2 = ("optimizer_v2", *NEW)
CURRENT = "_current_learning_rate"
"""Where optimizers from TF 2.9 on keep what a schedule gives."""


def check_rate(stored: Stored, made: Configuration, kept: Mapping[str, float]) -> None:
    """Compare what a person said of the rate, or nobody, with the variable that shows whether it was a schedule.

    OptimizerV2 keeps each hyperparameter that is a number as a variable, and those of TF 2.9 and later the current rate
    of a schedule under another name (`_create_hypers` of `optimizer_v2.py`, `_build_learning_rate` of `optimizer.py`).

    Args:
      kept: hyperparameters that the source keeps as variables.

    Raises:
      ContradictionError: a schedule was said, and it was a number.
    """
    told = made.origins["learning_rate"]
    if told.kind not in (HINT, DEFAULT):
        return
    if isinstance(told.value, Mapping):
        if stored.format == "tf_object" and stored.generation in FROM_V2 and "learning_rate" in kept:
            raise ContradictionError(
                f"learning_rate is the number {kept['learning_rate']:.9g} in the checkpoint, as where it is no"
                f" schedule, and {told.value.get('class_name')} in {told.where}; leave it out there, or, if a program"
                f" set it later, say {SCHEDULE}"
            )
        return
    if CURRENT in stored.scalars:
        shows = f"the source keeps {CURRENT}"
    elif stored.generation == "optimizer_v2" and kept and "learning_rate" not in kept:
        shows = f"the source keeps {some(sorted(kept))} as variables, and no learning rate"
    else:
        return
    doubt = f"{shows}, as where it is a schedule, which is said with {SCHEDULE}; taken is {told.value!r}"
    made.origins["learning_rate"] = replace(told, doubt=doubt, confirm=confirming("learning_rate", told.value))


def fraction(array: LazyArray) -> float:
    """A state of the whole optimizer, which is no count.

    Raises:
      DamagedFileError: it is of a dtype without fractions.
    """
    if not array.dtype.startswith(("float", "bfloat")):
        raise DamagedFileError(
            f"{array.stored_as} is {array.dtype}, and optimizers keep it in floating point: the source was altered;"
            " copy it again"
        )
    return array.number()


def of_slots(slots: Mapping[str, Mapping[str, LazyArray]], matched: Mapping[str, str]) -> list[Origin]:
    """One origin for each slot and way in which its variables were found."""
    found = []
    for slot, owners in slots.items():
        ways: dict[str, int] = {}
        for variable in owners:
            how = matched.get(f"{slot}/{variable}", "name")
            ways[how] = ways.get(how, 0) + 1
        for how, count in ways.items():
            found.append(Origin(f"slot {slot}", f"{count} variables", FILE, f"matched by {how}"))
    return found
