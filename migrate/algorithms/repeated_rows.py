"""What a release does with each gradient of a row that a batch has several times: `repeated_rows` of `optim`.

Run for each algorithm: Keras 3.0 to 3.15 on TensorFlow (backend/tensorflow/sparse.py, which keeps IndexedSlices
separate until they meet an array). Read: OptimizerV2, and `experimental` of 2.9 and 2.10 (`update_step`,
`_deduplicate_sparse_grad`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from migrate.algorithms.arguments import Arguments
from migrate.algorithms.clipping import LIMITS
from migrate.algorithms.spec import Algorithm
from migrate.bytes.messages import some
from migrate.claims import RELEASE, SET, Origin, confirming
from migrate.facts import rows as facts
from migrate.generations import traits
from migrate.releases.narrowing import candidates
from migrate.releases.versions import Versions
from migrate.state import OptimizerState
from optim import keras_differences
from optim.errors import HyperparameterError
from optim.keras_differences import CLIP, LINEAR, SQUARE

REPEATED, ABSENT = "repeated_rows", "absent"
"""An argument of `optim`, and an override: no batch has a row of a table several times."""
CONFIRMED = confirming(REPEATED, ABSENT)
DONE = {CLIP: "clips", SQUARE: "squares"}
OWN_WAY = ("Adadelta", "Adamax")
"""Algorithms of 2.9 with another rule than squaring each gradient or only their sum.

These are Adadelta's second slot, and the maximum of Adamax.
"""


def done(
    generation: str | None, algorithm: Algorithm, values: Mapping[str, Any], versions: Versions
) -> tuple[str, ...]:
    """Return what a generation does with the gradients of repeated rows.

    Args:
      values: with the limits of gradients.
      versions: what a source shows of the release that wrote it.
    """
    if generation is None:
        return ()
    releases = candidates(generation, versions)
    if traits(generation).squares_repeated_rows:
        doing = acting(keras_differences.repeated_rows(keras_differences.KERAS_3, algorithm.name, values), values)
        return doing if facts.SQUARED.may_be(facts.EACH, releases) else ()  # other backends have no slices
    clips = any(facts.clipped(limit).may_be(facts.EACH, releases) for limit in LIMITS if values.get(limit))
    # Ftrl computes with arrays
    is_square = algorithm.name not in (*LINEAR, "Ftrl") and facts.SQUARED.may_be(facts.EACH, releases)
    return (*((CLIP,) if clips else ()), *((SQUARE,) if is_square else ()))


def acting(doing: Iterable[str], values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words of `repeated_rows` that have an effect: clipping words need a limit."""
    return tuple(word for word in doing if word != CLIP or any(values.get(limit) for limit in LIMITS))


def _is_said(generation: str, algorithm: Algorithm, values: Mapping[str, Any], doing: Collection[str]) -> bool:
    """Return whether `repeated_rows` can express what is done.

    It cannot if Keras 3 mistakes rows for other rows. This happens when Keras 3 divides by zero, or takes the root of a
    negative number. Centered RMSprop may do the latter: its mean square may be less than the square of the mean.
    """
    if SQUARE not in doing:
        return True
    in_its_own_way = traits(generation).repeats_in_own_way and algorithm.name in OWN_WAY
    return not in_its_own_way and not values.get("centered") and bool(values.get("epsilon", 1.0))


def _is_known(generation: str, values: Mapping[str, Any], doing: Collection[str], versions: Versions) -> bool:
    """Return whether all releases that can have written the source do so."""
    releases = candidates(generation, versions)
    asked = [facts.clipped(limit) for limit in LIMITS if CLIP in doing and values.get(limit)]
    return all(fact.of(releases) for fact in (*asked, *((facts.SQUARED,) if SQUARE in doing else ())))


def put_in(
    arguments: Arguments,
    config: Mapping[str, Any],
    algorithm: Algorithm,
    generation: str,
    tables: Sequence[str],
    versions: Versions,
) -> None:
    """Add the argument with its origin if tables need it, or warn why steps may differ."""
    setting = config.get(REPEATED)
    if setting is not None and setting != ABSENT:
        if not isinstance(setting, (list, tuple)) or any(word not in DONE for word in setting):
            raise HyperparameterError(f"{REPEATED} must be {ABSENT} or a list of {', '.join(DONE)}, got {setting!r}")
        arguments.values[REPEATED] = list(setting)
        return
    doing = done(generation, algorithm, arguments.values or config, versions)
    if setting == ABSENT or not tables or not doing:
        return
    is_said = _is_said(generation, algorithm, {**config, **arguments.values}, doing)
    if is_said and _is_known(generation, arguments.values or config, doing, versions):
        arguments.values[REPEATED] = list(doing)
        arguments.origins[REPEATED] = Origin(
            REPEATED, list(doing), RELEASE, f"that release {words(doing)} each gradient"
        )
        return
    arguments.doubt(
        REPEATED,
        f"{some(tables)}: dtopt assumes that no batch contains a row several times. If one does, that release"
        f" {words(doing)} each gradient of the"
        f" row{'' if is_said else ', in a way that optim cannot reproduce'}, and optim {words(doing)} their sum",
        confirm=f"{CONFIRMED} or {confirming(REPEATED, list(doing))}" if is_said else CONFIRMED,
    )


def words(doing: Collection[str]) -> str:
    return " and ".join(DONE[operation] for operation in doing)


_EMBEDDINGS = re.compile(r"(?:^|.*[/.])embeddings(?:_\d+)?")


def embeddings(names: Sequence[str]) -> list[str]:
    """Return the variables that `migrate` assumes to be weights of Embedding layers."""
    return [name for name in names if _EMBEDDINGS.fullmatch(name)]


def looked_up(names: Sequence[str], known: Collection[str] | None) -> list[str]:
    """Return the variables with sparse gradients: the known ones, or, if nothing is known, by their names."""
    return embeddings(names) if known is None else [name for name in names if name in known]


def is_absent(origins: Iterable[Origin]) -> bool:
    """Return whether the user set that no batch has a row several times."""
    return any(o.subject == REPEATED and o.kind == SET and o.value == ABSENT for o in origins)


def of_source(state: OptimizerState, algorithm: Algorithm) -> tuple[str, ...]:
    """Return what the source does with repeated rows, whether or not `optim` can do it."""
    setting = state.hyperparameters.get(REPEATED)
    if setting is not None or state.source is None:
        return acting(setting or (), state.hyperparameters)
    return done(state.source.generation, algorithm, state.hyperparameters, state.source.versions)


def is_alike(state: OptimizerState, algorithm: Algorithm, theirs: Collection[str]) -> bool:
    """Return whether the target treats repeated rows as the source does, even in a way that `optim` cannot express."""
    ours, source = of_source(state, algorithm), state.source
    if set(theirs) != set(ours) or source is None or source.generation is None:
        return set(theirs) == set(ours)
    values = state.hyperparameters
    return bool(values.get(REPEATED)) or not ours or _is_known(source.generation, values, ours, source.versions)


def difference(state: OptimizerState, algorithm: Algorithm, theirs: Collection[str], called: str) -> str:
    """Return how the target named `called` treats repeated rows differently from the source.

    Empty if both treat them the same, or if there is no table.
    """
    sparse = state.source.sparse if state.source is not None else None
    tables = looked_up([v.name for v in state.variables if v.trainable], sparse)
    ours = of_source(state, algorithm)
    if is_absent(state.origins) or set(theirs) == set(ours) or not (tables or state.hyperparameters.get(REPEATED)):
        return ""
    if any(o.subject == REPEATED and not o.certain for o in state.origins):
        return ""  # that warning covers it
    source_way, target_way = [
        f"{words(done)} each of its gradients" if done else "takes their sum" for done in (ours, theirs)
    ]
    where = f"{some(tables or ['a table'])}: if a batch contains a row several times"
    return f"{where}, the source {source_way}, and {called} {target_way}"
