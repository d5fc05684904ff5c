"""Select the part of a source for a model: what starts fresh, what has grown, or the weights alone.

A partial migration is never exact. `Choice` is the user's selection; `Parts` of a state are the resulting names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from migrate import claims
from migrate.bytes.messages import some
from migrate.conversion import shards
from migrate.evidence.user_input.hints import Variables
from migrate.evidence.user_input.variables import row
from migrate.matching import choosing
from migrate.state import OptimizerState, Parts, StoredVariable
from optim import slot_layout
from optim.errors import HyperparameterError, MismatchError, UnsupportedError

Patterns = str | Sequence[str]
PARTIAL, OPTIMIZER = "partial restore", "reset optimizer"
SUBJECTS = (PARTIAL, OPTIMIZER)
"""Subject of origins for what a state leaves out on purpose."""


@dataclass(frozen=True)
class Choice:
    """The user's selection. Patterns are regular expressions that are searched in names of variables.

    Attributes:
      fresh: the variables that get nothing from the source.
      grown: those that are larger along one dim than in the source, and get their first part from it.
      weights_only: whether the optimizer gets nothing.
    """

    fresh: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()
    weights_only: bool = False

    @classmethod
    def of(cls, fresh: Patterns, grown: Patterns, weights_only: bool) -> Choice:
        """From arguments, of which a pattern may be a single string."""
        listed = [(patterns,) if isinstance(patterns, str) else tuple(patterns) for patterns in (fresh, grown)]
        return cls(listed[0], listed[1], bool(weights_only))

    @property
    def is_partial(self) -> bool:
        return bool(self.fresh or self.grown)

    def parts(self, names: Collection[str]) -> Parts:
        """The variables of a model that match the patterns.

        Raises:
          HyperparameterError: a pattern is no regular expression or matches nothing, or a variable matches both.
        """
        fresh, grown = choosing.chosen("fresh", self.fresh, names), choosing.chosen("grown", self.grown, names)
        if both := [name for name in fresh if name in grown]:
            raise HyperparameterError(f"{some(both)}: chosen both as fresh and as grown; leave one of them out")
        return Parts(fresh, grown)

    def parts_of(self, names: Collection[str], marked: Parts) -> Parts:
        """The same, with those that a checkpoint of dtopt marks."""
        chosen = self.parts(names)
        fresh = (n for n in names if n in chosen.fresh or (n in marked.fresh and n not in chosen.grown))
        grown = (n for n in names if n in chosen.grown or (n in marked.grown and n not in chosen.fresh))
        return Parts(tuple(fresh), tuple(grown))


def call(variables: str = "variables", **options: Any) -> str:
    """A call of `migrate.restore` with some options, as typed."""
    arguments = "".join(f", {name}={value!r}" for name, value in options.items() if value)
    return f"migrate.restore(source, optimizer, {variables}{arguments})"


NAMED_BY_YOU = call("{**mapping, **new}", fresh=["^new/"]) + ", where new is {'new/0': variable, ...}"
WEIGHTS_ONLY = f"take the model's weights alone and reset the optimizer: {call(weights_only=True)}"


def dropped(state: OptimizerState, taken: Iterable[str]) -> tuple[str, ...]:
    """Variables that the source trained and nothing live uses."""
    owners = {name for per in state.slots.values() for name in per}
    left = {v.name for v in state.variables if v.name in owners or v.trainable} - set(taken)
    return tuple(v.name for v in state.variables if v.name in left)


def partial_origins(parts: Parts, resharded: Sequence[str] = ()) -> tuple[claims.Origin, ...]:
    """Explain why a partial migration is not exact."""
    texts = list(resharded)
    if parts.fresh:
        texts.append(f"{some(parts.fresh)}: fresh, with initial slots")
    if parts.grown:
        texts.append(
            f"{some(parts.grown)}: grown; you promise that its first part is the source's, in the same order, and what"
            " is added starts fresh"
        )
    if parts.dropped:
        texts.append(f"{some(parts.dropped)}: dropped, because the model does not have it")
    return claims.doubts(PARTIAL, texts)


def applied(state: OptimizerState, choice: Choice, to: str, model: Variables | None) -> OptimizerState:
    """Select the part of a state for a target.

    Args:
      to: the target format. model: the variables of the model that will load the target, if it differs from the
        source's; only slot checkpoints can be for another one.

    Raises:
      HyperparameterError: patterns that match nothing. MismatchError: variables that the source does not have.
      UnsupportedError: a target that cannot be for another model.
    """
    if not choice.is_partial:
        return state
    if to != "slots" and (choice.grown or model is not None):
        raise UnsupportedError(
            f"--to {to} writes the model of the source, without new or grown variables; migrate to slots, or give"
            " the new model to migrate.restore(..., fresh=[...], grown=[...])"
        )
    wanted = {v.name: v for v in state.variables} if model is None else _described(model)
    parts = choice.parts_of(wanted, state.parts)
    if to != "slots":
        return _with_initial_slots(replace(state, origins=(*state.origins, *partial_origins(parts)), parts=parts))
    kept = {name: v for name, v in wanted.items() if name not in parts.fresh}
    state, texts = shards.resharded(state, {name: v.shape for name, v in kept.items()}, parts.grown)
    stored = {v.name: v for v in state.variables}
    _check_kept({name: v.shape for name, v in kept.items()}, stored, parts.grown)
    turned = [name for name, v in kept.items() if bool(stored[name].trainable) != bool(v.trainable)]
    texts += [f"{some(turned)}: trained in only one of source and model, so slots start fresh"] if turned else []
    left = [v for v in state.variables if v.name not in wanted]
    lost = _lost(state, left, kept) if model is not None else []
    larger = (name for name in parts.grown if model is None or kept[name].shape != stored[name].shape)
    variables = [replace(stored.get(name, v), trainable=v.trainable) for name, v in wanted.items()]
    variables += [v for v in left if v.name not in lost]
    parts = Parts(parts.fresh, tuple(larger), tuple(lost))
    state = _without_slots(state, {*parts.fresh, *turned, *lost})
    return replace(
        state,
        variables=tuple(replace(v, array=None) if v.name in parts.fresh else v for v in variables),
        origins=(*state.origins, *partial_origins(parts, texts)),
        parts=parts,
    )


def _described(model: Variables) -> dict[str, StoredVariable]:
    variables = {}
    for entry in model:
        if not isinstance(entry, Mapping):
            raise HyperparameterError(
                f"--variables describes the new model here, and {entry!r} is a pattern of names; give name and shape"
            )
        is_trained = bool(entry.get("trainable", True))
        name, shape, dtype = row({k: v for k, v in entry.items() if k != "trainable"})
        variables[name] = StoredVariable(name, None, shape, dtype or "float32", is_trained)
    return variables


def _check_kept(
    kept: Mapping[str, tuple[int, ...]], stored: Mapping[str, StoredVariable], grown: Collection[str]
) -> None:
    """Raise MismatchError for variables that are neither in the source, nor fresh, nor grown, with patterns for
    them."""
    strange = [name for name in kept if name not in stored]
    if strange:
        raise MismatchError(
            f"the source has no {some(strange)}; if they are new, add {choosing.typed('fresh', strange, kept)}"
        )
    other = {
        n: s
        for n, s in kept.items()
        if s != stored[n].shape and not (n in grown and slot_layout.is_grown(stored[n].shape, s))
    }
    if other:
        shapes = [f"{name} {list(shape)}, in the source {list(stored[name].shape)}" for name, shape in other.items()]
        larger = all(slot_layout.is_grown(stored[name].shape, shape) for name, shape in other.items())
        option = "grown" if larger else "fresh"
        raise MismatchError(f"{some(shapes, between='; ')}; add {choosing.typed(option, other, kept)}")


def _lost(state: OptimizerState, left: Sequence[StoredVariable], kept: Collection[str]) -> list[str]:
    """Variables missing in the model that were trained, and statistics of layers that are missing entirely."""
    owners = {name for per in state.slots.values() for name in per}
    trained = [v.name for v in left if v.name in owners or v.trainable]
    layers = {name.rpartition("/")[0] for name in trained} - {name.rpartition("/")[0] for name in kept}
    return [v.name for v in left if v.name in trained or v.name.rpartition("/")[0] in layers]


def _without_slots(state: OptimizerState, names: Collection[str]) -> OptimizerState:
    slots = {s: {n: array for n, array in per.items() if n not in names} for s, per in state.slots.items()}
    matched = {key: how for key, how in state.matched.items() if key.partition("/")[2] not in names}
    return replace(state, slots=slots, matched=matched)


def _with_initial_slots(state: OptimizerState) -> OptimizerState:
    from migrate.models import plan

    slots = {slot: dict(per) for slot, per in state.slots.items()}
    for variable in (v for v in state.variables if v.name in state.parts.fresh):
        for slot, per in slots.items():
            if variable.name in per:
                per[variable.name] = plan.initial(state, slot, variable, per[variable.name].shape)
    return replace(state, slots=slots)
