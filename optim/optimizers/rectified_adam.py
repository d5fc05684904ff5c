"""The public optimizer RectifiedAdam; its maths and arguments are in `optim/rules/rectified_adam.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import Option, RuleOptimizer
from optim.rules.rectified_adam import RectifiedAdamRule


class RectifiedAdam(
    RuleOptimizer,
    rule=RectifiedAdamRule,
    options={"weight_decay": Option(0.0, "λ; see `Optimizer`")},
    positional=("learning_rate", "beta_1", "beta_2", "epsilon", "weight_decay"),
):
    """Rectified Adam, RAdam (Liu et al., 2020): Adam whose first steps do not use the second moment.

    Slots: `m`, `v`, and `vhat` with `amsgrad`, each shaped like its variable.

    Arguments and steps as `tfa.optimizers.RectifiedAdam`; `epsilon_hat` gives those of `torch.optim.RAdam`.
    """
