"""How Keras saves and loads the configuration of an optimizer of `for_keras`, on any backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import optim
from optim.errors import HyperparameterError
from optim.lazy import uses_tensorflow

PACKAGE = "dtopt"
NAME = "KerasOptimizer"
ORDER, BY_VARIABLE = "variables", "by variable"
"""The order of lists of weights in a config. Earlier configs lack this key: their lists are slot by slot."""


class Configured:
    """`get_config` and `from_config`, of an optimizer with `inner`."""

    inner: Any
    _keras: ModuleType
    _adapt: Callable[[Any], Any]
    """`for_keras` with `_keras`."""

    def _live_rate(self) -> Any:
        """The schedule of the learning rate, if there is one."""
        raise NotImplementedError

    def inner_config(self) -> dict[str, Any]:
        """What `get_config()` of `inner` returns, with the values that are in force here."""
        config: dict[str, Any] = self.inner.get_config()
        return config

    def get_config(self) -> dict[str, Any]:
        """The configuration of `inner`, and its class as `algorithm`. A schedule of this Keras is as Keras saves it."""
        config = self.inner_config()
        if "groups" in config:
            pairs = zip(config["groups"], self.inner.members, strict=True)
            config["groups"] = [[pattern, self._described(entry, member)] for (pattern, entry), member in pairs]
        else:
            config = self._with_rate(config, self._live_rate())
        return {**config, "algorithm": name_of(type(self.inner), self._keras), ORDER: BY_VARIABLE}

    def _described(self, entry: Mapping[str, Any], member: Any) -> dict[str, Any]:
        """The class and config of a member of groups."""
        name = name_of(type(member), self._keras)
        return {"class_name": name, "config": self._with_rate(entry["config"], member._learning_rate)}

    def _with_rate(self, config: Mapping[str, Any], rate: Any) -> dict[str, Any]:
        theirs = self._keras.optimizers.schedules
        is_theirs = isinstance(rate, theirs.LearningRateSchedule)
        return {**config, "learning_rate": theirs.serialize(rate)} if is_theirs else dict(config)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Any:
        arguments = dict(config)
        name, order = arguments.pop("algorithm", None), arguments.pop(ORDER, None)
        if "groups" in arguments:
            arguments["groups"] = [
                (pattern, cls._create(entry["class_name"], entry["config"], custom_objects))
                for pattern, entry in arguments["groups"]
            ]
        inner, derived = cls._create(name, arguments, custom_objects), users_class(cls)
        optimizer = cls._adapt(inner) if derived is None else derived(optimizer=inner)
        vars(optimizer)["_is_of_before"] = order is None
        return optimizer

    @classmethod
    def _create(cls, name: Any, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None) -> Any:
        """An optimizer by the name of its class."""
        cls_ = class_of(str(name)) or cls._keras.saving.get_registered_object(str(name), custom_objects)
        if not is_ours(cls_):
            raise HyperparameterError(
                f"the model was saved with an optimizer of class {name!r}; register that class with"
                " keras.saving.register_keras_serializable, or load the model with compile=False"
            )
        arguments = dict(config)
        rate = arguments.get("learning_rate")
        if isinstance(rate, Mapping) and "registered_name" in rate:  # Keras's own form
            deserialize = cls._keras.optimizers.schedules.deserialize
            arguments["learning_rate"] = deserialize(dict(rate), custom_objects=custom_objects)
        return cls_.from_config(arguments)


def users_class(cls: type) -> type | None:
    """A class that a user (or Horovod) derived from what `for_keras` makes; None for what `for_keras` makes."""
    return None if "_adapt" in vars(cls) else cls


def is_ours(cls: Any) -> bool:
    """Whether something is a class of optimizers that `for_keras` takes."""
    return isinstance(cls, type) and issubclass(cls, bases())


def bases() -> tuple[type, ...]:
    """The classes of optimizers that `for_keras` takes."""
    if not uses_tensorflow():
        return (optim.Optimizer,)
    from optim.legacy._base import LegacyOptimizer

    return (optim.Optimizer, LegacyOptimizer)


def _places() -> dict[str, Any]:
    """Where classes are public: `""` for `optim`, `"legacy.v2"`, ..."""
    if not uses_tensorflow():
        return {"": optim}
    from optim.legacy import v1, v2

    return {"": optim, "legacy.v1": v1, "legacy.v2": v2}


def class_of(name: str) -> Any:
    """The class that `name_of` called so; None for other classes."""
    home, _, plain = name.rpartition(".")
    cls = getattr(_places().get(home), plain, None)
    return cls if cls is not None and _home(cls) == home else None


def _home(cls: Any) -> str | None:
    """Where a class is public; None for a user's."""
    name = getattr(cls, "__name__", "")
    return next((home for home, place in _places().items() if getattr(place, name, None) is cls), None)


def name_of(cls: type, keras: ModuleType) -> str:
    """A class by its public place in `optim`, or by the name under which Keras knows it."""
    home = _home(cls)
    if home is None:
        return str(keras.saving.get_registered_name(cls))
    return f"{home}.{cls.__name__}" if home else cls.__name__
