"""A source in its own terms, for users who must supply what it does not contain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from migrate.bytes.arrays import LazyArray
from migrate.bytes.messages import line
from migrate.conversion.inspection import SlotRow, statistics
from migrate.evidence import class_candidates
from migrate.state import Stored

LIST = "in order"
"""The method of finding arrays of a list that only its order explains."""


@dataclass(frozen=True)
class Contents:
    """A source, recognised but not interpreted.

    Attributes:
      source: what was read, without the password of a URL.
      format: name of the reader.
      generation: who wrote it, one of `generations.GENERATIONS`, None if unknown.
      evidence: how that was recognised.
      versions: of Keras, TensorFlow and the backend, as far as the source shows them.
      stored_config: the optimizer's config, or what the graph shows of it.
      classes: those with such slot names; nothing is concluded from them.
      scalars: optimizer-wide counters and hyperparameters in the source, with their values.
      variables: the model's; their `slot` is empty.
      slots: by the source's own names; arrays of a list one by one, by place.
      unmapped: {name: shape} of other arrays.
      optimizers: paths of all optimizers in the source, if its format can hold several.
      warnings: notes for the user.
    """

    source: str
    format: str
    generation: str | None
    evidence: tuple[str, ...]
    versions: Mapping[str, str]
    stored_config: Mapping[str, Any] | None
    classes: tuple[str, ...]
    scalars: Mapping[str, Any]
    variables: tuple[SlotRow, ...]
    slots: tuple[SlotRow, ...]
    unmapped: Mapping[str, tuple[int, ...]]
    optimizers: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def contents(stored: Stored, source: str, *, stats: bool) -> Contents:
    """Describe a reader's result; with `stats` every array is read once."""

    def row(variable: str, slot: str, array: LazyArray, matched: str) -> SlotRow:
        numbers = statistics(array) if stats else None
        return SlotRow(variable, slot, array.shape, array.dtype, matched, array.stored_as, numbers)

    slots = [
        row(variable, slot, array, stored.matched.get(f"{slot}/{variable}", "name"))
        for slot, owners in stored.slots.items()
        for variable, array in owners.items()
    ]
    listed = [(name.partition("/.ATTRIBUTES")[0], array) for name, array in stored.weights or ()]
    slots += [row("", name, array, LIST) for name, array in listed]
    numbers = {name: array for name, array in (*stored.scalars.items(), *listed) if array.shape == ()}
    return Contents(
        source=source,
        format=stored.format,
        generation=stored.generation,
        evidence=stored.evidence,
        versions=stored.versions.to_dict(),
        stored_config=stored.optimizer_config or stored.graph_config,
        classes=tuple(class_candidates.classes(stored)),
        scalars={name: array.load().tolist() for name, array in numbers.items()},
        variables=tuple(
            row(v.name, "", v.array, "") if v.array is not None else SlotRow(v.name, "", v.shape, v.dtype, "", "")
            for v in stored.variables
        ),
        slots=tuple(slots),
        unmapped={
            **{name: array.shape for name, array in stored.scalars.items() if array.shape != ()},
            **{name: array.shape for name, array in stored.unmapped.items()},
        },
        optimizers=stored.optimizers,
        warnings=tuple(map(line, stored.warnings)),
    )
