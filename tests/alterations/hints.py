"""What a person says wrongly, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migrate.generations import having
from tests.alterations.alteration import CLASSES, Alteration, Hints
from tests.alterations.configs import LIMITS, flipped, of_schedules, rename

TRAIN = {"SGD": "MomentumOptimizer", "Adam": "AdamOptimizer", "RMSprop": "RMSPropOptimizer"}


def config_of(hints: Hints) -> dict[str, Any]:
    return hints["optimizer_config"]["config"]


def of_hints(hints: Hints) -> Iterator[Alteration]:
    """Keys left out; options flipped and classes renamed that the slots or the names deny; other lists of variables."""
    if "optimizer_config" not in hints:
        return
    config = config_of(hints)
    for key in config:
        told = key not in LIMITS or "use_ema" in config
        yield Alteration("hints", f"without {key}", lambda _, h, key=key: config_of(h).pop(key), told)
        yield Alteration("hints", f"misspelt {key}", lambda _, h, key=key: rename(config_of(h), key), told)
        if isinstance(config[key], float) and config[key]:
            twice = config[key] * 2 if key.startswith(("l", "e", "i", "c")) else config[key] / 2
            change = lambda _, h, key=key, x=twice: config_of(h).update({key: x})  # noqa: E731
            yield Alteration("hints", f"another {key}", change, False)
    yield from of_schedules(config, lambda edit: lambda _, h: edit(h["optimizer_config"]), "hints")
    yield Alteration("hints", "only the class", lambda _, h: h["optimizer_config"].update(config={}))
    for key in ("amsgrad", "centered", "momentum"):
        if key in config:
            change = lambda _, h, key=key: config_of(h).update({key: flipped(config_of(h)[key])})  # noqa: E731
            # Slots of momentum are there without it in SGD of these generations, in RMSProp of tf.train, and in Muon.
            always = {*TRAIN.values(), "Muon"}
            kept = (
                str(hints.get("generation")) in having(lambda generation: generation.is_native)
                or hints["optimizer_config"]["class_name"] in always
            )
            yield Alteration("hints", f"{key} flipped", change, not (kept and key == "momentum"))
    for name in CLASSES if "variables" not in hints else ():  # of its class a list says nothing
        said = TRAIN.get(name, name) if hints["optimizer_config"]["class_name"].endswith("Optimizer") else name
        if said != hints["optimizer_config"]["class_name"]:
            change = lambda _, h, said=said: h["optimizer_config"].update(class_name=said)  # noqa: E731
            yield Alteration("hints", f"class {said}", change)
    yield from _of_variables(hints)


def _of_variables(hints: Hints) -> Iterator[Alteration]:
    if "variables" not in hints:
        return
    count = len(hints["variables"])
    yield Alteration("hints", "one variable less", lambda _, h: h["variables"].pop())
    yield Alteration("hints", "one variable more", lambda _, h: h["variables"].append({"name": "x", "shape": [3]}))
    yield Alteration("hints", "variables reversed", lambda _, h: h["variables"].reverse(), False)
    if count > 1:
        yield Alteration("hints", "one variable twice", lambda _, h: h["variables"].append(h["variables"][0]))
