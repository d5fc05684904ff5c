"""Which part of a source a model takes over: what starts fresh, what has grown, or the weights alone.

A state that is migrated in part is never exact. `Choice` is what the user asks for; `Parts` of a state are the
names that follow from it.
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
"""Of origins that say what a state leaves out on purpose."""


@dataclass(frozen=True)
class Choice:
    """What the user asks for. Patterns are regular expressions that are searched for in names of variables.

    Attributes:
      fresh: the variables that take nothing from the source.
      grown: those that are larger along one dim than in the source, and take the first part from there.
      weights_only: whether the optimizer takes nothing.
    """

    fresh: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()
    weights_only: bool = False

    @classmethod
    def of(cls, fresh: Patterns, grown: Patterns, weights_only: bool) -> Choice:
        """From arguments, in which one pattern may stand alone."""
        listed = [(patterns,) if isinstance(patterns, str) else tuple(patterns) for patterns in (fresh, grown)]
        return cls(listed[0], listed[1], bool(weights_only))

    @property
    def is_partial(self) -> bool:
        return bool(self.fresh or self.grown)

    def parts(self, names: Collection[str]) -> Parts:
        """The variables of a model that the patterns choose.

        Raises:
          HyperparameterError: a pattern is no regular expression or chooses none of them, or a variable is both.
        """
        fresh, grown = choosing.chosen("fresh", self.fresh, names), choosing.chosen("grown", self.grown, names)
        if both := [name for name in fresh if name in grown]:
            raise HyperparameterError(f"{some(both)}: chosen both as fresh and as grown; leave one of them out")
        return Parts(fresh, grown)

    def parts_of(self, names: Collection[str], marked: Parts) -> Parts:
        """The same, with those that a checkpoint of dtopt's own marks."""
        own = self.parts(names)
        fresh = (n for n in names if n in own.fresh or (n in marked.fresh and n not in own.grown))
        grown = (n for n in names if n in own.grown or (n in marked.grown and n not in own.fresh))
        return Parts(tuple(fresh), tuple(grown))


def call(variables: str = "variables", **options: Any) -> str:
    """A call of `migrate.restore` with some options, as it is typed."""
    given = "".join(f", {name}={value!r}" for name, value in options.items() if value)
    return f"migrate.restore(source, optimizer, {variables}{given})"


NAMED_BY_YOU = call("{**mapping, **new}", fresh=["^new/"]) + ", where new is {'new/0': variable, ...}"
WEIGHTS_ONLY = f"take the model's weights alone and reset the optimizer: {call(weights_only=True)}"


def dropped(state: OptimizerState, taken: Iterable[str]) -> tuple[str, ...]:
    """What the source trained and nothing live takes."""
    owners = {name for per in state.slots.values() for name in per}
    left = {v.name for v in state.variables if v.name in owners or v.trainable} - set(taken)
    return tuple(v.name for v in state.variables if v.name in left)


def told(parts: Parts, resharded: Sequence[str] = ()) -> tuple[claims.Origin, ...]:
    """Why a state that is migrated in part is not exact."""
    texts = list(resharded)
    if parts.fresh:
        texts.append(f"{some(parts.fresh)}: fresh, with initial slots")
    if parts.grown:
        texts.append(
            f"{some(parts.grown)}: grown; you promise that its first part is what the source has, in the same order,"
            " and what is added starts fresh"
        )
    if parts.dropped:
        texts.append(f"{some(parts.dropped)}: dropped, as the model does not have it")
    return claims.doubts(PARTIAL, texts)


def applied(state: OptimizerState, choice: Choice, to: str, model: Variables | None) -> OptimizerState:
    """The part of a state that a target takes over.

    Args:
      to: the target format. model: the variables of the model that will load the target, where that is another than
        the source's; only slot checkpoints can be of another one.

    Raises:
      HyperparameterError: patterns that choose nothing. MismatchError: variables that the source does not have so.
      UnsupportedError: a target that cannot be of another model.
    """
    if not choice.is_partial:
        return state
    if to != "slots" and (choice.grown or model is not None):
        raise UnsupportedError(
            f"--to {to} writes the model of the source, in which nothing has grown or is new; migrate to slots, or give"
            " the new model to migrate.restore(..., fresh=[...], grown=[...])"
        )
    wanted = {v.name: v for v in state.variables} if model is None else _described(model)
    parts = choice.parts_of(wanted, state.parts)
    if to != "slots":
        return _with_initial(replace(state, origins=(*state.origins, *told(parts)), parts=parts))
    kept = {name: v for name, v in wanted.items() if name not in parts.fresh}
    state, texts = shards.resharded(state, {name: v.shape for name, v in kept.items()}, parts.grown)
    own = {v.name: v for v in state.variables}
    _check_kept({name: v.shape for name, v in kept.items()}, own, parts.grown)
    turned = [name for name, v in kept.items() if bool(own[name].trainable) != bool(v.trainable)]
    texts += [f"{some(turned)}: trained in only one of source and model, so that slots start fresh"] if turned else []
    left = [v for v in state.variables if v.name not in wanted]
    lost = _lost(state, left, kept) if model is not None else []
    larger = (name for name in parts.grown if model is None or kept[name].shape != own[name].shape)
    variables = [replace(own.get(name, v), trainable=v.trainable) for name, v in wanted.items()]
    variables += [v for v in left if v.name not in lost]
    parts = Parts(parts.fresh, tuple(larger), tuple(lost))
    state = _without_slots(state, {*parts.fresh, *turned, *lost})
    return replace(
        state,
        variables=tuple(replace(v, array=None) if v.name in parts.fresh else v for v in variables),
        origins=(*state.origins, *told(parts, texts)),
        parts=parts,
    )


def _described(model: Variables) -> dict[str, StoredVariable]:
    found = {}
    for entry in model:
        if not isinstance(entry, Mapping):
            raise HyperparameterError(
                f"--variables describes the new model here, and {entry!r} is a pattern of names; give name and shape"
            )
        is_trained = bool(entry.get("trainable", True))
        name, shape, dtype = row({k: v for k, v in entry.items() if k != "trainable"})
        found[name] = StoredVariable(name, None, shape, dtype or "float32", is_trained)
    return found


def _check_kept(kept: Mapping[str, tuple[int, ...]], own: Mapping[str, StoredVariable], grown: Collection[str]) -> None:
    """Raises MismatchError for what is neither in the source, nor fresh, nor grown, with patterns for it."""
    strange = [name for name in kept if name not in own]
    if strange:
        raise MismatchError(
            f"the source has no {some(strange)}; where they are new, add {choosing.typed('fresh', strange, kept)}"
        )
    other = {
        n: s
        for n, s in kept.items()
        if s != own[n].shape and not (n in grown and slot_layout.is_grown(own[n].shape, s))
    }
    if other:
        shapes = [f"{name} {list(shape)}, in the source {list(own[name].shape)}" for name, shape in other.items()]
        larger = all(slot_layout.is_grown(own[name].shape, shape) for name, shape in other.items())
        option = "grown" if larger else "fresh"
        raise MismatchError(f"{some(shapes, between='; ')}; add {choosing.typed(option, other, kept)}")


def _lost(state: OptimizerState, left: Sequence[StoredVariable], kept: Collection[str]) -> list[str]:
    """Of what the model does not name: what was trained, and statistics of layers of which nothing is kept."""
    owners = {name for per in state.slots.values() for name in per}
    trained = [v.name for v in left if v.name in owners or v.trainable]
    layers = {name.rpartition("/")[0] for name in trained} - {name.rpartition("/")[0] for name in kept}
    return [v.name for v in left if v.name in trained or v.name.rpartition("/")[0] in layers]


def _without_slots(state: OptimizerState, names: Collection[str]) -> OptimizerState:
    """The state without the slots of some variables."""
    slots = {s: {n: array for n, array in per.items() if n not in names} for s, per in state.slots.items()}
    matched = {key: how for key, how in state.matched.items() if key.partition("/")[2] not in names}
    return replace(state, slots=slots, matched=matched)


def _with_initial(state: OptimizerState) -> OptimizerState:
    """The state with initial slots of the variables that start fresh, for targets that hold every slot."""
    from migrate.models import plan

    slots = {slot: dict(per) for slot, per in state.slots.items()}
    for variable in (v for v in state.variables if v.name in state.parts.fresh):
        for slot, per in slots.items():
            if variable.name in per:
                per[variable.name] = plan.initial(state, slot, variable, per[variable.name].shape)
    return replace(state, slots=slots)
