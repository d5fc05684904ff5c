"""The public optimizer NovoGrad; its maths and arguments are in `optim/rules/novograd.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import Option, RuleOptimizer
from optim.rules.novograd import NovoGradRule


class NovoGrad(
    RuleOptimizer,
    rule=NovoGradRule,
    options={"weight_decay": Option(0.0, "λ; see `Optimizer`")},
    positional=("learning_rate", "beta_1", "beta_2", "epsilon", "weight_decay"),
):
    """NovoGrad (Ginsburg et al., 2019): momentum of gradients that are normalised variable by variable.

    Slots: `m`, shaped like its variable, and the scalar `v`, with `amsgrad` also `vhat`. Norms are those of the whole
    variable, however it is sharded. Arguments and steps as `tfa.optimizers.NovoGrad`; weight decay is added to the
    normalised gradient. The rule does not support `lazy_rows`.
    """
