"""The maths of each algorithm, one file each; nothing here imports TensorFlow."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from optim.rule import Rule


@cache
def every() -> tuple[type[Rule], ...]:
    """Return the class of each rule here, in the order of the files' names."""
    modules = [import_module(f"{__name__}.{info.name}") for info in iter_modules(__path__)]
    return tuple(
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Rule) and value.__module__ == module.__name__
    )


def of(optimizer: str) -> type[Rule] | None:
    """Return the rule of one of `optim`'s optimizers, by the name of its class; None if there is no class of that
    name."""
    name = "AdamRule" if optimizer == "AdamW" else f"{optimizer}Rule"
    return next((rule for rule in every() if rule.__name__ == name), None)
