"""The public optimizer SOAP; its maths and arguments are in `optim/rules/soap.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import RuleOptimizer
from optim.rules.soap import SOAPRule


class SOAP(RuleOptimizer, rule=SOAPRule):
    """SOAP (Vyas et al., 2024): Adam in the eigenbasis of Shampoo's preconditioners.

    Slots: `m` and `v`, each shaped like its variable, and for a variable of shape (n0, n1, ...) `statistics_0` and
    `basis_0` of shape (n0, n0), the same for each other dim. Vectors are updated as by Adam.
    Matrices are divided on a mesh like the dim of the variable. A step gathers what it needs: gradients are
    preconditioned as a whole, however they are sharded. The first step moves no variable. The rule does not support
    `lazy_rows` or `slot_dtype`.
    """
