"""Convert an optimizer to its config, and make an optimizer from its config, or from one of Keras's."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import optim
from optim import algorithm, keras_configs, lazy
from optim.errors import HyperparameterError
from optim.hyperparameters import Values
from optim.options.settings import OPTIONS, Settings

if TYPE_CHECKING:
    from optim.layouts import meshes
    from optim.state.state import State
else:
    meshes = lazy.modules("optim.layouts.meshes")

_T = TypeVar("_T")


def to_config(name: str, hyper: Values, settings: Settings, state: State) -> dict[str, Any]:
    """Return the result of `Optimizer.get_config`."""
    arguments = {"name": name, "learning_rate": settings.rate.to_json(), **hyper.config()}
    mesh = state.given_mesh
    return {**arguments, **settings.config(), "mesh": None if mesh is None else meshes.to_config(mesh)}


def from_config(cls: type[_T], config: Mapping[str, Any]) -> _T:
    """Return the result of `Optimizer.from_config`.

    A subclass whose constructor takes fewer arguments than `Optimizer` gets those that it takes; the others must then
    be at their defaults.
    """
    names = tuple(base.__name__ for base in cls.__mro__)
    arguments = keras_configs.arguments(config, names, algorithm.has_own_step(cls))
    if isinstance(arguments.get("mesh"), Mapping):
        arguments["mesh"] = meshes.from_config(arguments["mesh"])
    defaults = {name: option.default for name, option in OPTIONS.items()}
    defaults |= {"mesh": None, "learning_rate": None, "name": cls.__name__}
    accepted = inspect.signature(cls.__init__).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    for key in [] if takes_all else [k for k in arguments if k not in accepted]:
        if key in config and (key not in defaults or not _same(arguments[key], defaults[key])):
            raise HyperparameterError(f"{cls.__name__} takes no {key!r}, but its config contains {arguments[key]!r}")
        del arguments[key]
    try:
        optimizer = cls(**arguments)
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        raise HyperparameterError(f"the config does not fit {cls.__name__}: {error}") from None
    if "mesh" in config:  # one of ours, which contains all settings, even for options that are newer than it
        optimizer._settings.explicit.update(OPTIONS)  # type: ignore[attr-defined]
    return optimizer


def class_named(name: str, custom_objects: Mapping[str, Any]) -> Any:
    """Return the class of optimizers that a config names, from `custom_objects` or `optim`; None if both lack it."""
    cls = custom_objects.get(name)
    if cls is None and name in optim.__all__:
        cls = getattr(optim, name)
    return cls if isinstance(cls, type) and hasattr(cls, "from_config") else None


def of_class(description: Any, custom_objects: Mapping[str, Any]) -> Any:
    """Return the optimizer of `{"class_name": ..., "config": ...}`; return an optimizer unchanged.

    Raises HyperparameterError: the class is unknown, or the config is missing.
    """
    if hasattr(description, "get_config"):
        return description
    if not isinstance(description, Mapping) or not {"class_name", "config"} <= set(description):
        raise HyperparameterError(f'a config of an optimizer is {{"class_name", "config"}}, got {description!r}')
    name = str(description["class_name"])
    cls = class_named(name, custom_objects)
    if cls is None:
        raise HyperparameterError(
            f"optim has no optimizer {name!r}; pass custom_objects={{{name!r}: the class}} to from_config or"
            " load_checkpoint"
        )
    return cls.from_config(description["config"])


def with_members(config: Mapping[str, Any], custom_objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config in which the members of groups are optimizers; return one without groups unchanged."""
    groups = config.get("groups")
    if groups is None:
        return dict(config)
    return {**config, "groups": [(pattern, of_class(member, custom_objects)) for pattern, member in groups]}


def _same(value: Any, default: Any) -> bool:
    if default is None or default == ():
        return value is None or (default == () and not value)
    return bool(value == default)  # a Mesh cannot be compared with None
