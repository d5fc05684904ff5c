"""The public optimizer Shampoo; its maths and arguments are in `optim/rules/shampoo.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import RuleOptimizer
from optim.rules.shampoo import ShampooRule


class Shampoo(RuleOptimizer, rule=ShampooRule):
    """Shampoo (Gupta et al., 2018): a gradient preconditioned by a matrix for each of its dims.

    Slots of a variable of shape (n0, n1, ...): `statistics_0` of shape (n0, n0) and its inverse root `root_0`, the same
    for each other dim, and `m` with `momentum`. A dim over `max_preconditioner_dim` has `statistics_0` of shape (n0,).
    Matrices are divided on a mesh like the dim of the variable. A step gathers what it needs: gradients are
    preconditioned as a whole, however they are sharded. The rule does not support `lazy_rows`.
    """
