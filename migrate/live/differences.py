"""Compare the steps of a live optimizer with those of the source whose state it gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from migrate import algorithms, claims
from migrate.algorithms import rates, repeated_rows
from migrate.bytes.messages import some
from migrate.claims import Origin
from migrate.live import conversions, step_answers, values
from migrate.live.base import Live
from migrate.live.ours import Ours
from migrate.live.step_answers import Row
from migrate.live.variable_matching import LiveVariable, Pair
from migrate.models import rounding
from migrate.rules import comparison
from migrate.rules.comparison import Rule
from migrate.state import OptimizerState, StoredVariable
from optim import slot_layout
from optim.checkpoints.variables import handle
from optim.errors import MismatchError, UnsupportedError

GATHERING = (slot_layout.ACCUMULATED_GRADIENT, slot_layout.GATHERED)
"""Slots with their own dtype."""
NADAM = "Nadam"
"""Algorithms whose state starts with a number that follows from their settings."""


LIVE = "live optimizer"
"""The subject of origins for what differs."""


class Compared:
    """How a live optimizer differs from the source.

    Attributes:
      source_rule, rule: of the source, of the live optimizer; plan: from one to the other.
      kept: the origins of the source that matter here.
      of_rule, of_variables: why steps differ: by the rule, by single variables.
    """

    source_rule: Rule
    rule: Rule
    plan: conversions.Plan
    kept: tuple[Origin, ...]
    of_rule: tuple[str, ...] = ()
    of_variables: tuple[str, ...] = ()


class Reset(Compared):
    """Nothing is compared, as the optimizer gets nothing from the source."""

    def __init__(self, state: OptimizerState, live: Live, trainable: Sequence[LiveVariable]):
        try:
            self.rule = self.source_rule = live.rule(_dtypes(trainable))
        except UnsupportedError:  # a custom schedule, which is not compared here
            if live.algorithm == NADAM:
                raise
            self.rule = self.source_rule = Rule(live.algorithm, {})
        self.plan, self.kept = conversions.Plan({}), state.origins


class Differences(Compared):
    """The differences, and how slots are converted.

    Args:
      trainable: the live variables that are trained; pairs: of live and stored variables.
      contradictions: contradictions by the live variables' values, see `current_values`.

    Raises:
      MismatchError: a slot that its live variable's dtype cannot hold.
    """

    def __init__(
        self,
        state: OptimizerState,
        live: Live,
        trainable: Sequence[LiveVariable],
        pairs: Sequence[Pair],
        contradictions: Sequence[str] = (),
    ):
        self._state, self._live, self._pairs, self._contradictions = state, live, pairs, contradictions
        self._trainable = trainable
        self._trained = [p for p in pairs if p.live.trainable]
        rows = [Row(p.stored, p.live.name, p.live.variable) for p in self._trained]
        rules = comparison.rule_of(state.algorithm, state.hyperparameters), live.rule(_dtypes(trainable))
        self.source_rule, self.rule = step_answers.acting(state, live.generation, rows, live.asks, *rules)
        differences = comparison.compare(self.source_rule, self.rule)
        self.plan = conversions.plan(self.source_rule, self.rule, differences, state.iterations, frozenset(state.slots))
        theirs = [*self.rule.reasons, *live.lazy_reasons([p.stored.name for p in self._trained])]
        self.kept = tuple(self._known(theirs))
        known = claims.reasons(state.origins)
        self.of_rule = (*(reason for reason in theirs if reason not in known), *self._rule_reasons())
        self.of_variables = tuple(self._variable_reasons())
        self.plan.warnings += step_answers.remarks(state, rows, live.asks)

    def _known(self, theirs: Sequence[str]) -> Iterator[Origin]:
        """Yield the origins of the source, but for what the live optimizer does in the same unknown way."""
        algorithm = algorithms.find(self._state.algorithm)
        alike = not isinstance(self._live, Ours) and repeated_rows.is_alike(
            self._state, algorithm, self._live.repeated()
        )
        for o in self._state.origins:
            if o.certain or not (o.reason in theirs or (alike and o.subject == repeated_rows.REPEATED)):
                yield o

    def _rule_reasons(self) -> Iterator[str]:
        yield from self.plan.reasons
        yield from (comparison.described(key, *both) for key, both in self.plan.left.items())
        if rates.shown(self.plan.left.get("learning_rate", (None,))[0]):
            code = f"optim.{self._state.algorithm}.from_config(migrate.read(source).hyperparameters)"
            yield f"the source's Formula is in {code}, which optim.for_keras(...) prepares for compile"

    def _variable_reasons(self) -> Iterator[str]:
        if rounded := rounding.difference(self._state, self._live.generation):
            yield rounded
        algorithm = algorithms.find(self._state.algorithm)
        different = repeated_rows.difference(self._state, algorithm, self._live.repeated(), "the live optimizer")
        if different:
            yield different
        yield from self._factor_reasons()
        yield from self._position_reasons()
        yield from self._contradictions
        yield from self._dtype_reasons()

    def _position_reasons(self) -> Iterator[str]:
        weak = [f"{p.live.name} = {p.stored.name}" for p in self._trained if not p.proven]
        if weak:
            yield (
                f"{some(weak)}: matched by position alone, as names differ, shapes are not unique and values do not"
                " help. To confirm, give a mapping of the source's names to variables"
            )

    def _factor_reasons(self) -> Iterator[str]:
        """Report differences that no configuration contains: which variables are trained, constrained, decayed, and so
        on."""
        live, framework = self._live, self._live.generation
        rows = [Row(p.stored, p.live.name, p.live.variable) for p in self._pairs]
        if self._pairs:
            decays = all(rule.values.get("weight_decay") for rule in (self.source_rule, self.rule))
            yield from step_answers.differences(self._state, framework, rows, live.asks, decays)
        else:
            rows = [Row(_as_unmatched_variable(g), g.name, g.variable) for g in self._trainable]
            shapes = [g.shape for g in self._trainable]
            yield from step_answers.unmatched(self._state, framework, shapes, live.asks, rows)
        yield from step_answers.of_whole(self._state, framework, self.source_rule, self.rule, live.scaling)

    def _dtype_reasons(self) -> Iterator[str]:
        wider, other = [], []
        for pair in self._trained:
            want = handle(pair.live.variable).dtype
            if pair.stored.array is not None and pair.stored.dtype != want:
                other.append(pair.live.name)
            if self.rule.values.get("master_copies") and values.holds("float32", want):
                want = "float32"
            for slot in self._state.slots:
                array = self._state.slots[slot].get(pair.stored.name)
                is_rounded = self.rule.values.get("slot_dtype") is not None  # which is one of the differences
                if array is None or array.dtype == want or slot in GATHERING or is_rounded:
                    continue
                if not values.holds(want, array.dtype):
                    raise MismatchError(
                        f"slot {slot} of {pair.stored.name!r} is {array.dtype}, and {pair.live.name!r} is {want}, which"
                        " cannot hold it; make the live variable in that dtype"
                    )
                wider.append(pair.live.name)
        if wider:
            yield f"{', '.join(dict.fromkeys(wider))}: computed in a wider dtype than in the source"
        elif other:
            yield f"{some(other)}: of another dtype than in the source"
        have = {v.dtype for v in self._state.variables if v.trainable and v.array is not None}
        get = {handle(g.variable).dtype for g in self._trainable}
        if have and not self._pairs and have != get:
            yield f"the live variables are {some(sorted(get))}, and {some(sorted(have))} in the source"


def _dtypes(live_variables: Sequence[LiveVariable]) -> list[str]:
    return sorted({handle(g.variable).dtype for g in live_variables})


def _as_unmatched_variable(live: LiveVariable) -> StoredVariable:
    return StoredVariable(live.name, None, live.shape, "", live.trainable)
