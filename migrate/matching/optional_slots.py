"""Find which variables have the last slot, by names and shapes, in lists like Muon's."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from migrate.algorithms.spec import Algorithm
from migrate.errors import AmbiguousError, ContradictionError
from migrate.lists.orders import Owners
from migrate.matching import strategies
from migrate.state import Stored


def owners(stored: Stored, algorithm: Algorithm, config: Mapping[str, Any], where: str) -> Owners | None:
    """Return which variables have the last slot, for an algorithm that keeps it for some only, else None.

    Raises:
      AmbiguousError: names do not show it, or show it of an order that the source does not show.
    """
    blocks = [b for blocks in algorithm.orders(stored.generation or "", config) for b in blocks]
    slot = next((b.slots[-1] for b in blocks if not isinstance(b, str) and b.last_of_some), None)
    if slot is None:
        return None
    trained = [v for v in strategies.usable(stored.variables) if v.trainable is not False]
    check(algorithm, config, slot, {v.name: v.shape for v in trained})
    flags = [bool(algorithm.has(config, slot, v.shape, v.name)) for v in trained]
    if stored.layers is None:
        return Owners(len(trained), lambda i, shape: flags[i])
    by_shape: dict[tuple[int, ...], set[bool]] = {}
    for variable, has in zip(trained, flags, strict=True):
        by_shape.setdefault(variable.shape, set()).add(has)
    mixed = next((shape for shape, has in by_shape.items() if len(has) > 1), None)
    if mixed is not None:
        raise AmbiguousError(
            f"{where}: the source does not contain the order of its layers, and only some variables of shape"
            f" {list(mixed)} have the slot {slot}: name the trained variables, in order, in --variables"
        )
    return Owners(len(trained), lambda i, shape: by_shape.get(shape) == {True})


def check(
    algorithm: Algorithm,
    config: Mapping[str, Any],
    slot: str,
    shapes: Mapping[str, tuple[int, ...]],
    having: Collection[str] = (),
) -> None:
    """Check that the variables in `having` should have a slot, by name, shape and config.

    Raises:
      AmbiguousError: the names do not show it. ContradictionError: one has it, and should not.
    """
    for name, shape in shapes.items():
        has = algorithm.has(config, slot, shape, name)
        if has is None:
            raise AmbiguousError(
                f"whether {algorithm.name} keeps the slot {slot} of {name} depends on the part of that name"
                " that its path had in Keras, which the source does not contain: exclude_layers or"
                " exclude_embeddings match only one part. Give patterns that match the layer's name, with"
                " --set exclude_layers=VALUE"
            )
        if name in having and not has:
            raise ContradictionError(
                f"the source has the slot {slot} of {name}, but by its shape, its name and the config"
                f" {algorithm.name} does not keep it: the file mixes two runs"
            )
