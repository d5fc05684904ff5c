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
    """AdamW (Loshchilov & Hutter, 2019): Adam whose weights decay directly and not through the gradients.

    Slots: `m`, `v`, and `vhat` with `amsgrad`, each shaped like its variable.

    It is `Adam` with `weight_decay`: p ← p · (1 − weight_decay · lr), then Adam's step, as in Keras from 2.10 on. The
    class of `optimizers.experimental` in 2.9 differs: its p ← p · weight_decay · lr nearly set the weights to zero at
    every step. `optim` does not reproduce that defect, and `dtopt migrate` refuses its state.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.weight_decay is None:
            raise HyperparameterError("Missing value of `weight_decay`: without one, AdamW is Adam")
