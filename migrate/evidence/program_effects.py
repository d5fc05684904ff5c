"""Find what the program did around the optimizer, with numbers that the source does not show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from migrate.algorithms import keras_packages, nadam, tf_train, wrappers
from migrate.algorithms.clipping import LIMITS
from migrate.algorithms.configuration import Configuration
from migrate.bytes.arrays import LazyArray
from migrate.claims import DEFAULT, FILE, GRAPH, SET, UNINTERPRETED, Origin, confirming
from migrate.evidence.configuration import RATES, confirms
from migrate.evidence.user_input import settings
from migrate.facts.steps import LATE, READS
from migrate.models import loss_scale, normalized_config
from migrate.releases.narrowing import candidates
from migrate.rules.comparison import same
from migrate.state import (
    CHANGED,
    CLIPPING,
    GATHERED,
    LATE_READ,
    LOST,
    NO_KERNEL,
    OTHER_COMPILE,
    OTHERS_GRAPH,
    SPARSE_CLIPPING,
    Effects,
    Stored,
)
from optim.errors import HyperparameterError

WHOLE = (OTHERS_GRAPH, OTHER_COMPILE, GATHERED, LATE_READ, LOST, NO_KERNEL)
"""Effects whose text is a whole sentence."""
_OF_PROGRAM = f"{confirming(CHANGED, settings.OF_PROGRAM)}, if the program continues to do it"
CONFIRMS = {
    "learning_rate": "--set learning_rate=VALUE",
    GATHERED: confirming(GATHERED, None),
    CHANGED: _OF_PROGRAM,
    CLIPPING: "--set clipnorm=VALUE, if it limits the norm of each gradient by that and does nothing more, or"
    f" --set global_clipnorm=VALUE, if one norm over all gradients, or {_OF_PROGRAM}",
}


def origins(
    stored: Stored, configuration: Configuration, known: Mapping[str, Origin], unmapped: Mapping[str, LazyArray]
) -> list[Origin]:
    """Return warnings about what neither graph nor config specifies in numbers.

    These include the warnings that dtopt stored when it wrote the source.

    Args:
      known: origins of the hyperparameters.
      unmapped: what the source holds in addition to slots and variables.

    Raises:
      HyperparameterError: `gradients` is set to another word than `program`, or the gathered gradients are set to
        anything except `none`.
    """
    _check_words(configuration.overrides)
    effects = stored.effects
    effects = replace(effects, gradients=effects.gradients or _of_model(stored))
    if effects.no_kernel and not _is_known_rule(stored, configuration):
        effects = replace(effects, no_kernel="")
    moving = [_moving(key, how, known) for key, how in effects.moving.items()]
    doubts = [_doubt(what, how, effects, configuration, known) for what, how in effects.by_subject().items()]
    beside = (*_scaled(stored, configuration, unmapped), *_of_rates(stored, known))
    return [*(origin for origin in (*doubts, *moving) if origin is not None), *beside, *stored.doubts]


def _of_model(stored: Stored) -> str:
    """Return a warning if a program derived the compiled model's class from Sequential or from a layer graph.

    Keras needs no class for layers in a row or in a graph: such a class exists for its `train_step`.
    """
    name = None if stored.model is None else normalized_config.own_class(stored.model.config)
    return "" if name is None else f"the train_step of the model's class {name!r} may change them"


def _scaled(stored: Stored, configuration: Configuration, unmapped: Mapping[str, LazyArray]) -> list[Origin]:
    """Return what Keras 3 does inside a LossScaleOptimizer and no target does.

    Each optimizer divides gradients by its `loss_scale_factor`. Its wrapper multiplies the loss only by its own scale;
    3.10 removed the factor. On JAX, Nadam's product is not a variable that a step could change
    (`loss_scale_optimizer.py`, `nadam.py` of Keras 3.0 to 3.15).
    """
    is_wrapped = not {*map(wrappers.plain, configuration.wrappers)}.isdisjoint(wrappers.LOSS_SCALE)
    if not stored.traits.lists_loss_scale or not (is_wrapped or loss_scale.kept(unmapped)):
        return []
    doubts, factor = [], configuration.config.get("loss_scale_factor")
    scales = [name for name in map(wrappers.plain, configuration.wrappers) if name in wrappers.LOSS_SCALE]
    if len(scales) > 1:
        doubt = "gradients: a LossScaleOptimizer in another divides them by its scale, by which no loss was multiplied"
        doubts.append(Origin("loss scale", None, UNINTERPRETED, doubt=doubt))
    if factor and factor != 1 and CHANGED not in configuration.overrides:
        doubt = (
            "gradients: inside of a LossScaleOptimizer Keras before 3.10 divides them by loss_scale_factor ="
            f" {factor!r}, and multiplies no loss by it; the target does not divide them"
        )
        doubts.append(Origin(CHANGED, None, UNINTERPRETED, doubt=doubt, confirm=CONFIRMS[CHANGED]))
    if configuration.algorithm.name == nadam.ALGORITHM.name and stored.versions.backend == "jax":
        doubt = (
            "on JAX, inside of a LossScaleOptimizer, Keras restarts the product of Nadam's momenta at each step, and"
            " no target does"
        )
        doubts.append(Origin(nadam.PRODUCT, None, UNINTERPRETED, doubt=doubt))
    return doubts


def _check_words(overrides: Mapping[str, object]) -> None:
    if overrides.get(CHANGED, settings.OF_PROGRAM) != settings.OF_PROGRAM:
        raise HyperparameterError(
            f"{CHANGED} is {overrides[CHANGED]!r}; it takes {settings.OF_PROGRAM}: the program continues to change"
            " gradients before it gives them to the optimizer"
        )
    if overrides.get(GATHERED) is not None:
        raise HyperparameterError(
            f"{GATHERED} is {overrides[GATHERED]!r}; only {confirming(GATHERED, None)} is possible: the program"
            " clears the gradients that it has gathered before the next step"
        )


def _is_known_rule(stored: Stored, configuration: Configuration) -> bool:
    """Return whether a graph that updates variables by the assumed class would show it."""
    known = keras_packages.is_plain if stored.traits.is_native else tf_train.has_kernel
    return known(configuration.algorithm, configuration.config)


def _doubt(
    what: str, how: str, effects: Effects, configuration: Configuration, known: Mapping[str, Origin]
) -> Origin | None:
    """Return a warning, None if the user or the source has resolved it."""
    origin = known.get(what)
    limit = next((known[key] for key in LIMITS if key in known and known[key].value), None)
    said_there = what in effects.moving and origin is not None and origin.kind != DEFAULT
    if said_there or _is_settled(what, configuration, origin, limit):
        return None
    doubt = how if what in WHOLE else f"{what}: {how}, which dtopt does not understand"
    confirm = CONFIRMS.get(what, "")
    if origin is not None and (what != "learning_rate" or origin.kind in (GRAPH, FILE)):
        confirm = confirming(what, origin.value)
    if what == SPARSE_CLIPPING and limit is not None:
        doubt, confirm = f"clipping: {how}", confirming(limit.subject, limit.value)
    return Origin(what, None, UNINTERPRETED, doubt=doubt, confirm=confirm)


def _moving(key: str, how: str, known: Mapping[str, Origin]) -> Origin | None:
    """Return a warning, None if the user gives a schedule or if the value is a default, which has its own warning."""
    origin = known.get(key)
    if origin is None or origin.kind == DEFAULT or isinstance(origin.value, Mapping):
        return None
    return Origin(
        key,
        origin.value,
        UNINTERPRETED,
        doubt=f"{how}; steps change what it is made of, and {origin.value!r} is one number",
        confirm=confirms(key, True),
    )


def _is_settled(what: str, configuration: Configuration, origin: Origin | None, limit: Origin | None) -> bool:
    """Return whether the user, the source or another warning covers the effect, or whether it does not matter."""
    if what == CLIPPING and limit is not None and limit.kind in (SET, GRAPH, FILE):
        return True
    if what == SPARSE_CLIPPING and (limit is None or limit.kind == SET):
        return True
    if (CHANGED if what == CLIPPING else what) in {CHANGED, GATHERED} & configuration.overrides.keys():
        return True
    if origin is None:
        return False
    is_warned = origin.kind == DEFAULT and bool(origin.doubt)
    return is_warned or what == "trust_coefficient" or origin.kind == SET


def late_reads(stored: Stored, values: Mapping[str, object]) -> tuple[str, ...]:
    """Return a note if the source may have computed steps from weights that the same step had already changed.

    One norm of all gradients waits for all.
    """
    releases = candidates(stored.generation or "", stored.versions)
    if not stored.versions.keras or values.get("global_clipnorm") or not READS.may_be(LATE, releases):
        return ()
    return (
        "Keras of that time on TensorFlow 1 may have made the gradient of a layer from weights that the same step had"
        " moved already, by chance; the target takes all weights as they were before the step",
    )


def _of_rates(stored: Stored, known: Mapping[str, Origin]) -> list[Origin]:
    """Return a warning if a variable is named like a learning rate, differs from it, and no graph shows its use."""
    rate = known.get("learning_rate")
    if not stored.traits.counts_in_program or stored.graph_config is not None or rate is None or rate.kind == SET:
        return []
    called = (v for v in stored.variables if v.shape == () and v.name.rpartition("/")[2] in RATES)
    numbers = ((v.name, v.array.number()) for v in called if v.array is not None)
    other = next(((name, number) for name, number in numbers if not same(number, rate.value)), None)
    if other is None or isinstance(rate.value, Mapping):
        return []
    text = f"learning_rate is {rate.value!r}, and no graph shows the use of {other[0]!r}, which is {other[1]:.9g}"
    which = f"{confirming('learning_rate', other[1])} or {confirming('learning_rate', rate.value)}"
    return [Origin("learning_rate", rate.value, UNINTERPRETED, doubt=text, confirm=which)]
