"""List everything that affects a training step, and the origin of each target's answer.

A source and a target make the same step only if they agree in each of these. `comparison` reads here which arguments it
compares one by one, and `migrate.live` reads what to ask a live optimizer and its variables. A test fails if an
argument of `optim` is in no entry, or if an entry has no answer for a target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from migrate.releases.modules import GENERATION

OPTIM, TORCH, OPTAX = "optim", "torch", "optax"
KERAS3, TF_KERAS, LEGACY = GENERATION.values()
LIVE = (OPTIM, KERAS3, TF_KERAS, LEGACY, TORCH, OPTAX)
"""Frameworks whose live optimizers `migrate` fills. The first four have the names of `Live.generation`."""
FILES = ("keras", "tf-keras", "slots")
"""Targets of `migrate_checkpoint` that hold variables."""

ARGUMENT = "its configuration contains it; arguments are compared one by one"
ASKED = "dtopt reads it from the optimizer or its variables"
NEVER = "it never does this, so a source that does is not continued exactly"
UNKNOWN = "it does not show this, so a source that does this is not continued exactly"
TRIED = "dtopt compares its steps with the source's, on numbers made for it"
WRITTEN = "dtopt writes it into the target; a difference of the loader is a reason"
NOTED = "it is a part of the program and not of the target; a warning names it"


@dataclass(frozen=True)
class Factor:
    """One entry.

    Attributes:
      arguments: of `optim`, which express it; empty if only a program or a model does.
      answers: target -> one of the texts above.
    """

    name: str
    arguments: tuple[str, ...]
    answers: Mapping[str, str]


_KERAS = (KERAS3, TF_KERAS, LEGACY)
_COMPARED = {**dict.fromkeys((OPTIM, *_KERAS, TORCH), ARGUMENT), OPTAX: TRIED, **dict.fromkeys(FILES, WRITTEN)}
"""Answers for an argument that a config has."""
_KEPT = {**_COMPARED, OPTAX: NEVER}
"""Answers for an argument that needs its own slots or counters; no state of optax has a place for these."""
_ASKED = {**dict.fromkeys((OPTIM, *_KERAS, TORCH, OPTAX), ASKED), **dict.fromkeys(FILES, WRITTEN)}
_ONLY_OPTIM = {**_ASKED, **dict.fromkeys((*_KERAS, TORCH, OPTAX), NEVER)}

RULE, RATE, CLIPPING, DECAY = "rule", "learning rate", "clipping", "weight decay"
ACCUMULATION, AVERAGES, LOOKAHEAD, COPIES = "gradient accumulation", "averages", "lookahead", "master copies"
CAUTIOUS = "cautious updates"
BITS = "state in few bits"
TRAINED, CONSTRAINT, DECAYED = "trained variables", "constraints", "weight decay exclusions"
MULTIPLIER, EXCEPTED = "learning-rate multipliers", "exceptions of the rule"
LAZY, REPEATED, LOSS_SCALE = "rows without a gradient", "repeated rows", "loss scale"
FIRST, DTYPE, ROUNDING, METHODS = "first values of slots", "dtype", "rounding", "replaced methods"

FACTORS = (
    Factor(RULE, (), _COMPARED),  # all that a rule declares and that is in no other entry
    Factor(RATE, ("learning_rate", "lr", "decay"), _COMPARED),
    Factor(CLIPPING, ("clipnorm", "clipvalue", "global_clipnorm", "clip_order", "adaptive_grad_clip"), _COMPARED),
    Factor(DECAY, ("weight_decay", "decoupled_weight_decay", "learning_rate_in_weight_decay"), _COMPARED),
    Factor(ACCUMULATION, ("gradient_accumulation_steps", "count_calls"), _KEPT),
    Factor(AVERAGES, ("use_ema", "ema_momentum", "ema_overwrite_frequency", "stochastic_average"), _KEPT),
    Factor(LOOKAHEAD, ("lookahead",), _KEPT),
    Factor(CAUTIOUS, ("cautious",), _KEPT),
    Factor(COPIES, ("master_copies",), _KEPT),
    Factor(BITS, ("slot_dtype", "stochastic_rounding", "rounding_seed"), _KEPT),
    Factor(TRAINED, (), {**_ASKED, OPTAX: TRIED}),
    Factor(CONSTRAINT, (), {**_ASKED, TORCH: NEVER, OPTAX: NEVER, "slots": NOTED}),
    Factor(DECAYED, ("weight_decay_exclude",), {**_ASKED, LEGACY: NEVER, OPTAX: TRIED}),
    Factor(MULTIPLIER, ("learning_rate_multipliers",), _ONLY_OPTIM),
    Factor(EXCEPTED, ("exclude_from_layer_adaptation", "exclude_layers"), {**_ASKED, TORCH: NEVER, OPTAX: NEVER}),
    Factor(LAZY, ("lazy_rows", "lazy_rows_keep_slots"), {**_ASKED, TORCH: NEVER, OPTAX: NEVER}),
    Factor(REPEATED, ("repeated_rows",), _ASKED),
    Factor(
        LOSS_SCALE,
        ("loss_scale", "loss_scale_factor", "loss_scale_growth_steps"),
        {**_ASKED, TORCH: UNKNOWN, OPTAX: UNKNOWN, "slots": NOTED},
    ),
    Factor(FIRST, ("initial_accumulator_value", "initial_velocity", "ema_start"), _ASKED),
    Factor(DTYPE, (), _ASKED),
    Factor(ROUNDING, ("float32_powers",), _ASKED),
    Factor(METHODS, (), {**_ASKED, OPTAX: TRIED}),
)
BY_NAME = {factor.name: factor for factor in FACTORS}

NO_STEP = {"name", "mesh", "executor", "jit_compile", "slot_placement", "momentum_slot"}
"""Arguments that do not affect a step: names and places, and whether a slot is kept that no step reads."""
OF_VARIABLES = (TRAINED, CONSTRAINT, DECAYED, MULTIPLIER, EXCEPTED, LAZY)
"""Entries that are answered for each variable."""
CHOOSING = {*BY_NAME[DECAYED].arguments, *BY_NAME[MULTIPLIER].arguments, *BY_NAME[EXCEPTED].arguments, "lazy_rows"}
"""Arguments that choose variables by patterns.

The chosen variables are compared, as the same variable may have another name in a live model.
"""
ELSEWHERE = {a for factor in FACTORS for a in factor.arguments if factor.answers[OPTIM] == ASKED}
"""Arguments that are not compared one by one."""
