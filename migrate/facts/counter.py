"""When releases count a step, and when a step reads the count."""

from __future__ import annotations

from functools import lru_cache

from migrate.facts.fact import Fact
from migrate.releases.table import Release
from migrate.releases.versions import THEANO

CORRECTED = ("Adam", "Adamax", "Nadam")
"""Algorithms whose own update depends on the count."""
BEFORE, BY_CHANCE = "before", "by chance"
FIRST, MIXED, LAST = "first", "mixed", "last"
SELDOM, ALWAYS = "seldom", "always"


@lru_cache
def read(algorithm: str, decays: bool) -> Fact:
    """Return the row of one algorithm; `decays`: whether its learning rate depends on the count."""

    def way(r: Release) -> str:
        if not r.is_native or r.backend == THEANO:  # Theano computes all updates from old values
            return BEFORE
        if r.traits.has_keras1_layers:
            is_raced = decays and algorithm not in (*CORRECTED, "SGD")
        elif r.is_standalone:
            is_raced = r.traits.counts_always or r.tensorflow >= (1, 13)
        elif algorithm not in CORRECTED:
            is_raced = decays
        elif r.tensorflow >= (1, 13):
            is_raced = decays or (algorithm != "Adam" and r.tensorflow < (1, 14))
        else:
            is_raced = r.tensorflow in ((1, 8), (1, 12))
        return BY_CHANCE if is_raced else BEFORE

    return Fact(
        "iterations",
        f"Does a step of {algorithm}{' with decay' if decays else ''} read the counter before it is raised?",
        way,
        {BEFORE: "read it before raising it", BY_CHANCE: "read it before or after raising it, by chance"},
        "measured: 30 steps each of Keras 2.3.1 on TF 1.15 (after: Adam 30, Adagrad with decay 30, SGD with decay 22),"
        " of tf.keras of TF 1.13 with decay (29 and 30), of Keras 1.2.2's Adagrad, RMSprop and Adadelta with decay"
        " (30), of Keras 2.0.8 and 2.2.4 on TF 1.0 to 1.12 (never); 4 to 12 steps of Keras 2.2.4 and 2.2.5 on TF 1.13"
        " and 1.15 (both, sometimes in one run); 240 steps each of Adam, Adamax, and Adam with decay of tf.keras: TF"
        " 1.4 to 1.7 and 1.9 to 1.11 never, 1.8 in 232, 1.12 in 39, 1.13 Adamax always and Adam's decay in 4 of 80",
    )


@lru_cache
def raised(algorithm: str) -> Fact:
    """Return the row on when a step of an algorithm raises the counter."""

    def way(r: Release) -> str:
        if r.is_native and not r.is_standalone and algorithm in ("Adam", "Adamax"):
            if r.tensorflow >= ((1, 13) if algorithm == "Adam" else (1, 14)):
                return FIRST
            return MIXED if r.tensorflow == (1, 13) else LAST
        return LAST

    return Fact(
        "iterations",
        f"When does a step of {algorithm} raise the counter?",
        way,
        {
            LAST: "raised it after the step",
            MIXED: "raised it before the step, or before the decay alone",
            FIRST: "raised it before the moments are corrected, so that the decay alone may be a step ahead",
        },
        "graphs of TF 1.13 to 1.15; native Adam of TF 2.2, 5 steps",
    )


@lru_cache
def counted(algorithm: str) -> Fact:
    """Return the row on whether a step of an algorithm without schedule is counted."""

    def way(r: Release) -> str:
        if algorithm in CORRECTED and not r.is_tf_train:
            return ALWAYS
        if r.is_tf_train or r.traits.has_keras1_layers:
            return SELDOM
        if r.is_before_tf_keras:
            return ALWAYS if r.keras_number >= (2, 0, 5) else SELDOM
        return SELDOM if r.is_native and not r.is_standalone and r.tensorflow < (1, 4) else ALWAYS

    return Fact(
        "iterations",
        f"Is each step of {algorithm} counted?",
        way,
        {SELDOM: "counted steps only if something asks for the count", ALWAYS: "counted each step"},
        "`optimizers.py` of Keras 1.2, 2.0.4 and 2.0.8, and of TF 1.3 and 1.4",
    )


FACTS = (
    *(read(algorithm, decays) for algorithm in ("SGD", "RMSprop", "Adam", "Adamax") for decays in (False, True)),
    *(raised(algorithm) for algorithm in ("Adam", "Adamax")),
    *(counted(algorithm) for algorithm in ("SGD", "Adam")),
)
"""Rows of some algorithms; each other algorithm behaves as one of these."""
