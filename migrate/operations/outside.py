"""What the program did around the optimizer, and nobody says with which numbers."""

from __future__ import annotations

from collections.abc import Mapping

from migrate.algorithms import tf_train, wrappers
from migrate.algorithms.clipping import LIMITS
from migrate.bytes.arrays import LazyArray
from migrate.evidence import DEFAULT, FILE, GRAPH, SET, UNINTERPRETED, Origin, confirming
from migrate.models import loss_scale
from migrate.operations import overriding
from migrate.operations.configuration import Configuration
from migrate.state import (
    CHANGED,
    GATHERED,
    LATE_READ,
    LOST,
    NO_KERNEL,
    ON_THEIR_WAY,
    OTHER_COMPILE,
    OTHERS_GRAPH,
    SPARSE_CLIPPING,
    Stored,
)
from optim.errors import HyperparameterError

WHOLE = (OTHERS_GRAPH, OTHER_COMPILE, GATHERED, LATE_READ, LOST, NO_KERNEL)
"""What is said of these is a whole sentence."""
_OF_PROGRAM = f"{confirming(CHANGED, overriding.OF_PROGRAM)}, if the program goes on doing it"
CONFIRMS = {
    "learning_rate": "--set learning_rate=VALUE",
    GATHERED: confirming(GATHERED, None),
    CHANGED: _OF_PROGRAM,
    "clipping": f"--set clipnorm=VALUE, if that is its limit, or {_OF_PROGRAM}",
}


def origins(
    stored: Stored, made: Configuration, known: Mapping[str, Origin], unmapped: Mapping[str, LazyArray]
) -> list[Origin]:
    """Doubts about what neither graph nor config says in numbers, and what dtopt doubted when it wrote the source.

    Args:
      known: origins of the hyperparameters.
      unmapped: what the source holds besides slots and variables.

    Raises:
      HyperparameterError: another word for what is done to gradients than `program`, or for what is gathered of them
        than none.
    """
    _check_words(made.overrides)
    found = (_doubt(what, how, made, known) for what, how in stored.outside.items())
    return [*(origin for origin in found if origin is not None), *_divided(stored, made, unmapped), *stored.doubts]


def _divided(stored: Stored, made: Configuration, unmapped: Mapping[str, LazyArray]) -> list[Origin]:
    """Each optimizer of Keras 3 divides gradients by its `loss_scale_factor`, and a LossScaleOptimizer around it
    multiplies the loss by its own scale alone, until 3.10 took the factor off (`loss_scale_optimizer.py`)."""
    factor = made.config.get("loss_scale_factor")
    if stored.generation != "keras3" or not factor or factor == 1 or CHANGED in made.overrides:
        return []
    if {*map(wrappers.plain, made.wrappers)}.isdisjoint(wrappers.LOSS_SCALE) and loss_scale.kept(unmapped) is None:
        return []
    doubt = (
        f"gradients: inside of a LossScaleOptimizer Keras before 3.10 divides them by loss_scale_factor = {factor!r},"
        " and multiplies no loss by it; the target does not divide them"
    )
    return [Origin(CHANGED, None, UNINTERPRETED, doubt=doubt, confirm=CONFIRMS[CHANGED])]


def _check_words(overrides: Mapping[str, object]) -> None:
    if overrides.get(CHANGED, overriding.OF_PROGRAM) != overriding.OF_PROGRAM:
        raise HyperparameterError(
            f"{CHANGED} is {overrides[CHANGED]!r}; it takes {overriding.OF_PROGRAM}: the"
            " program goes on changing gradients as it did before it gives them to the optimizer"
        )
    if overrides.get(GATHERED) is not None:
        raise HyperparameterError(
            f"{GATHERED} is {overrides[GATHERED]!r}; it takes none: the program clears what it has gathered of"
            " gradients before the next step"
        )


def _doubt(what: str, how: str, made: Configuration, known: Mapping[str, Origin]) -> Origin | None:
    """None where a person or the source has settled it."""
    own = known.get(what)
    limit = next((known[key] for key in LIMITS if key in known and known[key].value), None)
    if _is_settled(what, made, own, limit):
        return None
    doubt = how if what in WHOLE else f"{what}: {how}, which is not understood"
    confirm = CONFIRMS.get(what, "")
    if own is not None and (what != "learning_rate" or own.kind == GRAPH):
        confirm = confirming(what, own.value)
    if what == SPARSE_CLIPPING and limit is not None:
        doubt, confirm = f"clipping: {how}", confirming(limit.subject, limit.value)
    return Origin(what, None, UNINTERPRETED, doubt=doubt, confirm=confirm)


def _is_settled(what: str, made: Configuration, own: Origin | None, limit: Origin | None) -> bool:
    """Whether a person or the source says it after all, or another doubt does, or it does not come into play."""
    if what == "clipping" and limit is not None and limit.kind in (SET, GRAPH, FILE):
        return True
    if what == SPARSE_CLIPPING and (limit is None or limit.kind == SET):
        return True
    if (CHANGED if what in ON_THEIR_WAY else what) in {CHANGED, GATHERED} & made.overrides.keys():
        return True
    if what == NO_KERNEL and not tf_train.has_kernel(made.algorithm, made.config):
        return True
    if own is None:
        return False
    said = own.kind == DEFAULT and bool(own.doubt)
    return said or what == "trust_coefficient" or own.kind in ((SET, FILE) if what == "learning_rate" else (SET,))
