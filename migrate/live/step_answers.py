"""The answers of a source and a live optimizer for each entry of `rules.step_factors` that configurations don't
have."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from migrate import claims
from migrate.bytes.messages import some
from migrate.generations import traits
from migrate.models import constraints, loss_scale
from migrate.models.loss_scale import Scaling
from migrate.rules import step_factors as factors
from migrate.rules.comparison import Rule, same
from migrate.state import OptimizerState, StoredVariable

NOT_STORED = object()
"""The answer of a source that does not store it: the live model's is right."""


@dataclass(frozen=True)
class Row:
    """A stored variable, and the live one: `name` for reports, `variable` for its framework."""

    stored: StoredVariable
    name: str
    variable: Any


Ask = Callable[[Row], Any]
"""A live optimizer's answer for one variable."""
Asks = Mapping[str, Ask]
"""By the name of an entry of `step_factors`."""


def _chosen(patterns: Iterable[str] | None, name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns or ())


def exceptions(values: Mapping[str, Any], *names: str) -> tuple[str, ...]:
    """Arguments of a rule that exclude a variable of these names."""
    exclusions = {argument: values.get(argument) for argument in factors.BY_NAME[factors.EXCEPTED].arguments}
    if values.get("exclude_embeddings"):
        exclusions["exclude_embeddings"] = ["(?i)embedding"]
    return tuple(argument for argument, patterns in exclusions.items() if any(_chosen(patterns, n) for n in names))


def multiplier(values: Mapping[str, Any], *names: str) -> float:
    """The factor of a variable's learning rate."""
    multipliers = (values.get("learning_rate_multipliers") or {}).items()
    return next((float(factor) for pattern, factor in multipliers if any(_chosen([pattern], n) for n in names)), 1.0)


def of_variables() -> dict[str, Ask]:
    """The answers of variables of TensorFlow and Keras, for any optimizer."""
    return {
        factors.TRAINED: lambda row: bool(getattr(row.variable, "trainable", True)),
        factors.CONSTRAINT: lambda row: constraints.of_variable(row.variable),
    }


MOVE, STAY, DECAY = "change", "do not change, nor do their slots", "do not change, but their slots decay"
"""How rows of a table that a sparse gradient leaves out are handled."""


def lazy(values: Mapping[str, Any], *names: str) -> str:
    """How the rows of a variable of these names that a sparse gradient leaves out are handled."""
    if not any(_chosen(values.get("lazy_rows"), name) for name in names):
        return MOVE
    return STAY if values.get("lazy_rows_keep_slots", True) else DECAY


class Source:
    """The answers of a source."""

    def __init__(self, state: OptimizerState):
        stored = self._stored = state.source
        self._values = state.hyperparameters
        self._constraints: Mapping[str, str] = {}
        self._is_known = stored is not None and (stored.model is not None or bool(stored.graph_seen))
        if stored is not None and not stored.traits.ignores_constraints:  # which ignores them, see `models.training`
            self._constraints = constraints.of_source(stored, [v.name for v in state.variables])
        open_ = (o.value for o in state.origins if o.subject == claims.TRAINED and not o.certain)
        self._unsure = {name for value in open_ if isinstance(value, (list, tuple)) for name in value}
        self.asks: Mapping[str, Callable[[StoredVariable], Any]] = {
            factors.TRAINED: lambda v: NOT_STORED if v.name in self._unsure else bool(v.trainable),
            factors.CONSTRAINT: self._constraint,
            factors.DECAYED: lambda v: not _chosen(self._values.get("weight_decay_exclude"), v.name),
            factors.MULTIPLIER: lambda v: multiplier(self._values, v.name),
            factors.EXCEPTED: lambda v: exceptions(self._values, v.name),
            factors.LAZY: lambda v: lazy(self._values, v.name),
        }

    def _constraint(self, variable: StoredVariable) -> Any:
        text = self._constraints.get(variable.name)
        if text is None:
            return None if self._is_known else NOT_STORED
        return text or "one that its graph applies"

    def lost_constraints(self, variables: Sequence[StoredVariable]) -> list[str]:
        """Constraints of the model's config for variables that the source does not have by that name."""
        stored = self._stored
        if stored is None or stored.model is None or stored.traits.ignores_constraints:
            return []
        ties = constraints.of_model(stored.model.config)
        return [f"{'/'.join((*t.layers[-1:], t.part))}" for t in ties if not any(t.is_of(v.name) for v in variables)]


UNUSED: Mapping[str, Any] = {
    factors.CONSTRAINT: None,
    factors.DECAYED: True,
    factors.MULTIPLIER: 1.0,
    factors.EXCEPTED: (),
    factors.LAZY: MOVE,
}
"""The answer of a framework that never does it."""


def _decay_text(have: Any, get: Any) -> str:
    applies, excluded = ("source", "live optimizer") if have else ("live optimizer", "source")
    return f"weight decay applies in the {applies} and is excluded in the {excluded}"


TEXTS: Mapping[str, Callable[[Any, Any], str]] = {
    factors.TRAINED: lambda have, get: (
        f"{'' if have else 'not '}trained in the source, and FLAG is {get} in the live model"
    ),
    factors.CONSTRAINT: lambda have, get: (
        f"the constraint is {have or 'none'} in the source and {get or 'none'} in the live model, which is kept"
    ),
    factors.DECAYED: _decay_text,
    factors.MULTIPLIER: lambda have, get: (
        f"the learning rate is multiplied by {have:g} in the source and by {get:g} in the live optimizer"
        " (learning_rate_multipliers)"
    ),
    factors.EXCEPTED: lambda have, get: (
        f"chosen by {' and '.join(have) or 'no exception'} in the source and by {' and '.join(get) or 'none'} in the"
        " live optimizer"
    ),
    factors.LAZY: lambda have, get: (
        f"rows that a sparse gradient leaves out {have} in the source and {get} in the live optimizer (set lazy_rows"
        " of optim)"
    ),
}


def differences(
    state: OptimizerState, framework: str, rows: Sequence[Row], asks: Asks, decays: bool, flag: str = "trainable"
) -> Iterator[str]:
    """Explain why variables change differently.

    Args:
      framework: one of `step_factors.LIVE`. asks: its answers.
      decays: whether weights decay in both.
      flag: the attribute of a live variable that freezes it.
    """
    source, known = (
        Source(state),
        {*state.parts.dropped, *(row.stored.name for row in rows)},
    )  # dropped: a reason already
    lacking = [v.name for v in state.variables if source.asks[factors.TRAINED](v) is True and v.name not in known]
    if lacking:
        yield f"{some(lacking)}: trained in the source, but not among the live variables"
    trained = [row for row in rows if source.asks[factors.TRAINED](row.stored) is not False]
    for name in factors.OF_VARIABLES:
        way = factors.BY_NAME[name].answers[framework]
        if way == factors.TRIED or (name == factors.DECAYED and not decays):
            continue
        names_by_answers: dict[tuple[Any, Any], list[str]] = {}
        for row in rows if name == factors.TRAINED else trained:
            have = source.asks[name](row.stored)
            get = asks[name](row) if way == factors.ASKED else UNUSED[name]
            if have is not NOT_STORED and have != get:
                names_by_answers.setdefault((have, get), []).append(row.name)
        for both, names in names_by_answers.items():
            yield f"{some(names)}: {TEXTS[name](*both).replace('FLAG', flag)}"
            if name == factors.TRAINED and both[1] and framework in (factors.TF_KERAS, factors.LEGACY):
                yield "variables of a frozen layer of tf_keras keep trainable=True: give model.trainable_variables"
    if lost := source.lost_constraints(state.variables):
        yield f"{some(lost)}: the source has a constraint on it, but no variable of that name to compare"


def acting(
    state: OptimizerState, framework: str, rows: Sequence[Row], asks: Asks, source: Rule, live: Rule
) -> tuple[Rule, Rule]:
    """The two rules without a weight decay from which all of these variables are excluded."""
    ask = asks.get(factors.DECAYED) if factors.BY_NAME[factors.DECAYED].answers[framework] == factors.ASKED else None
    is_stored = Source(state).asks[factors.DECAYED]
    acts = any(is_stored(row.stored) for row in rows), ask is None or any(map(ask, rows))
    source, live = (
        rule if is_acting or not rows else replace(rule, values={**rule.values, "weight_decay": None})
        for rule, is_acting in zip((source, live), acts, strict=True)
    )
    return source, live


def remarks(state: OptimizerState, rows: Sequence[Row], asks: Asks) -> list[str]:
    """Report what a source does not store and the live model decides."""
    source, ask = Source(state), asks[factors.CONSTRAINT]
    kept = [r.name for r in rows if source.asks[factors.CONSTRAINT](r.stored) is NOT_STORED and ask(r) is not None]
    return [f"{some(kept)}: the source does not store constraints; those of the live model apply"] if kept else []


def unmatched(
    state: OptimizerState, framework: str, shapes: Sequence[tuple[int, ...]], asks: Asks, live: Sequence[Row]
) -> Iterator[str]:
    """Explain why steps may differ if no slots identify the live variables with stored ones.

    Args:
      shapes: of the live variables that are trained. live: these, each with itself as its stored one.
    """
    source = Source(state)
    stored = [v for v in state.variables if v.trainable]
    if stored and sorted(v.shape for v in stored) != sorted(shapes):
        yield "the live variables that are trained are not those of the source: their shapes differ"
    for name in factors.OF_VARIABLES[1:]:
        way = factors.BY_NAME[name].answers[framework]
        have = {source.asks[name](v) for v in stored} - {NOT_STORED}
        get = {asks[name](row) if way == factors.ASKED else UNUSED[name] for row in live}
        if have and len(have | get) > 1:
            yield (
                f"{name} cannot be compared, as no live variable is known to be one of the source: give a mapping of"
                " the source's names to variables"
            )


def of_whole(state: OptimizerState, framework: str, source: Rule, live: Rule, scaling: Scaling | None) -> Iterator[str]:
    """Explain differences that are neither a compared argument nor about single variables."""
    have = loss_scale.of_state(state)
    if factors.BY_NAME[factors.LOSS_SCALE].answers[framework] == factors.UNKNOWN:
        if have is not None:
            yield f"the loss scale is {have} in the source, and the live optimizer does not show one"
    elif have and scaling and have.has_lost_scale:
        yield (
            f"the source does not store its current loss scale: the live optimizer keeps its own ({scaling}), so an"
            " overflow may make it skip other steps"
        )
    elif (have is None) != (scaling is None) or (have and scaling and not have.fits(scaling)):
        yield (
            f"the loss scale is {have or 'none'} in the source and {scaling or 'none'} around the live optimizer, which"
            " is kept"
        )
    yield from _first_values(state, framework, source, live)


def _first_values(state: OptimizerState, framework: str, source: Rule, live: Rule) -> Iterator[str]:
    """Compare initial values of new slots if the source does not have them yet, and the start of averages."""
    for argument in ("initial_accumulator_value", "initial_velocity"):
        both = source.values.get(argument), live.values.get(argument)
        if not state.slots and not same(*both):
            yield f"{argument} is {both[0]} in the source, which has no slots yet, and {both[1]} in the live optimizer"
    if state.iterations == 0 and source.values.get("use_ema") and live.values.get("use_ema"):
        generation = state.source.generation if state.source is not None else None
        have = source.values.get("ema_start") or _average_start(generation)
        get = live.values.get("ema_start") or _average_start(framework)
        if have != get:
            yield f"averages start from the {have} values in the source and the {get} ones in the live optimizer"


def _average_start(generation: str | None) -> str:
    return traits(generation).averages_start
