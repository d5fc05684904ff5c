"""Compare the optimizer's class with what names in the source call it."""

from __future__ import annotations

import re
from dataclasses import replace

from migrate.algorithms import ALGORITHMS, addons, tf_train
from migrate.algorithms.configuration import Configuration
from migrate.claims import DEFAULT, UNINTERPRETED, Origin, confirming
from migrate.errors import ContradictionError
from migrate.evidence.configuration import CLASS
from migrate.matching.slot_table import COUNTERS
from migrate.state import Stored

_NO_NAME = ("", "training", "variable", "optimizer", "lossscaleoptimizer", "innerlossscaleoptimizer")


def with_name(stored: Stored, configuration: Configuration) -> Configuration:
    """Compare the class with the optimizer's names in the source, and warn about a difference.

    Raises:
      ContradictionError: the names are those of another class.
    """
    if configuration.algorithm.is_foreign:  # usually a subclass of one of Keras's, with the name of its base
        return configuration
    called = stored.optimizer_name or _called(stored)
    claims = [*_exchanged(stored, configuration, called)]
    summed = _summed(stored, configuration, called)
    if summed is not None:
        return configuration.with_claims(*claims, *summed)
    if _is_expected(stored, configuration, called):
        return configuration.with_claims(*claims)
    assert called is not None
    by_variables = stored.weights is None or any(f"{called}/" in name for name, _ in stored.weights)
    what = f"its variables are named {called}/..." if by_variables else f"its optimizer is named {called}"
    other = KNOWN_NAMES.get(_folded(called))
    confirm = confirming(CLASS, configuration.class_origin.value)
    if CLASS in configuration.overrides and (other is not None or stored.traits.has_configs):
        note = f"{what}, and {confirm} overrides that"
        return replace(configuration.with_claims(*claims), notes=(*configuration.notes, note))
    if other is not None:
        raise ContradictionError(
            f"{what}, as those of {other} are, and {configuration.class_origin.where} specifies"
            f" {configuration.class_origin.value}. Remove the wrong one, or override with {confirm}"
        )
    config_name = configuration.config.get("name")
    proven = stored.graph_config is not None and bool(stored.graph_config.get("class_name"))
    if not proven and not (isinstance(config_name, str) and _folded(config_name) == _folded(called)):
        text = f"{what}, which is not the name of {configuration.algorithm.name}"
        claims.append(Origin("name", called, DEFAULT, doubt=text, confirm=confirming("name", called)))
    return configuration.with_claims(*claims)


def _is_expected(stored: Stored, configuration: Configuration, called: str | None) -> bool:
    """Return whether a name is one that the class has, or shows nothing."""
    algorithm_name = configuration.algorithm.name
    class_name = _folded(configuration.called.rpartition(">")[2].rpartition(".")[2])
    if called is None or _folded(called) in (class_name, _folded(algorithm_name), *_NO_NAME):
        return True
    if configuration.called == addons.EXTENDED and addons.DECAYED.get(called) == algorithm_name:
        return True  # its program may choose this name
    return OF_OTHERS.get(KNOWN_NAMES.get(_folded(called), "")) == algorithm_name


def _exchanged(stored: Stored, configuration: Configuration, called: str | None) -> list[Origin]:
    """Return a warning if Keras 3 wrote the state of one optimizer and the config of another.

    The config is the one that `compile` was given; the program assigned `model.optimizer` later. In all other cases
    both have one name. From 3.15 on, a second optimizer of a class has another name.
    """
    config_name = configuration.config.get("name")
    by_file = stored.traits.has_keras3_layers and stored.optimizer_config is not None and isinstance(config_name, str)
    if not by_file or called is None or called == config_name or {CLASS, "name"} & configuration.overrides.keys():
        return []
    text = f"the state is that of an optimizer {called!r}, and the config that of {config_name!r}"
    text += ", which compile() was given"
    return [Origin("name", called, UNINTERPRETED, doubt=text, confirm=confirming("name", called))]


def _summed(stored: Stored, configuration: Configuration, called: str | None) -> list[Origin] | None:
    """Return a warning if only the name, and not the class, is one of Horovod's; None if the name is not Horovod's."""
    name = next((n for n in (called, configuration.config.get("name")) if addons.summed(n)), None)
    if name is None or addons.summed((stored.optimizer_config or {}).get("class_name")):
        return None
    if "name" in configuration.overrides:
        return []
    return [Origin("name", name, UNINTERPRETED, doubt=addons.summed(name), confirm=confirming("name", name))]


def _called(stored: Stored) -> str | None:
    """Return the name of the optimizer in its list's names, None if they show nothing."""
    names = [name.split(":")[0] for name, _ in stored.weights or ()]
    counter = next((n for n in names if "/" in n and n.rpartition("/")[2] in COUNTERS), None)
    if counter is not None:
        return counter.split("/")[-2]
    if stored.traits.has_tf_train_names and not tf_train.of_objects(stored):
        bases = {re.sub(r"_\d+$", "", name) for name in stored.slots} - {tf_train.AVERAGES}
        base = bases.pop() if len(bases) == 1 else ""
        return tf_train.NAMED.get(base, base) or None
    if stored.traits.is_native:
        scopes = sorted({n.split("/")[-2] for n in names if "/" in n})
        return scopes[0] if len(scopes) == 1 else None
    return None


OF_OTHERS = {
    "LAMB": "Lamb",
    "RAdam": "RectifiedAdam",
    **dict.fromkeys(("AdamWeightDecay", "MomentumW", "SGDW", "LazyAdam"), ""),
}
"""Names of other classes with known rules -> the name of the rule; None if only options distinguish the classes."""


def _folded(name: str) -> str:
    """Return one form for `RMSprop_1`, `rms_prop`, `RMSProp` and `RMSPropOptimizer`."""
    folded = re.sub(r"_\d+$", "", name).replace("_", "").lower()
    return folded.removesuffix("optimizer") or folded


KNOWN_NAMES = {_folded(name): name for name in (*(a.name for a in ALGORITHMS), *OF_OTHERS)}
"""Classes by their names in variables."""
