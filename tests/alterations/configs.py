"""Configs of Keras, in HDF5 and in zips."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.alterations.alteration import CLASSES, Alteration, Change

LIMITS = ("clipnorm", "clipvalue", "global_clipnorm")


LEGAL_NONE = ("weight_decay", "epsilon", "ema_overwrite_frequency", "rms_rate")
"""Options that may be None, and whose older value leaves no trace."""


SWITCHES = ("amsgrad", "centered", "nesterov", "use_ema", "momentum")


def of_configs(
    optimizer: dict[str, Any], old: bool, change: Callable[[Callable[[dict[str, Any]], object]], Change]
) -> Iterator[Alteration]:
    """`old`: a config of before 2.11, which has no limits where there are none."""
    config = optimizer["config"]
    for key in config:
        told = not (key in LIMITS and old)
        yield Alteration("config", f"without {key}", change(lambda o, k=key: o["config"].pop(k)), told)
        yield Alteration("config", f"misspelt {key}", change(lambda o, k=key: rename(o["config"], k)), told)
        if isinstance(config[key], (int, float)) and not isinstance(config[key], bool):
            yield Alteration("config", f"{key} is text", change(lambda o, k=key: o["config"].update({k: "0.1"})))
            none = change(lambda o, k=key: o["config"].update({k: None}))
            yield Alteration("config", f"{key} is none", none, key not in (*LIMITS, *LEGAL_NONE))
    yield from of_schedules(config, change)
    for key in SWITCHES:
        if key in config:
            told = key in ("amsgrad", "centered") or (key == "use_ema" and bool(config[key]))
            flip = change(lambda o, k=key: o["config"].update({k: flipped(o["config"][k])}))
            yield Alteration("config", f"another {key}", flip, told)
    for key, other in (("learning_rate", "lr"), ("lr", "learning_rate")):
        if key in config:
            both = change(lambda o, k=key, n=other: o["config"].update({n: 0.77}))
            yield Alteration("config", f"{other} beside {key}", both)
    for name in CLASSES:
        if name != optimizer["class_name"].rpartition(">")[2]:
            yield Alteration("config", f"class {name}", change(lambda o, n=name: o.update(class_name=n)))
    for package in ("Mine", "Addons"):
        own = change(lambda o, p=package: o.update(class_name=f"{p}>{o['class_name'].rpartition('>')[2]}"))
        yield Alteration("config", f"class of {package}", own)
    yield Alteration("config", "another name", change(lambda o: o["config"].update(name="other")), False)
    wrap = change(lambda o: _wrapped(o, "LossScaleOptimizer"))
    yield Alteration("config", "in a LossScaleOptimizer", wrap, False)
    yield Alteration("config", "in a wrapper of somebody's", change(lambda o: _wrapped(o, "Mine>Lookahead")))


def of_schedules(
    config: dict[str, Any], change: Callable[[Callable[[dict[str, Any]], object]], Change], kind: str = "config"
) -> Iterator[Alteration]:
    """Arguments of a schedule left out, of those that change a rate."""
    rate = config.get("learning_rate")
    inner = rate.get("config", {}) if isinstance(rate, dict) else {}
    for key in inner.keys() - {"name", "warmup_target", "warmup_steps"}:
        without = change(lambda o, k=key: o["config"]["learning_rate"]["config"].pop(k))
        yield Alteration(kind, f"schedule without {key}", without)


def _wrapped(optimizer: dict[str, Any], name: str) -> None:
    inner = json.loads(json.dumps(optimizer))
    optimizer.update(class_name=name, config={"inner_optimizer": inner})


def rename(config: dict[str, Any], key: str) -> None:
    config[f"{key}_"] = config.pop(key)


def flipped(value: Any) -> Any:
    return not value if isinstance(value, bool) else 0.0 if value else 0.9


def of_models(change: Callable[[Callable[[dict[str, Any]], object]], Change]) -> Iterator[Alteration]:
    """Layers in another order: that of a list of slots follows from it."""
    yield Alteration("model", "layers reversed", change(lambda model: model["config"]["layers"].reverse()))
