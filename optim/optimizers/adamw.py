"""The public optimizer AdamW; its maths and arguments are in `optim/rules/adam.py`."""

from __future__ import annotations

from typing import Any

from optim.errors import HyperparameterError
from optim.optimizers.of_rule import Option, RuleOptimizer
from optim.rules.adam import AdamRule


class AdamW(
    RuleOptimizer,
    rule=AdamRule,
    options={"weight_decay": Option(0.004, "see `Optimizer`; None is refused: without one, AdamW is Adam")},
    positional=("learning_rate", "weight_decay"),
):
    """AdamW (Loshchilov & Hutter, 2019): Adam whose weights decay by themselves and not through the gradients.

    Slots: `m`, `v`, and `vhat` with `amsgrad`, each shaped like its variable.

    It is `Adam` with `weight_decay` on: p ← p · (1 − weight_decay · lr), then Adam's step, as in Keras from 2.10 on.
    Not so in `optimizers.experimental` of 2.9, where p ← p · weight_decay · lr nearly set the weights to zero at every
    step: that defect is not reproduced, and `dtopt migrate` refuses its state.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.weight_decay is None:
            raise HyperparameterError("Missing value of `weight_decay`: without one, AdamW is Adam")
