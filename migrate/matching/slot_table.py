"""Find the owner of each tensor: the slots of a source by `optim`'s slot name and the variable's name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from migrate.algorithms import tf_train
from migrate.algorithms.spec import Algorithm
from migrate.bytes.arrays import LazyArray
from migrate.claims import UNINTERPRETED, Origin
from migrate.errors import AmbiguousError, ContradictionError
from migrate.generations import GENERATIONS, SLOT_LAST, having, traits
from migrate.lists import orders
from migrate.matching import joined_names, layers, optional_slots, strategies
from migrate.releases.versions import UNKNOWN, Versions
from migrate.state import NamedVariables, Stored, StoredVariable
from optim.errors import MismatchError

UNREAD = "Adafactor overwrites these values before it reads them: unmapped"
COUNTERS = ("iterations", "iteration", "iter", "_iterations")
"""Names under which sources keep the number of steps."""


@dataclass(frozen=True)
class SlotTable:
    """The slot and variable of each array of a source. What a later step learns makes a new table.

    Attributes:
      pairs: (slot, variable) -> array.
      methods: (slot, variable) -> how the variable was found.
      scalars: state of the whole optimizer, by the source's names.
      order: variables with slots, in the optimizer's order.
      unmapped: arrays that are neither slot nor scalar.
      claims: origins of arrays that have no place.
      release: what the order of a list shows of the TensorFlow release, as `Stored.versions`.
    """

    pairs: strategies.Pairs
    methods: Mapping[tuple[str, str], str]
    scalars: dict[str, LazyArray]
    order: Sequence[str]
    unmapped: Mapping[str, LazyArray] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    claims: tuple[Origin, ...] = ()
    release: Versions = UNKNOWN

    def without(self, is_left_out: Callable[[str, str], bool]) -> SlotTable:
        """Return the table with some slots, chosen by slot and variable, moved to the unmapped arrays."""
        left_out = {key: array for key, array in self.pairs.items() if is_left_out(*key)}
        return replace(
            self,
            pairs={key: array for key, array in self.pairs.items() if key not in left_out},
            methods={key: how for key, how in self.methods.items() if key not in left_out},
            unmapped={**self.unmapped, **{"/".join(key): array for key, array in left_out.items()}},
        )


def slot_table(
    stored: Stored, algorithm: Algorithm, config: Mapping[str, Any], named: NamedVariables | None = None
) -> SlotTable:
    """Return the owner of each tensor, by name if names show it, else by order and shape.

    Args:
      config: as `keras_config.completed` returns it.
      named: the trained variables as the user named them, which must all have slots.
    """
    if stored.weights is None:
        return _keyed(
            stored,
            algorithm,
            tf_train.slot_names(stored, algorithm, config) if stored.traits.has_tf_train_names else {},
        )
    table = _named(stored, algorithm, str(config.get("name") or algorithm.name))
    table = table if table is not None else _listed(stored, algorithm, config, named)
    return replace(table, scalars={**table.scalars, **stored.scalars}, unmapped={**table.unmapped, **stored.unmapped})


def _keyed(stored: Stored, algorithm: Algorithm, names: Mapping[str, str | None]) -> SlotTable:
    """Return the table of a source with slots by slot and variable.

    Args:
      names: `optim`'s, if the algorithm does not show them.
    """
    pairs: dict[tuple[str, str], LazyArray] = {}
    methods: dict[tuple[str, str], str] = {}
    unmapped, warnings = dict(stored.unmapped), dict[str, None]()
    shapes = {v.name: v.shape for v in stored.variables}
    for source_name, owners in stored.slots.items():
        slot = names[source_name] if source_name in names else algorithm.slot_of(source_name)
        if slot is None and source_name not in names and any(variable in shapes for variable in owners):
            raise ContradictionError(
                f"the source has a slot {source_name!r} ({next(iter(owners.values())).stored_as}, ...), which"
                f" {algorithm.name} does not have; it belongs to another class or an unknown rule"
            )
        for variable, array in owners.items():
            if slot is None or variable not in shapes:
                unmapped[f"{source_name}/{variable}"] = array
                continue
            wanted = algorithm.slot(slot).shape(shapes[variable])
            if wanted is None:
                unmapped[f"{source_name}/{variable}"] = array
                warnings[UNREAD] = None
                continue
            if array.shape != wanted:
                raise MismatchError(
                    f"slot {array.stored_as} has shape {list(array.shape)}; for its variable {variable} of"
                    f" shape {list(shapes[variable])} it must be {list(wanted)}"
                )
            pairs[slot, variable] = array
            methods[slot, variable] = stored.matched.get(f"{source_name}/{variable}", "object graph")
    order = _owners_of(pairs, stored)
    return SlotTable(pairs, methods, dict(stored.scalars), order, unmapped, tuple(warnings))


def _owners_of(pairs: Iterable[tuple[str, str]], stored: Stored) -> list[str]:
    """Return the variables with slots, in the order of the model."""
    owned = {variable for _, variable in pairs}
    return [v.name for v in stored.variables if v.name in owned]


def _named(stored: Stored, algorithm: Algorithm, optimizer_name: str) -> SlotTable | None:
    """Return the table of a list whose names show slot and variable, None if they do not."""
    weights = stored.weights or ()
    form = stored.traits.names_in_list
    if not form:
        return None
    pairs, rest, unread = strategies.by_name(weights, stored.variables, algorithm, optimizer_name, form == SLOT_LAST)
    scalars = {strategies.plain(n).rsplit("/", 1)[-1]: a for n, a in rest if a.shape == ()}
    leftover = [(n, a) for n, a in rest if a.shape != ()]
    named_counter = any(name in scalars or name in stored.scalars for name in COUNTERS)
    if not named_counter or len(pairs) < len(leftover):
        return None
    claims = []
    for name, _ in leftover:
        text = f"{name!r} belongs to no variable of the model: unmapped"
        claims.append(Origin(name, None, UNINTERPRETED, doubt=text))
    return SlotTable(
        pairs,
        dict.fromkeys(pairs, "name"),
        scalars,
        _owners_of(pairs, stored),  # the model's order, also after a restore
        {strategies.plain(name): array for name, array in (*unread, *leftover)},
        (UNREAD,) if unread else (),
        tuple(claims),
    )


def _listed(stored: Stored, algorithm: Algorithm, config: Mapping[str, Any], named: NamedVariables | None) -> SlotTable:
    """Return the table of a list that only its order explains."""
    generation = stored.generation or ""
    arrays = [array for _, array in stored.weights or ()]
    where = f"the list of {len(arrays)} weights"
    possible = orders.candidates(algorithm, generation, config)
    if traits(generation).has_release_orders:
        possible = orders.of_release(possible, stored.versions.keras_number or ())
    if any(name in COUNTERS for name in stored.scalars):  # then the list contains only slots
        possible = list(dict.fromkeys(tuple(x for x in order if not isinstance(x, str)) for order in possible))
    if traits(generation).lists_loss_scale and "LossScale" in str((stored.optimizer_config or {}).get("class_name")):
        possible += _untracked(possible, algorithm)
    owners = optional_slots.owners(stored, algorithm, config, where)
    whose = _Owners(stored, where, named, joined_names.read(stored, algorithm))
    readings, problem = _readings(orders.cuts(possible, arrays, generation, owners), whose)
    if not readings and traits(generation).lists_updated_only:
        readings, late = _readings(orders.staged(possible, arrays), whose)
        problem = problem or late
    whole = len(readings) > 1  # else signs decide nothing, and the writer of the state checks all of it
    fitting = [reading for reading in readings if orders.plausible(reading[0], algorithm, whole=whole)]
    if len(fitting) == 1:
        _check_numbers(stored, algorithm, fitting[0][0])
        return _from_reading(*fitting[0])
    if len(fitting) > 1:
        raise AmbiguousError(
            f"{where} fits more than one order of {algorithm.name} in generation {generation}:"
            f" {'; or '.join(dict.fromkeys(f[0].describe() for f in fitting))}; their shapes and signs are the"
            " same, so only a format with names can be migrated: save a TensorFlow checkpoint instead"
        )
    otherwise = "" if readings else _built_otherwise(algorithm, generation, config, arrays, whose)
    if otherwise:
        raise MismatchError(otherwise)
    if isinstance(problem, (AmbiguousError, ContradictionError)) and not readings:
        raise problem
    raise MismatchError(_unfitting(where, stored, algorithm, config, arrays, bool(readings), problem))


def _untracked(possible: Sequence[orders.FlatOrder], algorithm: Algorithm) -> list[orders.FlatOrder]:
    """Return orders without the variables that Keras 3's LossScaleOptimizer does not track in the optimizer inside.

    It builds the optimizer inside under `no_automatic_dependency_tracking`, and Nadam's product is tracked only when
    set.
    """
    left_out = {name for name, _ in algorithm.state_scalars}
    return list(dict.fromkeys(tuple(x for x in order if x not in left_out) for order in possible if left_out))


NUMBERED = re.compile(r"([a-z]+(?:_[a-z]+)*)_(\d+)(?:_\d+)?")
"""A name such as `m_2` of Keras 2.3, of the third variable."""
CREATED = re.compile(r"Variable(?:_(\d+))?")
"""Names of slots in Keras 1 and 2, in the order in which these create and list them."""


def _check_numbers(stored: Stored, algorithm: Algorithm, resolved: orders.Resolved) -> None:
    """Compare the order of a list with the numbers in its names.

    Raises:
      ContradictionError: a name is at a place of another slot, or of another variable's slot.
    """
    names = {id(array): strategies.plain(name).rpartition("/")[2] for name, array in stored.weights or ()}
    for slot, arrays in resolved.slots.items():
        for i, array in enumerate(arrays):
            match = NUMBERED.fullmatch(names.get(id(array), ""))
            named_slot = None if match is None else algorithm.slot_of(match.group(1))
            if match is not None and named_slot is not None and (named_slot, int(match.group(2))) != (slot, i):
                raise ContradictionError(
                    f"{match.group()!r} is in the list at the place of slot {slot} of variable {i}, and by its name"
                    f" it is {named_slot} of variable {match.group(2)}: {joined_names.DENIED}"
                )
    created = [match for name in names.values() if (match := CREATED.fullmatch(name)) is not None]
    numbers = [int(match.group(1) or 0) for match in created]
    for match, before, after in zip(created[1:], numbers, numbers[1:], strict=False):
        if after <= before:
            raise ContradictionError(
                f"{match.group()} comes after Variable_{before} in the list: {joined_names.DENIED}"
            )


_Reading = tuple[orders.Resolved, list[StoredVariable], str]
_Problem = MismatchError | AmbiguousError | ContradictionError


@dataclass(frozen=True)
class _Owners:
    """What shows the owners of a list's slots, in addition to its order: its names, the model, and the user."""

    stored: Stored
    where: str
    named: NamedVariables | None
    names: joined_names.Read

    def of(self, resolved: orders.Resolved) -> tuple[list[StoredVariable], str]:
        """Return the variables of a list that is split, in its order, and how they were found."""
        meant, variables = joined_names.allowed(self.names, resolved), self.stored.variables
        if meant and all(len(names) == 1 for names in meant):
            owners = joined_names.in_order(meant, variables, self.named is not None)
            if self.named is not None:
                strategies.check_complete(owners, variables, self.where)
            return owners, "name"
        owners, how = self._by_order(resolved)
        joined_names.check(meant, owners)
        return owners, how

    def _by_order(self, resolved: orders.Resolved) -> tuple[list[StoredVariable], str]:
        if resolved.restored:
            return strategies.by_shape_alone(resolved.stages[0], self.stored.variables, self.where), "shape"
        if self.stored.layers is not None:
            return _by_layers(self.stored, resolved, self.where), "shape"
        if self.named is None:
            return strategies.by_stages(resolved.stages, self.stored.variables, self.where, False)
        return strategies.by_stages(resolved.stages, _candidates(self.named), self.where, True)


def _candidates(named: NamedVariables) -> Sequence[StoredVariable]:
    """Return the variables that may have slots.

    These are all variables if the user's order is that of the source, as unnamed ones may have slots. In another order
    they are the named ones, which are then all that have slots.

    Raises:
      ContradictionError: the source shows the order in which they were trained, and it is another.
    """
    if named.contradicted:
        first, second = named.contradicted
        raise ContradictionError(
            f"--variables names {first} before {second}, but the optimizer in the source got them in the other"
            " order. Use that order, or remove --variables"
        )
    trained = {v.name: v for v in named.in_source if v.trainable}
    return named.in_source if tuple(trained) == named.order else [trained[name] for name in named.order]


def _readings(cut: Sequence[orders.Resolved], whose: _Owners) -> tuple[list[_Reading], _Problem | None]:
    """Return the ways of splitting a list for which there are variables, each different one once.

    Without any, also return why.
    """
    readings: dict[Any, _Reading] = {}
    problem: _Problem | None = None
    for resolved in cut:
        try:
            owners, how = whose.of(resolved)
        except (MismatchError, AmbiguousError, ContradictionError) as error:
            problem = problem if isinstance(problem, (AmbiguousError, ContradictionError)) else error
            continue
        readings.setdefault(_identity(resolved, owners), (resolved, owners, how))
    return list(readings.values()), problem


def _by_layers(stored: Stored, resolved: orders.Resolved, where: str) -> list[StoredVariable]:
    assert stored.layers is not None
    by_name = {v.name: v for v in stored.variables}
    shapes = [shape for stage in resolved.stages for shape in stage]
    return [by_name[name] for name in layers.match(stored.layers, shapes, where)]


def _identity(resolved: orders.Resolved, owners: Sequence[StoredVariable]) -> Any:
    """Return a value that distinguishes a reading from another."""
    pairs = {
        (slot, v.name, id(a))
        for slot, arrays in resolved.slots.items()
        for v, a in zip(owners, arrays, strict=True)
        if a is not None
    }
    return frozenset(pairs), frozenset((name, id(a)) for name, a in resolved.scalars.items())


def _unfitting(
    where: str,
    stored: Stored,
    algorithm: Algorithm,
    config: Mapping[str, Any],
    arrays: Sequence[LazyArray],
    negative: bool,
    problem: Exception | None,
) -> str:
    if negative:
        return (
            f"{where} would have negative numbers where {algorithm.name} in generation {stored.generation} has"
            " sums of squares: it is in another order, so --generation or the order of the variables is wrong"
        )
    if problem is not None:
        return str(problem)
    trained = sum(v.trainable is not False for v in stored.variables)
    generation = stored.generation or ""
    description = "; or ".join(orders.describe(o) for o in orders.candidates(algorithm, generation, config))
    others = [
        g
        for g in sorted(having(lambda t: t.lists_weights), key=GENERATIONS.index)
        if g != generation and orders.cuts(orders.candidates(algorithm, g, config), arrays, g)
    ]
    is_told = stored.optimizer_config is None  # else the source shows its generation, too
    hint = f" Its length would fit generation {' or '.join(others)}." if others and is_told else ""
    return (
        f"{where} does not fit {algorithm.name} of generation {generation} with {trained}"
        f" variables, which keeps: {description}. It is incomplete, or of another optimizer, or --variables lacks"
        f" some.{hint}"
    )


BUILT_WITH: Mapping[str, tuple[Any, str]] = {
    "momentum": (0.9, "VALUE"),
    "amsgrad": (True, "true"),
    "centered": (True, "true"),
    "use_ema": (True, "true"),
}
"""Options that create slots when an optimizer is built: a value with which they do, and how the user sets it."""


def _built_otherwise(
    algorithm: Algorithm, generation: str, config: Mapping[str, Any], arrays: Sequence[LazyArray], whose: _Owners
) -> str:
    """Return the message for a list that fits with options that are off, the fewest; empty if it does not fit.

    Averages are rare: they are named if nothing else fits.
    """
    off = [key for key in BUILT_WITH if key != "use_ema" and key in config and not config[key]]
    choices: list[Iterable[tuple[str, ...]]] = [combinations(off, count) for count in range(1, len(off) + 1)]
    if traits(generation).has_averages and not config.get("use_ema"):
        choices += [((*keys, "use_ema") for keys in combinations(off, count)) for count in range(len(off) + 1)]
    for choice in choices:
        fitting = [
            keys
            for keys in choice
            for built in [{**config, **{key: BUILT_WITH[key][0] for key in keys}}]
            if _readings(orders.cuts(orders.candidates(algorithm, generation, built), arrays, generation), whose)[0]
        ]
        if fitting:
            named = [" and ".join(keys) for keys in fitting]
            settings = [
                f"{key}={config.get(key, False)!r}" for key in dict.fromkeys(key for keys in fitting for key in keys)
            ]
            forms = [" ".join(f"--set {key}={BUILT_WITH[key][1]}" for key in keys) for keys in fitting]
            return (
                f"{whose.where} is that of {algorithm.name} with {' or '.join(named)}, and the config has"
                f" {' and '.join(settings)}: it was changed after the optimizer was built, or the list is from another"
                f" run. Set what it was built with: {' or '.join(forms)}; you can change it again after loading"
            )
    return ""


def _from_reading(resolved: orders.Resolved, owners: Sequence[StoredVariable], how: str) -> SlotTable:
    pairs = {
        (slot, v.name): a
        for slot, arrays in resolved.slots.items()
        for v, a in zip(owners, arrays, strict=True)
        if a is not None
    }
    warnings = [UNREAD] if resolved.unread else []
    if resolved.placeholders:
        warnings.append(f"skipped {len(resolved.placeholders)} placeholder zeros for the unused slot vhat")
    if how == "shape":
        warnings.append(
            "the flags in the source do not name the trained variables; by their shapes they are"
            f" {', '.join(v.name for v in owners)}"
        )
    return SlotTable(
        pairs,
        dict.fromkeys(pairs, how),
        dict(resolved.scalars),
        [v.name for v in owners],
        {f"{slot}/{owners[i].name}": array for i, slot, array in resolved.unread},
        tuple(warnings),
        release=Versions(tensorflow=resolved.release) if resolved.release else UNKNOWN,
    )
