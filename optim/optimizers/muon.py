"""The public optimizer Muon; its maths and arguments are in `optim/rules/muon.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import Option, RuleOptimizer
from optim.rules.muon import MuonRule


class Muon(
    RuleOptimizer,
    rule=MuonRule,
    options={"weight_decay": Option(0.004, "weight decay of the variables that Muon itself updates, or None")},
):
    """Muon (Jordan et al., 2024): momentum made orthogonal, for the matrices inside a model; Adam for the rest.

    Adam updates every variable whose rank is not 2, those with "embedding" in their names, and those that
    `exclude_layers` matches, which should name the output layer.

    Slots: `m`, and `v` of the variables that Adam updates, each shaped like its variable. Matrices are made orthogonal
      as a
    whole, however they are sharded. The rule does not support `lazy_rows`.
    """
