"""Adafactor: means over rows and columns from rank 2 on, whole second moments below.

Keras keeps the product of the two means as a third slot `v` of factored variables. It overwrites `v` before reading it,
so `migrate` counts it as unmapped. The same goes for the scalar zeros that Keras stores as r and c of the other
variables.

Sources: `optimizers/adafactor.py` 2.15 and 3.15.
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms.spec import Algorithm, Block, Blocks, Config, constants, number, slots_of
from optim.rules.adafactor import AdafactorRule

NUMBERS = {"beta_2_decay": -0.8, "epsilon_1": 1e-30, "epsilon_2": 1e-3, "clip_threshold": 1.0}


def _blocks(generation: str, config: Config) -> tuple[Blocks, ...]:
    return tuple((Block(("r", "c", "v"), factored=kind),) for kind in ("gaps", "zeros"))


def _arguments(config: Config, generation: str) -> dict[str, Any]:
    # Keras caps the learning rate whatever `relative_step` is.
    return {**{key: number(config, key) for key in NUMBERS}, "relative_step": True}


ALGORITHM = Algorithm(
    name="Adafactor",
    slots=slots_of(AdafactorRule(), r=("r",), c=("c",), v=("v", "velocity")),
    blocks=_blocks,
    arguments=_arguments,
    defaults=constants(learning_rate=0.001, **NUMBERS, relative_step=True),
    uses_count=True,
)
