"""bfloat16 variables that are rounded stochastically instead of to nearest: `stochastic_rounding`.

A step smaller than half the spacing of bfloat16 is not lost: it moves the variable with a probability in proportion to
its size. Gupta et al., "Deep Learning with Limited Numerical Precision" (2015), section 3. The noise, which
`slot_dtype="bfloat16"` uses, too, is that of a counter: `optim/bits/noise.py`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from optim.bits.noise import WORD
from optim.errors import HyperparameterError
from optim.options.base import Option, Part


class StochasticRounding(Part):
    """Whether bfloat16 variables are rounded stochastically, and the seed of all stochastic rounding."""

    options: ClassVar = {
        "stochastic_rounding": Option(
            False,
            "round bfloat16 variables, and their bfloat16 slots, up or down at random instead of to nearest, so that"
            " small steps add up without `master_copies`. Variables of other dtypes are not affected",
        ),
        "rounding_seed": Option(
            0,
            "seed of stochastic rounding, an integer in [0, 2³²): the same seed gives the same bits on any executor and"
            " mesh, and after a resume",
        ),
    }

    def __init__(self, value: Any, seed: Any):
        if not isinstance(value, bool):
            raise HyperparameterError(f"stochastic_rounding must be True or False, got {value!r}")
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < WORD:
            raise HyperparameterError(f"rounding_seed must be an integer in [0, {WORD}), got {seed!r}")
        self.stochastic_rounding = value
        self.rounding_seed = seed

    def check(self, is_by_rule: bool, slot_dtype: Any, owner: str) -> None:
        """Raises HyperparameterError: an option that has no effect."""
        if self.stochastic_rounding and not is_by_rule:
            raise HyperparameterError(
                f"stochastic_rounding would have no effect: {owner} has its own update_step. Leave it out"
            )
        if self.rounding_seed and not self.stochastic_rounding and slot_dtype != "bfloat16":
            raise HyperparameterError(
                f"rounding_seed={self.rounding_seed} would have no effect: nothing is rounded stochastically. Leave it"
                ' out, or give stochastic_rounding=True or slot_dtype="bfloat16"'
            )
