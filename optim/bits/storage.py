"""How an optimizer stores variables and slots in fewer bits than it computes in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optim.bits import noise

if TYPE_CHECKING:
    import tensorflow as tf

BFLOAT16, INT8 = "bfloat16", "int8"
SLOT_DTYPES = (BFLOAT16, INT8)


@dataclass(frozen=True)
class Storage:
    """What the options set.

    Attributes:
      slot_dtype: one of SLOT_DTYPES, or None for the dtype of what a step works on.
      rounds_variables: whether bfloat16 variables are rounded stochastically.
      seed: of the noise.
    """

    slot_dtype: str | None = None
    rounds_variables: bool = False
    seed: int = 0

    @property
    def is_random(self) -> bool:
        """Whether what is stored in bfloat16 is rounded stochastically."""
        return self.slot_dtype == BFLOAT16 or self.rounds_variables

    @property
    def is_used(self) -> bool:
        return self.is_random or self.slot_dtype is not None

    def rounds(self, dtype: tf.DType, is_slot: bool) -> bool:
        """Whether slots, or variables, that are stored in this dtype are rounded stochastically."""
        return dtype == BFLOAT16 and (self.is_random if is_slot else self.rounds_variables)

    def step_key(self, iterations: Any) -> Any:
        """The key of a step's noise, or None without noise."""
        return noise.step_key(self.seed, iterations) if self.is_random else None
