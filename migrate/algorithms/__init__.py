"""The algorithms whose state `migrate` carries, one file each."""

from __future__ import annotations

from migrate.algorithms import adadelta, adafactor, adagrad, adam, adamax, adamw, ftrl, lamb, lion, nadam, rmsprop, sgd
from migrate.algorithms.spec import Algorithm
from optim.errors import UnsupportedError

ALGORITHMS: tuple[Algorithm, ...] = (
    sgd.ALGORITHM,
    rmsprop.ALGORITHM,
    adagrad.ALGORITHM,
    adadelta.ALGORITHM,
    adam.ALGORITHM,
    adamw.ALGORITHM,
    adamax.ALGORITHM,
    nadam.ALGORITHM,
    ftrl.ALGORITHM,
    lion.ALGORITHM,
    adafactor.ALGORITHM,
    lamb.ALGORITHM,
)


def find(class_name: str) -> Algorithm:
    """The algorithm of a Keras class name, `Custom>` in front allowed.

    Raises:
      UnsupportedError: it is not among ALGORITHMS; the message lists them.
    """
    plain = class_name.rsplit(">", 1)[-1]
    for algorithm in ALGORITHMS:
        if algorithm.name.lower() == plain.lower():
            return algorithm
    known = ", ".join(a.name for a in ALGORITHMS)
    raise UnsupportedError(
        f"the optimizer is {class_name!r}, and this dtopt carries the state of {known}; a custom"
        " optimizer with the state of one of these can be migrated by naming that one in --optimizer-config"
    )
