"""The result of `dtopt migrate inspect`: a source in its own terms, and how it would be migrated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from migrate import algorithms
from migrate.bytes.arrays import LazyArray, widened
from migrate.bytes.messages import worded
from migrate.claims import DEFAULT, FILE, NONE, Origin, Questions
from migrate.rules.comparison import same
from migrate.state import OptimizerState


@dataclass(frozen=True)
class Stats:
    """Statistics of one array, in float64: `norm` is the Euclidean norm; NaN and infinity make `finite` False."""

    norm: float
    min: float
    max: float
    finite: bool


@dataclass(frozen=True)
class SlotRow:
    """One slot of one variable."""

    variable: str
    slot: str
    shape: tuple[int, ...]
    dtype: str
    matched: str
    stored_as: str
    stats: Stats | None = None


@dataclass(frozen=True)
class Inspection:
    """A source, recognised and interpreted; nothing is written.

    Attributes:
      source: what was read, without the password of a URL.
      format: name of the reader.
      generation: who wrote it, one of `generations.GENERATIONS`.
      evidence: how that was recognised.
      versions: of Keras, TensorFlow and the backend, as far as the source shows them.
      optimizer: name of the class of `optim`.
      stored_config: the optimizer's config from the source or the hint, without defaults.
      hyperparameters: keyword arguments of the `optim` class that continues the training.
      iterations: the step count.
      iterations_source: where that number is stored.
      slots: one row for each slot of each variable.
      unmade: names of the optimizer's slots if it has not made a step and so lacks them.
      variables: name, shape, dtype and whether it is trained, of each model variable.
      unmapped: {name: shape} of what would be migrated without interpretation.
      fidelity: `exact` or `approximate`.
      reasons: why it is not exact.
      origins: the source of every value that the next step depends on; fidelity and reasons follow from it.
      warnings: notes that do not affect the fidelity.
      optimizers: paths of all optimizers in the source, if its format can hold several; this describes one.
      questions, confirm_command, choice_commands: as in `migrate.Report`.
    """

    source: str
    format: str
    generation: str | None
    evidence: tuple[str, ...]
    versions: Mapping[str, str]
    optimizer: str
    stored_config: Mapping[str, Any] | None
    hyperparameters: Mapping[str, Any]
    iterations: int
    iterations_source: str
    slots: tuple[SlotRow, ...]
    unmade: tuple[str, ...]
    variables: tuple[Mapping[str, Any], ...]
    unmapped: Mapping[str, tuple[int, ...]]
    fidelity: str
    reasons: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = ()
    warnings: tuple[str, ...] = field(default_factory=tuple)
    optimizers: tuple[str, ...] = ()
    questions: Questions = NONE
    confirm_command: str = ""
    choice_commands: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON. Shapes are lists; statistics that are not finite are left to the writer of the JSON."""
        return asdict(self)


def inspection(state: OptimizerState, source: str, *, stats: bool) -> Inspection:
    """Describe a state; with `stats` every slot is read once."""
    stored = state.source
    rows = tuple(
        SlotRow(
            variable,
            slot,
            array.shape,
            array.dtype,
            state.matched.get(f"{slot}/{variable}", "name"),
            array.stored_as,
            statistics(array) if stats else None,
        )
        for slot, owners in state.slots.items()
        for variable, array in owners.items()
    )
    return Inspection(
        source=source,
        format=stored.format if stored else "",
        generation=stored.generation if stored else None,
        evidence=stored.evidence if stored else (),
        versions=stored.versions.to_dict() if stored else {},
        optimizer=state.algorithm,
        stored_config=_without_defaults(stored.optimizer_config, state.origins) if stored else None,
        hyperparameters=dict(state.hyperparameters),
        iterations=state.iterations,
        iterations_source=state.iterations_source,
        slots=rows,
        unmade=() if rows else algorithms.slot_names(state.algorithm, state.hyperparameters),
        variables=tuple(
            {"name": v.name, "shape": v.shape, "dtype": v.dtype, "trainable": v.trainable} for v in state.variables
        ),
        unmapped={name: array.shape for name, array in state.unmapped.items()},
        fidelity=state.fidelity,
        reasons=state.reasons,
        origins=state.origins,
        warnings=tuple(map(worded, state.warnings)),
        optimizers=stored.optimizers if stored else (),
        questions=state.questions,
    )


def statistics(array: LazyArray) -> Stats:
    """Norm and range of one array, in float64."""
    values = widened(array.load(), array.dtype)
    if values.size == 0:
        return Stats(0.0, math.nan, math.nan, True)
    finite = bool(np.all(np.isfinite(values)))
    return Stats(float(np.linalg.norm(values)), float(values.min()), float(values.max()), finite)


def _without_defaults(document: Mapping[str, Any] | None, origins: Sequence[Origin]) -> Mapping[str, Any] | None:
    """The config without defaults, but with numbers stored elsewhere in the file, such as a learning rate."""
    if document is None or not isinstance(document.get("config"), Mapping):
        return document
    known = {origin.subject: origin for origin in origins}
    config = {key: value for key, value in document["config"].items() if key not in known or known[key].kind != DEFAULT}
    numbers = {k: o.value for k, o in known.items() if k in config and o.kind == FILE and _is_number(o.value)}
    other = {k: value for k, value in numbers.items() if _is_number(config[k]) and not same(config[k], value)}
    return {**document, "config": {**config, **other}}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
