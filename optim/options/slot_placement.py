"""Where slots are stored: `slot_placement`."""

from __future__ import annotations

from typing import Any, ClassVar

from optim.layouts import policies
from optim.options.base import Option, Part


class SlotPlacement(Part):
    """See `optim.layouts.placement` for what the policies mean."""

    options: ClassVar = {
        "slot_placement": Option(
            policies.LIKE_VARIABLE,
            '`"like_variable"`, `"zero1"` (slots are sharded further, over the mesh axes on which the variable'
            " is replicated), or a callable `(variable, slot_name) -> Layout`",
        ),
    }

    def __init__(self, policy: Any):
        self.slot_placement = policies.check(policy)

    def config(self) -> dict[str, Any]:
        return {"slot_placement": policies.to_config(self.slot_placement)}
