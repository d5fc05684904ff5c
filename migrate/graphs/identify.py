"""Find the rule of `optim` that computes the same new values as a graph, with its slots and hyperparameters.

Both are evaluated, so names and the order of ops do not matter. Each hyperparameter is a constant or a variable of the
graph, or a number that the graph computes from them. TensorFlow leaves some orders of ops open; callers check those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any

import numpy as np

from migrate.graphs.evaluate import UnknownError, Writes, rows_of
from migrate.graphs.fit import Fit, Probe, Scalar, probe_of, variants
from migrate.graphs.nodes import Nodes
from migrate.graphs.updates import Update
from optim.rule import Rule

_MOST = 60
"""Most different updates of one graph."""


@dataclass(frozen=True)
class Identity:
    """A rule that computes the same numbers as a graph.

    Attributes:
      rules: its variants that do so. slots: variables by slot. hyper: the hyperparameters and optimizer-wide state that
        matter. gradient: the outputs that are the rule's gradient: one, or several that are equal.
      powers: variables that store powers of hyperparameters, by hyperparameter.
      step: the counter, and what is added to it to get the number of the step. The counter is empty if the graph keeps
        powers of betas in variables; `step` is None for a rule that doesn't need the number.
      decays: how weights decay before the step: by hyper["weight_decay"] times the learning rate ("rate"), by
        hyper["weight_decay"] alone ("step"), or not at all (empty).
    """

    rules: tuple[Rule, ...]
    slots: Mapping[str, str]
    hyper: Mapping[str, Scalar]
    gradient: tuple[str, ...]
    step: tuple[str, float] | None = None
    decays: str = ""
    powers: Mapping[str, str] = field(default_factory=dict)

    @property
    def rule(self) -> type[Rule]:
        return type(self.rules[0])


class Identifier:
    """Identify the rule of each variable. Equal updates are evaluated once."""

    def __init__(self, nodes: Nodes, writes: Writes, *, rows: bool = False) -> None:
        """Args: writes: all assignments of each variable in one step. rows: whether ops may change rows only."""
        self._nodes, self._writes, self._rows = nodes, writes, rows
        self._identities: dict[Any, tuple[list[str], list[Identity]]] = {}
        """By the form of an update: its outputs, and the rules."""

    def of(self, variable: str, moved: str = "") -> list[Identity]:
        """Return the rules that a variable's update can be: one, several indistinguishable ones, or an empty list.

        Args:
          moved: the node of its new value, if something follows that isn't part of the rule.
        """
        try:
            update = Update(self._nodes, variable, self._writes, moved)
            if len(rows_of(self._nodes, update.traced)) > self._rows:
                return []
            outputs, key = list(update.traced), update.form()
            if key not in self._identities and len(self._identities) >= _MOST:
                return []
            if key not in self._identities:
                attempts = (_identified(update, cut) for cut in update.cuts())
                self._identities[key] = outputs, next(filter(None, attempts), [])
        except (UnknownError, LookupError, ValueError, AttributeError):
            return []
        before, identities = self._identities[key]
        return [_renamed(identity, dict(zip(before, outputs, strict=True))) for identity in identities]


def _renamed(identity: Identity, names: Mapping[str, str]) -> Identity:
    return replace(
        identity,
        slots={slot: names[variable] for slot, variable in identity.slots.items()},
        hyper={key: replace(scalar, output=names.get(scalar.output, "")) for key, scalar in identity.hyper.items()},
        gradient=tuple(names[output] for output in identity.gradient),
        step=identity.step and (names.get(identity.step[0], ""), identity.step[1]),
        powers={key: names[variable] for key, variable in identity.powers.items()},
    )


def _identified(update: Update, cut: tuple[str, ...]) -> list[Identity]:
    """Return the simplest rules that fit: their hyperparameters depend on the fewest nodes."""
    probe = probe_of(update, cut)
    if probe is None:
        return []
    candidates: dict[Any, tuple[int, Identity]] = {}
    for rule in variants(len(update.slots)):
        for variables in permutations(update.slots):
            slots = dict(zip((slot.name for slot in rule.slots), variables, strict=True))
            fit = Fit(rule, slots, update.variable, probe).solved()
            if fit is None:
                continue
            hyper, step, decays = fit
            cost = sum(_cost(probe, scalar) for scalar in hyper.values())
            key = (type(rule), variables, tuple(hyper.items()), step, decays)
            before = candidates[key][1].rules if key in candidates else ()
            powers = _powers(probe, hyper) if step is not None and not step[0] else {}
            candidates[key] = (cost, Identity((*before, rule), slots, hyper, cut, step, decays, powers))
    least = min((cost for cost, _ in candidates.values()), default=0)
    return [identity for cost, identity in candidates.values() if cost == least]


def _powers(probe: Probe, hyper: Mapping[str, Scalar]) -> dict[str, str]:
    values = {key: value for key, place in hyper.items() for scalar, value in probe.scalars if scalar == place}
    return {
        key: name
        for name, factor in probe.factors.items()
        for key, value in values.items()
        if np.allclose(factor, value)
    }


def _cost(probe: Probe, scalar: Scalar) -> int:
    return 1000 if not scalar.output else 10 * scalar.is_derived + probe.sizes[scalar.output]
