"""The public optimizer Adafactor; its maths and arguments are in `optim/rules/adafactor.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import RuleOptimizer
from optim.rules.adafactor import AdafactorRule


class Adafactor(RuleOptimizer, rule=AdafactorRule):
    """Adafactor (Shazeer & Stern, 2018): second moments as row and column means, steps relative to the variable.

    Slots of a variable of rank 2 and more: `r`, its shape without the last dim, and `c`, its shape without the dim
    before; below rank 2: `v`, shaped like it. Means and norms are those of the whole variable, however it is sharded.
    The rule does not support `lazy_rows`.
    """
