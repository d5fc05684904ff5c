"""Attributes of a legacy optimizer that its inner `optim` optimizer stores."""

from __future__ import annotations

from typing import Any

KERAS_EPSILON = 1e-7
"""`K.epsilon()` as every release ships it; no config contains a user's `K.set_epsilon`."""


class Delegated:
    """A hyperparameter that may be read and set: a number, a scalar tensor, a `tf.Variable` or a callable."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else getattr(instance._modern, self.name)

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(instance._modern, self.name, value)


class Momentum(Delegated):
    """Momentum: an optimizer made without it has no slot for it, and cannot get it later."""

    def __set__(self, instance: Any, value: Any) -> None:
        if not instance._modern._rule.keeps_momentum:
            raise AttributeError(
                f"this {type(instance).__name__} was made with momentum=0 and has no slot for it; make another one"
            )
        super().__set__(instance, value)


class Fixed:
    """An attribute that determines the slots and the formula: read-only."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else instance._modern.get_config()[self.name]

    def __set__(self, instance: Any, value: Any) -> None:
        raise AttributeError(f"{self.name} is fixed when the optimizer is made; make another one")


def none_is_default(epsilon: Any) -> Any:
    """Return `epsilon`; None means 1e-7."""
    return KERAS_EPSILON if epsilon is None else epsilon


def zero_is_default(epsilon: Any) -> Any:
    """Return `epsilon`; None and the number 0 mean 1e-7 (`epsilon or K.epsilon()` in OptimizerV2)."""
    return KERAS_EPSILON if epsilon is None or (isinstance(epsilon, (int, float)) and epsilon == 0) else epsilon
