"""Find the variables of a sequence of slots if the source knows layers but not all of their order.

A `.weights.h5` lists layers by class: `dense`, `dense_1` follow each other in the model, but the place of `conv2d` is
not stored. What is certain is kept: the order inside a layer, and among layers of one class. All variables of a layer,
with those of the layers in it, are next to each other. The shapes of the slots must leave exactly one order; else
AmbiguousError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from migrate.claims import Questions, asking
from migrate.errors import AmbiguousError
from migrate.state import Layers, LayerVariable
from migrate.surfaces import VARIABLES
from optim.errors import MismatchError

Shape = tuple[int, ...]
MAX_STATES = 50_000
SHOWN = 6


Ways = dict[int, list[tuple[str, ...]]]
"""Number of used slots -> up to two different assignments that use that number."""


def match(layers: Layers, shapes: Sequence[Shape], where: str) -> list[str]:
    """Return the names of the variables that slots of these shapes belong to, in order.

    Raises:
      AmbiguousError: more than one assignment fits. MismatchError: no assignment fits.
    """
    search = _Search([tuple(s) for s in shapes], where, {}, [0])
    ways = search.node(layers, 0).get(len(shapes), [])
    if len(ways) > 1:
        options = "; or ".join(_shown_where_apart(way, ways) for way in ways)
        text = (
            f"{where}: slots of {len(shapes)} variables, and the source does not contain the order of its layers:"
            f" {options}. Name the trained variables, in order, in --variables"
        )
        raise asking(AmbiguousError(text), Questions({}, tuple({VARIABLES: list(way)} for way in ways)))
    if not ways:
        have = [f"{v.name}{list(v.shape)}" for v in layers.variables()]
        raise MismatchError(
            f"{where}: its slots have the shapes {_shown([str(list(s)) for s in shapes])} and the variables are"
            f" {_shown(have)}; they do not belong together. If the variables are wrong, give the right ones in"
            " --variables"
        )
    return list(ways[0])


def _shown_where_apart(way: Sequence[str], ways: Sequence[Sequence[str]]) -> str:
    """Return an assignment from the point where it differs from the others."""
    same = next((i for i, names in enumerate(zip(*ways, strict=False)) if len(set(names)) > 1), 0)
    start = same if len(way) > SHOWN else 0
    return (
        ("..., " if start else "")
        + ", ".join(way[start : start + SHOWN])
        + (f", ... ({len(way)} in all)" if len(way) > start + SHOWN else f" ({len(way)} in all)" if start else "")
    )


def _shown(names: Sequence[str]) -> str:
    text = ", ".join(names[:SHOWN])
    return f"{text}, ... ({len(names)} in all)" if len(names) > SHOWN else text or "none"


@dataclass
class _Search:
    shapes: list[Shape]
    where: str
    memo: dict[tuple[int, int], Ways]
    states: list[int] = field(default_factory=lambda: [0])

    def node(self, layers: Layers, start: int) -> Ways:
        """Return the assignments of a layer and all in it, from slot `start` on."""
        key = id(layers), start
        if key not in self.memo:
            ways: Ways = {}
            steps = [lambda at: self.variables(layers.own_variables, at), lambda at: self.merged(layers.chains, at)]
            orders = [steps, steps[::-1]] if layers.own_last is None else [steps[::-1] if layers.own_last else steps]
            for first, second in orders:
                for end, names in first(start).items():
                    for last, endings in second(end).items():
                        _add(ways, last, [(*a, *b) for a in names for b in endings])
            self.memo[key] = ways
        return self.memo[key]

    def variables(self, variables: Sequence[LayerVariable], start: int) -> Ways:
        """Return a layer's own variables: all that can be trained, or no variable if the source does not show them."""
        trained = [v for v in variables if v.trainable is not False]
        end = start + len(trained)
        ways: Ways = {}
        if self.shapes[start:end] == [v.shape for v in trained]:
            ways[end] = [tuple(v.name for v in trained)]
        if trained and all(v.trainable is None for v in trained):
            _add(ways, start, [()])
        return ways

    def merged(self, chains: Sequence[Sequence[Layers]], start: int) -> Ways:
        """Return all ways of interleaving chains, step by step over the progress in each chain."""
        chains = [[layer for layer in chain if layer.trained()] for chain in chains]
        chains = [chain for chain in chains if chain]
        level: dict[tuple[int, ...], Ways] = {(0,) * len(chains): {start: [()]}}
        for _ in range(sum(len(chain) for chain in chains)):
            following: dict[tuple[int, ...], Ways] = {}
            for done, ways in level.items():
                for c, chain in enumerate(chains):
                    if done[c] < len(chain):
                        after = (*done[:c], done[c] + 1, *done[c + 1 :])
                        self._step(chain[done[c]], ways, following.setdefault(after, {}))
            level = {done: ways for done, ways in following.items() if ways}
        return next(iter(level.values()), {})

    def _step(self, layers: Layers, ways: Ways, into: Ways) -> None:
        self.states[0] += 1
        if self.states[0] > MAX_STATES:
            raise AmbiguousError(
                f"{self.where}: the source does not contain the order of its layers, and there are too many"
                " orders to try. Name the trained variables, in order, in --variables"
            )
        for start, names in ways.items():
            for end, endings in self.node(layers, start).items():
                _add(into, end, [(*a, *b) for a in names for b in endings])


def _add(ways: Ways, end: int, assignments: Sequence[tuple[str, ...]]) -> None:
    ways[end] = list(dict.fromkeys([*ways.get(end, []), *assignments]))[:2]
