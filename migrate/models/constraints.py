"""Find the weights that a model constrains after each step, and their constraints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from migrate.state import Stored

CONSTRAINT = "_constraint"
"""Suffix of keys in a layer's config; the weight comes before it."""
STOCK = {name.lower(): name for name in ("MaxNorm", "MinMaxNorm", "NonNeg", "RadialConstraint", "UnitNorm")}
"""Keras's classes by their lower-case names; functions of old releases have the same names with underscores."""
LIBRARIES = ("keras", "tf_keras", "tensorflow")


@dataclass(frozen=True)
class Tie:
    """One constraint in a model's config: the names of its layer and of the outer ones, the constrained part of the
    layer (`kernel`), and the value in the config."""

    layers: tuple[str, ...]
    part: str
    constraint: Any

    def is_of(self, variable: str, nearest: bool = True) -> bool:
        """Whether a variable's name is that part of the layer, `dense/kernel`; without `nearest`, of any of its outer
        layers."""
        *path, last = variable.split("/")
        layers = self.layers[-1:] if nearest else self.layers
        return last.split(":")[0].startswith(self.part) and any(layer in path for layer in layers)


def of_model(item: Any, layers: tuple[str, ...] = ()) -> Iterator[Tie]:
    """Yield all constraints in a model's config, or in a part of one."""
    if isinstance(item, (list, tuple)):
        for member in item:
            yield from of_model(member, layers)
    if not isinstance(item, Mapping):
        return
    inner = (*layers, item["name"]) if isinstance(item.get("name"), str) else layers
    for key, value in item.items():
        if isinstance(key, str) and key.endswith(CONSTRAINT) and value is not None:
            yield Tie(inner, key.removesuffix(CONSTRAINT), value)
        yield from of_model(value, inner)


def of_source(source: Stored, variables: Sequence[str]) -> dict[str, str]:
    """The constraints of these variables, from the model's config or `Stored.constrained`."""
    ties = list(of_model(source.model.config)) if source.model is not None else []
    texts = {
        name: " and ".join(dict.fromkeys(of_config(tie.constraint) for tie in ties if tie.is_of(name)))
        for name in variables
    }
    return {
        name: text or source.constrained[name] for name, text in texts.items() if text or name in source.constrained
    }


def of_config(constraint: Any) -> str:
    """Format a constraint exactly as `of_variable` does: `MaxNorm(axis=0, max_value=2)`."""
    if not isinstance(constraint, Mapping):
        return _shown(str(constraint), {})
    name = constraint.get("class_name") or constraint.get("name")
    config = constraint.get("config", {k: v for k, v in constraint.items() if k != "name"})
    return _shown(str(name), config if isinstance(config, Mapping) else {"config": config})


def of_variable(variable: Any) -> str | None:
    """The constraint of a live variable, None without one. A custom one equals no other."""
    constraint = getattr(variable, "constraint", None)
    if constraint is None:
        return None
    cls = type(constraint)
    if cls.__module__.partition(".")[0] not in LIBRARIES or not hasattr(constraint, "get_config"):
        return f"a custom one ({getattr(constraint, '__name__', cls.__name__)})"
    return _shown(cls.__name__, constraint.get_config())


def _shown(name: str, config: Mapping[str, Any]) -> str:
    name = STOCK.get(name.rpartition(">")[2].replace("_", "").lower(), name)
    return f"{name}({', '.join(f'{key}={_number(value)}' for key, value in sorted(config.items()))})"


def _number(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_number, value))}]"
    return f"{float(value):.7g}" if isinstance(value, (int, float)) else repr(value)
