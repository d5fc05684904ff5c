"""The config of an optimizer, and an optimizer out of its config, or out of that of Keras's."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

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
    """What `Optimizer.get_config` returns."""
    own = {"name": name, "learning_rate": settings.rate.to_json(), **hyper.config()}
    mesh = state.given_mesh
    return {**own, **settings.config(), "mesh": None if mesh is None else meshes.to_config(mesh)}


def from_config(cls: type[_T], config: Mapping[str, Any]) -> _T:
    """What `Optimizer.from_config` returns.

    A subclass whose constructor takes fewer arguments than `Optimizer` gets those that it takes; the others must
    then be at their defaults.
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
            raise HyperparameterError(f"{cls.__name__} takes no {key!r}, but its config says {arguments[key]!r}")
        del arguments[key]
    try:
        made = cls(**arguments)
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        raise HyperparameterError(f"the config does not fit {cls.__name__}: {error}") from None
    if "mesh" in config:  # one of ours, which says what was in force, an option that is newer than it included
        made._settings.explicit.update(OPTIONS)  # type: ignore[attr-defined]
    return made


def _same(value: Any, default: Any) -> bool:
    if default is None or default == ():
        return value is None or (default == () and not value)
    return bool(value == default)  # a Mesh cannot be compared with None
