"""How the steps of a live optimizer would differ from those of the source whose state it is given."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from migrate import algorithms, evidence
from migrate.algorithms import rates, repeated_rows
from migrate.bytes.messages import line, some
from migrate.evidence import Origin
from migrate.live import conversions, values
from migrate.live.base import Live
from migrate.live.matching import Given, Pair
from migrate.live.ours import Ours
from migrate.models import rounding
from migrate.rules import comparison
from migrate.state import OptimizerState
from optim import slot_layout
from optim.errors import MismatchError


class Differences:
    """What differs, and how slots are converted for it.

    Args:
      trainable: the live variables that are trained; pairs: of live and stored variables.
      denied: what the values that the live variables have say against these, see `held`.

    Attributes:
      source_rule, rule: of the source, of the live optimizer; plan: from one to the other.
      origins: those of the state, and the doubts that the live optimizer adds; reasons: why it is not exact.

    Raises:
      MismatchError: a slot that its live variable's dtype cannot hold.
    """

    def __init__(
        self,
        state: OptimizerState,
        live: Live,
        trainable: Sequence[Given],
        pairs: Sequence[Pair],
        denied: Sequence[str] = (),
    ):
        from optim.state.tracked import unwrap

        self._state, self._live, self._pairs, self._denied = state, live, pairs, denied
        self._trained = [p for p in pairs if p.live.trainable]
        self.source_rule = comparison.rule_of(state.algorithm, state.hyperparameters)
        self.rule = live.rule(sorted({unwrap(g.variable).dtype.name for g in trainable}))
        found = comparison.compare(self.source_rule, self.rule)
        self.plan = conversions.plan(self.source_rule, self.rule, found, state.iterations, frozenset(state.slots))
        self.origins = tuple(self._origins())
        self.reasons = tuple(map(line, evidence.reasons(self.origins)))

    def _origins(self) -> Iterator[Origin]:
        names = [p.stored.name for p in self._trained]
        theirs = [*self.rule.reasons, *self._live.lazy_reasons(names)]
        algorithm = algorithms.find(self._state.algorithm)
        alike = not isinstance(self._live, Ours) and repeated_rows.is_alike(
            self._state, algorithm, self._live.repeated()
        )
        for o in self._state.origins:  # what both do alike is no matter
            if o.certain or not (o.reason in theirs or (alike and o.subject == repeated_rows.REPEATED)):
                yield o
        known = evidence.reasons(self._state.origins)
        yield from evidence.doubts("live optimizer", (r for r in theirs if r not in known))
        yield from evidence.doubts("live optimizer", self._differences())

    def _differences(self) -> Iterator[str]:
        yield from self.plan.reasons
        yield from (comparison.described(key, *both) for key, both in self.plan.left.items())
        if rates.shown(self.plan.left.get("learning_rate", (None,))[0]):
            made = f"optim.{self._state.algorithm}.from_config(migrate.read(source).hyperparameters)"
            yield f"the source's Formula is in {made}, which optim.for_keras(...) takes into compile"
        if rounded := rounding.difference(self._state, self._live.generation):
            yield rounded
        yield from self._row_reasons()
        algorithm = algorithms.find(self._state.algorithm)
        different = repeated_rows.difference(self._state, algorithm, self._live.repeated(), "the live optimizer")
        if different:
            yield different
        yield from self._decay_reasons()
        yield from self._frozen_reasons()
        yield from self._position_reasons()
        yield from self._denied
        yield from self._dtype_reasons()

    def _position_reasons(self) -> Iterator[str]:
        """Where only the order of a sequence says which variable is which."""
        weak = [f"{p.live.name} = {p.stored.name}" for p in self._trained if not p.proven]
        if weak:
            yield (
                f"{some(weak)}: matched by position alone, as names differ, shapes are not unique and values do not"
                " tell; if it is right, give a mapping of the source's names to variables"
            )

    def _row_reasons(self) -> Iterator[str]:
        """Embeddings whose rows without a gradient one side moves and the other leaves alone."""
        patterns = self.source_rule.values.get("lazy_rows") or ()
        for pair in self._trained:
            theirs = any(re.search(p, pair.stored.name) for p in patterns)
            if theirs != self._live.lazy(pair.live.variable, pair.stored.name):
                kept, moved = ("source", "live optimizer") if theirs else ("live optimizer", "source")
                yield (
                    f"{pair.live.name}: rows that a sparse gradient leaves out keep their state in the {kept} and move"
                    f" in the {moved} (lazy_rows of optim says which)"
                )

    def _frozen_reasons(self) -> Iterator[str]:
        """`fit` hands an optimizer the gradients of what can be trained."""
        frozen = [p.live.name for p in self._pairs if p.stored.trainable and not p.live.trainable]
        if frozen:
            yield f"{some(frozen)}: trained in the source, and trainable is False in the live model"

    def _decay_reasons(self) -> Iterator[str]:
        """Only `optim`'s own checkpoints record which variables are excluded from weight decay."""
        recorded = self._state.source is not None and self._state.source.format == "slots"
        if not recorded or not self.source_rule.values.get("weight_decay"):
            return
        patterns = self.source_rule.values.get("weight_decay_exclude") or ()
        for pair in self._trained:
            decayed = not any(re.search(p, pair.stored.name) for p in patterns)
            if decayed != self._live.decayed(pair.live.variable):
                yield f"{pair.live.name}: weight decay applies in only one of source and live optimizer"

    def _dtype_reasons(self) -> Iterator[str]:
        """Raises MismatchError for a slot that its live variable's dtype cannot hold."""
        from optim.state.tracked import unwrap

        wider = []
        for pair in self._trained:
            want = unwrap(pair.live.variable).dtype.name
            for slot in self._state.slots:
                array = self._state.slots[slot].get(pair.stored.name)
                if array is None or array.dtype == want or slot == slot_layout.ACCUMULATED_GRADIENT:
                    continue
                if not values.holds(want, array.dtype):
                    raise MismatchError(
                        f"slot {slot} of {pair.stored.name!r} is {array.dtype}, and {pair.live.name!r} is {want}, which"
                        " cannot hold it; make the live variable in that dtype"
                    )
                wider.append(pair.live.name)
        if wider:
            yield f"{', '.join(dict.fromkeys(wider))}: computed in a wider dtype than in the source"
