"""The algorithms whose state `migrate` converts, one file each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import optim
from migrate.algorithms import (
    adabelief,
    adadelta,
    adafactor,
    adagrad,
    adam,
    adamax,
    adamw,
    cocob,
    conditional_gradient,
    ftrl,
    lamb,
    lars,
    lion,
    muon,
    nadam,
    novograd,
    proximal_adagrad,
    rectified_adam,
    rmsprop,
    schedule_free_adamw,
    sgd,
    wrappers,
    yogi,
)
from migrate.algorithms.spec import Algorithm
from migrate.errors import MissingHintError
from optim.errors import UnsupportedError

ALGORITHMS: tuple[Algorithm, ...] = tuple(
    module.ALGORITHM
    for module in (
        *(sgd, rmsprop, adagrad, adadelta, adam, adamw, adamax, nadam, ftrl, lion, adafactor, lamb, rectified_adam),
        *(adabelief, yogi, novograd, proximal_adagrad, lars, cocob, conditional_gradient, muon, schedule_free_adamw),
    )
)


_IN_MODULE = re.compile(r"(tf|tensorflow|tfa|tensorflow_addons|keras|tf_keras)\.(\w+\.)*\w+")
"""A class name with its module, as programs write it. Files store the two separately."""


def is_known(name: str) -> bool:
    """Return whether a class is one of ALGORITHMS; False for a class whose state alone can be migrated."""
    return any(algorithm.name == name for algorithm in ALGORITHMS)


def slot_names(name: str, hyperparameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the slots that an optimizer keeps with these options; empty if its rule is unknown."""
    return tuple(find(name).wanted(hyperparameters)[1]) if is_known(name) else ()


def find(class_name: str) -> Algorithm:
    """Return the algorithm of a Keras class name, which may begin with `Custom>`.

    Raises:
      UnsupportedError: the class is not among ALGORITHMS; the message lists them.
      MissingHintError: the class wraps another optimizer.
    """
    plain = class_name.rsplit(">", 1)[-1]
    for algorithm in ALGORITHMS:
        if algorithm.name.lower() == plain.lower():
            return algorithm
    if plain in (*wrappers.LOSS_SCALE, *wrappers.SETTINGS):
        raise MissingHintError(
            f"{plain} wraps another optimizer. Name the class of the inner optimizer with --set"
            f" class_name=CLASS; dtopt then asks for the settings of {plain}"
        )
    if _IN_MODULE.match(plain):
        raise UnsupportedError(
            f"the optimizer class is given as {class_name!r}. Give the class without its module, as in --set"
            f" class_name={plain.rpartition('.')[2]}"
        )
    known = ", ".join(a.name for a in ALGORITHMS)
    if plain in optim.__all__:
        raise UnsupportedError(
            f"this dtopt cannot read the state of {class_name!r}; it reads the state of {known}. Restart from"
            f" the weights, with optim.{plain} or with the original class"
        )
    raise UnsupportedError(
        f"this dtopt does not know the rule of {class_name!r}; it knows the rules of {known}. To migrate the"
        " state for a custom rule, add --set own_rule=true"
    )
