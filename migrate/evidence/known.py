"""What is known of one source while it is interpreted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from migrate.algorithms.arguments import Arguments
from migrate.algorithms.configuration import Configuration
from migrate.bytes.arrays import LazyArray
from migrate.claims import Origin
from migrate.evidence.slot_selection import Selection
from migrate.evidence.stored_scalars import Scalars
from migrate.evidence.user_input.hints import Variables
from migrate.evidence.user_input.variables import Hinted
from migrate.matching.slot_table import SlotTable
from migrate.state import Stored, StoredVariable

Counted = tuple[int | None, Origin]
"""Steps taken, None if the source does not keep them and nothing needs them."""


@dataclass
class Known:
    """What the user and the source specify, then the answers of `STEPS`, in their order."""

    source: Stored
    optimizer_config: Mapping[str, Any] | None
    variables: Variables | None
    generation: str | None
    overrides: Mapping[str, Any]

    hinted: Hinted = field(init=False)
    twins: list[Origin] = field(init=False)
    configuration: Configuration = field(init=False)
    table: SlotTable = field(init=False)
    flagged: Stored = field(init=False)
    counted: tuple[Counted, dict[str, LazyArray]] = field(init=False)
    scalars: Scalars = field(init=False)
    arguments: Arguments = field(init=False)
    selection: Selection = field(init=False)
    steps: tuple[int, Origin, int | None] = field(init=False)
    state: tuple[dict[str, float], tuple[Origin, ...]] = field(init=False)
    claims: tuple[Origin, ...] = field(init=False)
    warnings: tuple[str, ...] = field(init=False)

    @property
    def stored(self) -> Stored:
        """The source with the user's generation and variables."""
        return self.hinted.stored

    @property
    def release(self) -> str:
        assert self.stored.generation is not None
        return self.stored.generation

    @property
    def is_named(self) -> bool:
        """Whether the user names the trained variables."""
        return self.hinted.named is not None

    @property
    def ordered(self) -> tuple[StoredVariable, ...]:
        """Variables with slots first, in optimizer order; then the other trainable ones; then the rest."""
        return ordered(self.stored, self.table.order)

    @property
    def trained(self) -> list[StoredVariable]:
        return [v for v in self.ordered if v.trainable]

    @property
    def methods(self) -> dict[str, str]:
        """Slot that is migrated -> how it was matched."""
        keys = [(slot, name) for slot, owners in self.selection.slots.items() for name in owners]
        return {"/".join(key): self.table.methods[key] for key in keys if key in self.table.methods}


def ordered(stored: Stored, order: Sequence[str]) -> tuple[StoredVariable, ...]:
    """Return variables with slots first, in optimizer order; then the other trainable ones; then the rest."""
    by_name, slotted = {v.name: v for v in stored.variables}, set(order)
    first = [replace(by_name[name], trainable=True) for name in order]
    others = [v for v in stored.variables if v.name not in slotted]
    # If the source does not show it, a variable without slots among others with slots is not trained.
    flagged = [replace(v, trainable=not first) if v.trainable is None else v for v in others]
    return (*first, *(v for v in flagged if v.trainable), *(v for v in flagged if not v.trainable))
