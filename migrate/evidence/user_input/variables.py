"""Put the user's variables and generation into a source, and ask for what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any, NoReturn

import numpy as np

from migrate import generations
from migrate.algorithms import patterns
from migrate.bytes.messages import some
from migrate.claims import FILE, HINT, SET, Origin, Questions, asking, confirming
from migrate.errors import ContradictionError, MissingHintError
from migrate.evidence import class_candidates
from migrate.evidence.user_input.hints import CONFIG_FORM, Variables
from migrate.matching import choosing, strategies
from migrate.releases.narrowing import newer
from migrate.state import NamedVariables, Stored, StoredVariable
from optim import slot_layout
from optim.errors import HyperparameterError, MismatchError, UnsupportedError

ORDERED = ("h5", "tf1_saver")
"""Formats that show in which order a model of those generations trains, unless its layers are needed."""
SHOWN = 4
"""How many names of variables a message shows."""


@dataclass(frozen=True)
class Hinted:
    """A source with the user's hints on generation and variables.

    Attributes:
      named: the variables as the user names them, None if the user does not name them.
      generation: the origin of the generation.
    """

    stored: Stored
    named: NamedVariables | None
    generation: Origin


def with_hints(
    stored: Stored,
    optimizer_config: Mapping[str, Any] | None,
    variables: Variables | None,
    generation: str | None,
    overrides: Mapping[str, Any],
) -> Hinted:
    """Put the hints on generation and variables into a source.

    Raises:
      MissingHintError: something is still missing. ContradictionError: the source contradicts it.
    """
    stored, origin = with_generation(stored, generation, overrides)
    named = None
    variables = _spelled_out(stored, variables)
    if variables is not None and stored.nameless:
        stored = _named(stored, variables)
        named = _as_named(stored, stored.variables)
    elif variables is not None:
        hinted = _hinted_variables(stored, variables)
        _check_known(stored, hinted)
        named = _as_named(stored, hinted)
        stored = _with_twins_in_order(replace(stored, variables=hinted, layers=None), named.order)
    documents = (optimizer_config, stored.optimizer_config, stored.graph_config)
    has_class = any(document is not None and document.get("class_name") for document in documents)
    missing = _missing(stored, has_class or "class_name" in overrides, optimizer_config)
    if missing:
        why = f", as {stored.effects.other_graph}" if stored.effects.other_graph else ""
        text = f"the source ({stored.format}) does not contain everything{why}; add {'; '.join(missing)}"
        fitting = class_candidates.named(stored) or class_candidates.classes(stored)[:SHOWN]
        fitting = fitting if len(missing) == 1 and CLASS in missing[0] else []
        raise asking(MissingHintError(text), Questions({}, tuple({"class_name": name} for name in fitting)))
    return Hinted(stored, named, origin)


def _spelled_out(stored: Stored, hint: Variables | None) -> Sequence[Mapping[str, Any]] | None:
    """Return the hint with names and shapes in place of patterns, which choose variables in the source's order.

    Raises:
      HyperparameterError: a pattern chooses no variable.
    """
    if hint is None:
        return None
    shapes = {} if stored.nameless else {v.name: v.shape for v in stored.variables}
    rows: list[Mapping[str, Any]] = []
    for entry in hint:
        if isinstance(entry, str):
            (names,) = patterns.chosen("--variables", [entry], list(shapes))
            if not names:
                raise patterns.nothing("--variables", [entry], list(shapes))
            rows += [{"name": name, "shape": shapes[name]} for name in names]
        else:
            rows.append(entry)
    return list({repr(row): row for row in rows}.values()) if any(isinstance(e, str) for e in hint) else rows


def _as_named(stored: Stored, hinted: Sequence[StoredVariable]) -> NamedVariables:
    """Return the user's variables of a source, next to what the source shows.

    Optimizers before OptimizerV2 got the model's variables from `compile`; later ones take any order in a loop.
    """
    order = tuple(v.name for v in hinted if v.trainable)
    flags, at = {v.name: v.trainable for v in stored.variables}, {v.name: i for i, v in enumerate(stored.variables)}
    left_out = tuple(name for name, flag in flags.items() if flag and name not in order)
    in_source = tuple(sorted(hinted, key=lambda v: at.get(v.name, len(at))))
    by_model = stored.format in ORDERED and stored.layers is None and stored.traits.is_native
    turned = [pair for pair in pairwise(order) if at.get(pair[0], 0) > at.get(pair[1], 0)]
    known = by_model and all(flags.get(name) is not None for name in order)
    return NamedVariables(order, in_source, left_out, turned[0] if turned and known else (), stored)


def with_generation(stored: Stored, generation: str | None, overrides: Mapping[str, Any]) -> tuple[Stored, Origin]:
    """Put the user's generation into a source. Raises ContradictionError: the source has another generation."""
    if "generation" in overrides:
        name = generations.check(str(overrides["generation"]))
        return replace(stored, generation=name), Origin("generation", name, SET, f"the source has {stored.generation}")
    if generation is None:
        doubt = newer(stored.versions)
        confirm = confirming("generation", stored.generation) if doubt else ""
        return stored, Origin("generation", stored.generation, FILE, "; ".join(stored.evidence[-1:]), doubt, confirm)
    generations.check(generation)
    if stored.generation not in (None, generation):
        raise ContradictionError(
            f"the source is of generation {stored.generation} ({'; '.join(stored.evidence[-2:])}) and --generation is"
            f" {generation}. Remove --generation, or override the source with --set generation={generation}"
        )
    return replace(stored, generation=generation), Origin("generation", generation, HINT, "--generation")


def _missing(stored: Stored, has_class: bool, optimizer_config: Mapping[str, Any] | None) -> list[str]:
    missing = []
    if not has_class and _is_bare(stored):
        _refuse_bare(stored)
    if not has_class and optimizer_config is not None:
        missing.append(f"{CLASS}, as --optimizer-config does not name the class")
    elif not has_class:
        missing.append(
            f"{CLASS} with the optimizer's class{_likely(stored)}, or --optimizer-config FILE with class"
            f" and config, as JSON: {CONFIG_FORM}"
        )
    if stored.generation is None:
        missing.append(f"--generation NAME, what wrote it: one of {', '.join(generations.GENERATIONS)}")
    if stored.nameless:
        form = ", ".join(f'{{"name": ..., "shape": {list(v.shape)}}}' for v in stored.variables)
        missing.append(f"--variables FILE with the names of its {len(stored.variables)} variables, as JSON: [{form}]")
    if not stored.variables and stored.weights is not None:
        missing.append(
            '--variables FILE with the trained variables in order, as JSON: [{"name": "dense/kernel",'
            ' "shape": [5, 7]}, ...]'
        )
    return missing


CLASS = "--set class_name=CLASS"


def _is_bare(stored: Stored) -> bool:
    """Return whether a source holds nothing of an optimizer."""
    return not (stored.slots or stored.scalars or stored.optimizer_name or stored.effects) and stored.weights is None


def _refuse_bare(stored: Stored) -> NoReturn:
    none = f". If its optimizer has no state, as plain gradient descent, add {CLASS}" if stored.generation else ""
    raise UnsupportedError(
        f"the source ({stored.format}) has no optimizer state, only variables ({len(stored.variables)}): migrate the"
        f" checkpoint that the training run wrote{none}; {choosing.OF_NEW_CLASS}"
    )


def _likely(stored: Stored) -> str:
    """Return what shows the class, as far as anything does."""
    fitting = class_candidates.classes(stored)
    if not stored.slots:
        listed = [f"its list fits {some(fitting, SHOWN)}"] if fitting else []
        name = stored.optimizer_name or ((stored.optimizer_config or {}).get("config") or {}).get("name")
        named = [f"its name may be {name}"] if isinstance(name, str) else []
        return f" ({'; '.join([*listed, *named])})" if listed or named else ""
    slots = f"its slots are called {some(sorted(stored.slots), SHOWN)}"
    return f" ({slots}, as in {some(fitting, SHOWN)})" if fitting and fitting != sorted(stored.slots) else f" ({slots})"


def _hinted_variables(stored: Stored, hint: Sequence[Mapping[str, Any]]) -> tuple[StoredVariable, ...]:
    """Return the hint's variables, with the source's own values if it has a variable of that name."""
    by_name = {strategies.plain(v.name): v for v in stored.variables}
    rows = []
    for entry in hint:
        name, shape, dtype = row(entry)
        match = by_name.pop(name, None)
        if match is not None and match.shape != shape:
            option = "grown" if slot_layout.is_grown(match.shape, shape) else "fresh"
            new = choosing.typed(option, [name], [v.name for v in stored.variables])
            raise MismatchError(
                f"--variables gives {name!r} the shape {list(shape)}, the source has {list(match.shape)}; where it is"
                f" another in a new model, add {new}"
            )
        if match is not None and match.array is not None and dtype not in (None, match.dtype):
            raise MismatchError(f"--variables gives {name!r} the dtype {dtype}, the source has {match.dtype}")
        rows.append(
            replace(match, trainable=True) if match else StoredVariable(name, None, shape, dtype or "float32", True)
        )
    return (*_distinct(rows), *(replace(v, trainable=False) for v in by_name.values()))


def row(entry: Mapping[str, Any]) -> tuple[str, tuple[int, ...], str | None]:
    """Return name, shape and, if it is given, dtype of a trained variable; other members of a row are ignored.

    Raises:
      HyperparameterError: anything else, or a variable that is not trained.
    """
    members = entry if isinstance(entry, Mapping) else {}
    name, shape, dtype = members.get("name"), members.get("shape"), members.get("dtype")
    dtype = getattr(dtype, "name", dtype)  # a dtype of NumPy or TensorFlow
    sizes: list[Any] = list(shape) if isinstance(shape, Iterable) and not isinstance(shape, str) else [None]
    is_shape = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in sizes)
    if not (isinstance(name, str) and name and is_shape and isinstance(dtype, (str, type(None)))):
        raise HyperparameterError(
            f'--variables needs a list of {{"name": ..., "shape": [...]}} objects; {entry!r} is not one'
        )
    if members.get("trainable", True) is not True:
        raise HyperparameterError(
            f"--variables takes the variables that the optimizer trains, in its order, and calls {name!r} untrained."
            " Remove it"
        )
    return strategies.plain(name.strip()), tuple(int(n) for n in sizes), dtype


def _check_known(stored: Stored, hinted: Sequence[StoredVariable]) -> None:
    """Refuse names that a source does not have, if it stores values, or at least slots, by name.

    Raises:
      ContradictionError: with the names that the source has.
    """
    stored_names = {v.name for v in stored.variables if v.array is not None}
    stored_names = stored_names or {name for owners in stored.slots.values() for name in owners}
    strange = [v.name for v in hinted if v.trainable and v.name not in stored_names]
    if stored_names and strange:
        others = some(sorted(stored_names - {v.name for v in hinted if v.trainable}) or sorted(stored_names), SHOWN)
        raise ContradictionError(
            f"--variables names {some(strange, SHOWN)}, which the source does not have; its own, as `dtopt migrate"
            f" inspect` shows them, are {others}; where they are new in a new model, add"
            f" {choosing.typed('fresh', strange, [v.name for v in hinted if v.trainable])}"
        )


def _with_twins_in_order(stored: Stored, order: Sequence[str]) -> Stored:
    """Return the source with slots of identical variables under the user's names, in the optimizer's order.

    Raises:
      ContradictionError: a variable that the slots do name has another place in that order.
    """
    twins = stored.twins
    if twins is None:
        return stored
    if stored.weights is not None:  # the slots are matched to variables in the order of the hint
        return replace(stored, twins=None)
    alike = {name: group for group in twins.groups for name in group}
    slotted = [name for name in order if name in alike or name in twins.order]
    for i, (documents, stored_names) in enumerate(zip_longest(slotted, twins.order, fillvalue="")):
        fit = alike.get(stored_names, (stored_names,))
        if documents not in fit or not documents:
            raise ContradictionError(
                f"the optimizer's slots at position {i} are of {' or '.join(fit) or 'no variable'}, and --variables has"
                f" {documents or 'no variable'} there; it takes all variables that the optimizer trains, in its order"
            )
    names = dict(zip(twins.order, slotted, strict=True))
    return replace(_with_owners(stored, names), twins=None)


def _with_owners(stored: Stored, names: Mapping[str, str]) -> Stored:
    """Return the source with slots of one name under another name."""
    slots = {slot: {names[n]: array for n, array in owners.items()} for slot, owners in stored.slots.items()}
    return replace(stored, slots=slots, matched={f"{slot}/{n}": "position" for slot in slots for n in slots[slot]})


def _named(stored: Stored, hint: Sequence[Mapping[str, Any]]) -> Stored:
    """Return a source that knows its variables only by position, with the user's names in that order.

    Raises:
      MismatchError: the source has other variables.
    """
    rows = _hinted_variables(replace(stored, variables=()), hint)
    slot_shapes, shapes = [list(v.shape) for v in stored.variables], [list(row.shape) for row in rows]
    if slot_shapes != shapes:
        raise MismatchError(
            f"--variables gives the shapes {shapes}, and the optimizer's slots have, in order, {slot_shapes}"
        )
    names = {v.name: row.name for v, row in zip(stored.variables, rows, strict=True)}
    variables = tuple(replace(v, name=names[v.name]) for v in stored.variables)
    return replace(_with_owners(stored, names), nameless=False, variables=variables)


def _distinct(rows: Sequence[StoredVariable]) -> list[StoredVariable]:
    """Number variables of one name, as nested models have them, as TensorFlow would: `a`, `a_1`, ..."""
    taken = {row.name for row in rows}
    seen: set[str] = set()
    result = []
    for row in rows:
        name, number = row.name, 1
        while name in seen or (name != row.name and name in taken):
            name, number = f"{row.name}_{number}", number + 1
        seen.add(name)
        result.append(replace(row, name=name))
    return result
