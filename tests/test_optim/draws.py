"""Options drawn at random for the tests that put them together, by seeds: `DTOPT_SEEDS=100:200` draws others."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.reference.common import Options
from tests.test_optim.cases import VARIANTS, Case
from tests.test_optim.support import LAYOUTS

OWN_DECAY = ("LARS", "NovoGrad", "ScheduleFreeAdamW")
CASES = [case for case in VARIANTS if case.loop == Options() or case.optimizer == "AdamW"]


def seeds(count: int) -> range:
    """As many seeds, or those that `DTOPT_SEEDS` names."""
    return range(*map(int, os.environ.get("DTOPT_SEEDS", f"0:{count}").split(":")))


@dataclass(frozen=True)
class Draw:
    case: Case
    layout: str
    mode: str
    placement: str
    saved_onto: str

    def __str__(self) -> str:
        names = ",".join(sorted(self.case.arguments))
        return f"{self.case.name}-{self.layout}-{self.mode}-{self.placement}-{self.saved_onto}-{names}"


def draw(random: np.random.Generator, without: tuple[str, ...] = ("native",)) -> Draw:
    """An optimizer with options, in one of its modes but for those `without`, and where its variables are."""
    case = CASES[random.integers(len(CASES))]

    def sometimes(share: float = 0.4) -> bool:
        return bool(random.random() < share)

    options: dict[str, Any] = {}
    if sometimes():
        options["clipvalue"] = 0.5
    if sometimes():
        options[str(random.choice(["clipnorm", "global_clipnorm"]))] = 0.8
        options["clip_order"] = str(random.choice(["value_first", "norm_first"]))
    has_decay = case.optimizer in (*OWN_DECAY, "AdamW") or "weight_decay" in case.arguments
    if sometimes() and not has_decay:
        options["weight_decay"] = 0.1
        if sometimes(0.6):
            options[str(random.choice(["decoupled_weight_decay", "learning_rate_in_weight_decay"]))] = False
    if sometimes():
        options |= {"use_ema": True, "ema_momentum": 0.7}
        if sometimes():
            options["ema_overwrite_frequency"] = 2
    elif sometimes():
        start = int(random.integers(3))
        options["stochastic_average"] = {"start_averaging": start, "average_period": int(random.integers(1, 3))}
    if sometimes():
        options["gradient_accumulation_steps"] = int(random.integers(2, 4))
    if sometimes():
        options["loss_scale"] = [64.0, "dynamic"][random.integers(2)]
        if options["loss_scale"] == "dynamic":
            options["loss_scale_growth_steps"] = 2
    if sometimes():
        options["decay"] = 0.25
    if sometimes() and case.name != "schedule-free-all":  # whose reference has one sum of weights for all variables
        options["learning_rate_multipliers"] = {"^table$": 0.25, "^(bias|odd)$": 1.5}
    if sometimes():
        options["lookahead"] = {"sync_period": int(random.integers(1, 4)), "slow_step_size": 0.4}
    if sometimes(0.2):
        options["cautious"] = True
    if sometimes(0.2):
        options["adaptive_grad_clip"] = {"clipping": 0.3, "exclude": ["^bias$"]}
    arguments = {**case.arguments, **options}
    if sometimes():
        arguments["master_copies"] = True  # of which float64 variables have none
    layout, saved_onto = (str(random.choice(list(LAYOUTS))) for _ in range(2))
    mode = str(random.choice([mode for mode in case.modes if mode not in without]))
    placement = str(random.choice(["like_variable", "zero1"]))
    loop = replace(case.loop, **options)
    return Draw(replace(case, arguments=arguments, loop=loop), layout, mode, placement, saved_onto)
