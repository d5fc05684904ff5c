"""An optimizer's constructor arguments as JSON values, and back."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from optim import hyperparameters, meshes, schedules, settings
from optim.errors import HyperparameterError

if TYPE_CHECKING:
    from optim.optimizer import Optimizer


def to_config(optimizer: Optimizer) -> dict[str, Any]:
    """What `Optimizer.get_config` returns, but for what a subclass adds."""
    config: dict[str, Any] = {"name": optimizer.name, "learning_rate": _rate(optimizer._rate)}
    config.update({name: p.config(optimizer) for name, p in hyperparameters.declared(type(optimizer)).items()})
    config.update(optimizer._settings.to_config())
    excluded = config["weight_decay_exclude"]
    for tracked in optimizer._state.tracked:
        pattern = f"^{settings.escape(tracked.name)}$"
        if id(tracked.variable) in optimizer._not_decayed and pattern not in excluded:
            excluded.append(pattern)
    config["mesh"] = meshes.to_config(optimizer._state.given_mesh)
    return config


def _rate(rate: Any) -> Any:
    if rate is None:
        return None
    if schedules.is_schedule(rate):
        return schedules.to_config(rate)
    return hyperparameters.to_number("learning_rate", rate if isinstance(rate, tf.Variable) else rate())


def from_config(cls: type[Optimizer], config: Mapping[str, Any]) -> Optimizer:
    """What `Optimizer.from_config` returns.

    A subclass whose constructor takes fewer arguments than `Optimizer` gets those that it takes; the others must
    then be at their defaults.
    """
    arguments = dict(config)
    arguments.pop("is_legacy_optimizer", None)  # a mark in Keras's own configs
    if isinstance(arguments.get("mesh"), Mapping):
        arguments["mesh"] = meshes.from_config(arguments["mesh"])
    accepted = inspect.signature(cls.__init__).parameters
    if any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        return cls(**arguments)
    defaults = settings.parse(None, None, {}).to_config() | {"mesh": None, "learning_rate": None, "name": cls.__name__}
    for key in [k for k in arguments if k not in accepted]:
        if key not in defaults or not _same(arguments[key], defaults[key]):
            raise HyperparameterError(f"{cls.__name__} takes no {key!r}, but its config says {arguments[key]!r}")
        del arguments[key]
    return cls(**arguments)


def _same(value: Any, default: Any) -> bool:
    return value is None if default is None else bool(value == default)  # a Mesh cannot be compared with None
