"""The public optimizer LARS; its maths and arguments are in `optim/rules/lars.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import Option, RuleOptimizer
from optim.rules.lars import LARSRule


class LARS(
    RuleOptimizer,
    rule=LARSRule,
    options={"weight_decay": Option(0.0, "λ; see `Optimizer`")},
    positional=("learning_rate", "momentum", "weight_decay"),
):
    """LARS (You et al., 2017): momentum with steps scaled, variable by variable, to the variable's norm.

    Slots: `m`, shaped like its variable. Norms are those of the whole variable, however it is sharded. Weight decay is
      added
    to the gradient, after its norm is computed. The rule does not support `lazy_rows`.
    """
