"""What releases do around a step: accumulation, averages, frozen variables, the order of reads."""

from __future__ import annotations

from migrate.facts.fact import Fact
from migrate.releases.table import Release
from migrate.releases.versions import TENSORFLOW

BATCHES, STEPS = "batches", "steps"
ACCUMULATION = Fact(
    "gradient_accumulation_steps",
    "What does Keras 3 count while it accumulates gradients, and what does it clip?",
    lambda r: None if not r.is_keras_3 else BATCHES if r.keras_number < (3, 5) else STEPS,
    {BATCHES: "counted every batch as a step and clipped each gradient alone", STEPS: "counted steps"},
    "`base_optimizer.py` of Keras 3.0 to 3.15",
)
CONTINUES, STOPS = "continues", "stops"
FROZEN = Fact(
    "trained variables",
    "Does the optimizer continue to train variables that were frozen after it was built?",
    lambda r: CONTINUES if r.is_keras_3 and r.keras_number < (3, 4) else STOPS if r.traits.has_averages else None,
    {STOPS: "left frozen variables alone", CONTINUES: "continued to train them"},
    "run with TF 2.12 and Keras 3.0 to 3.15",
)
EVERY_STEP, NEVER = "every step", "never"
OVERWRITTEN = Fact(
    "ema_overwrite_frequency",
    "When do averages replace the weights if `ema_overwrite_frequency` is 0?",
    lambda r: None if not r.is_keras_3 else EVERY_STEP if r.backend == "jax" else NEVER,
    {EVERY_STEP: "replaced them at each step", NEVER: "replaced them never"},
    "`backend/jax/optimizer.py` of Keras 3",
)
LATE, WHOLE = "late", "whole"


def _reads(r: Release) -> str:
    if not r.is_native or r.backend != TENSORFLOW:
        return WHOLE
    if r.is_standalone:
        return LATE if r.keras_number < (2, 3) else WHOLE
    return LATE if r.tensorflow < (1, 9) else WHOLE


READS = Fact(
    "gradients",
    "Can a gradient be computed from weights that the same step has moved?",
    _reads,
    {LATE: "read some weights after they were moved, by chance", WHOLE: "read all weights before the step"},
    "measured, 20 steps each of SGD: Keras 2.0.0 on TF 1.0 and 2.0.8 on TF 1.2 in 20, 2.2.4 on TF 1.12 in 3; tf.keras"
    " of TF 1.2 and 1.5 in 20, of 1.3 in 19, of 1.7 in 1, of 1.4, 1.6, 1.8 and of 1.10 to 1.13 in 0",
)
FACTS = (ACCUMULATION, FROZEN, OVERWRITTEN, READS)
