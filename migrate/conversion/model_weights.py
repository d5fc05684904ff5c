"""The weights of a source alone: its model's variables, with an optimizer before its first step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from migrate import claims, readers
from migrate.algorithms import nadam
from migrate.bytes.source import open_source
from migrate.conversion import partial
from migrate.evidence.interpret import interpret
from migrate.evidence.user_input.hints import Hints, check_unused
from migrate.evidence.user_input.variables import with_generation
from migrate.matching.strategies import is_statistic
from migrate.models import missing_settings
from migrate.releases import modules
from migrate.releases.versions import UNKNOWN
from migrate.state import Effects, OptimizerState, Stored, StoredVariable
from optim import slot_layout
from optim.bytes import files
from optim.errors import HyperparameterError, UnsupportedError

RESET = "weights only: the optimizer is reset on purpose, and its slots and step counter start fresh"
STARTS = {nadam.PRODUCT: 1.0, slot_layout.ACCUMULATED_STEPS: 0, slot_layout.FINITE_STEPS: 0}
"""Optimizer-wide state before the first step."""


def of_source(path: str, hints: Mapping[str, Any]) -> OptimizerState:
    """Return the variables of a source for a live optimizer, which defines class and hyperparameters.

    Args:
      hints: the user's, as for `read`.

    Raises:
      HyperparameterError: hints about an optimizer, which would be unused. UnsupportedError: no values.
    """
    unused = [name for name in ("optimizer_config", "overrides", "source_variables") if hints.get(name)]
    if unused:
        raise HyperparameterError(
            f"weights_only uses nothing of the source's optimizer, and the live one has its own settings; leave out"
            f" {', '.join(unused)}"
        )
    content = _content(path, hints)
    if isinstance(content, Stored):
        content = OptimizerState("", {}, 0, "", {}, content.variables, source=content, warnings=content.warnings)
    state = _reset(replace(content, algorithm="", hyperparameters={}, scalars={}), path)
    state.finish_checks()
    return state


def for_target(path: str, hints: Hints, to: str) -> OptimizerState:
    """Return the variables of a source with its optimizer, or with the one in the hints, before the first step.

    Args:
      hints: the user's, as for `read`. to: the target format.

    Raises:
      UnsupportedError: a target without variables, or a model that trains others than the source has.
    """
    if to == "list":
        raise UnsupportedError(
            "weights only: the optimizer is reset, and a list has no other content; migrate to slots"
        )
    from migrate.models import plan

    state = _with_optimizer(path, hints)
    if to == "slots":
        return state
    adapted = missing_settings.adapted(state.source.model) if state.source is not None else []
    if adapted:
        raise UnsupportedError(f"{adapted[0]}; migrate to slots")
    return plan.filled(state, [v.name for v in state.variables if v.trainable], [])


def _with_optimizer(path: str, hints: Hints) -> OptimizerState:
    content = _content(path, hints)
    if isinstance(content, OptimizerState) and not _names_new_optimizer(hints):
        check_unused(path, hints)
        return _reset(content, path)
    stored = content if isinstance(content, Stored) else content.source
    assert stored is not None
    with_generation(stored, hints.get("generation"), {})
    bare = replace(
        stored, slots={}, scalars={}, matched={}, unmapped={}, twins=None, effects=Effects(), graph_config=None
    )
    bare = replace(bare, weights=None, variables=tuple(map(_flagged, stored.variables)))
    if _names_new_optimizer(hints):
        bare = replace(
            bare,
            generation=modules.GENERATION[modules.KERAS_3],
            optimizer_config=None,
            optimizer_name=None,
            versions=UNKNOWN,
        )
    overrides = {**(hints.get("overrides") or {}), "iterations": 0}
    state = interpret(
        bare,
        optimizer_config=hints.get("optimizer_config"),
        variables=hints.get("variables"),
        generation=None if _names_new_optimizer(hints) else hints.get("generation"),
        overrides=overrides,
    )
    source = replace(stored, optimizer_config=state.source.optimizer_config) if state.source is not None else stored
    return _reset(replace(state, source=source), path)


def _content(path: str, hints: Mapping[str, Any]) -> Stored | OptimizerState:
    with files.answers_kept(path):
        opened = open_source(path)
        format_ = str(hints.get("format") or "auto")
        content = readers.detect(path, format_).read(path, hints.get("generation"), hints.get("optimizer_path"))
        opened.check()
    if not any(v.array is not None for v in content.variables):
        raise UnsupportedError(f"{path} has no values of a model's variables, so there are no weights to migrate")
    return content


def _names_new_optimizer(hints: Mapping[str, Any]) -> bool:
    return bool(
        (hints.get("optimizer_config") or {}).get("class_name") or "class_name" in (hints.get("overrides") or {})
    )


def _flagged(variable: StoredVariable) -> StoredVariable:
    """Set a flag even if the source does not show what is trained."""
    if variable.trainable is not None:
        return variable
    return replace(variable, trainable=not is_statistic(variable.name))


def _reset(state: OptimizerState, path: str) -> OptimizerState:
    return replace(
        state,
        iterations=0,
        iterations_source="weights only",
        slots={},
        scalars={name: STARTS.get(name, value) for name, value in state.scalars.items()},
        unmapped={},
        matched={},
        origins=claims.doubts(partial.OPTIMIZER, [RESET]),
        opened=open_source(path),
    )
