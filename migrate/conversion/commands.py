"""The call that fills today's live optimizer, for errors about models that cannot be written."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import optim
from migrate import algorithms, surfaces
from migrate.bytes import messages
from migrate.claims import Questions, asking
from migrate.releases import modules
from migrate.rules import comparison, keras_targets
from migrate.state import OptimizerState
from optim.errors import DtoptError

ARGUMENTS = {"variables": "source_variables"}
"""Hints with another name in `migrate.restore`."""
RESTORE = "migrate.restore"
LONGEST = 250
"""Most characters of a call."""
SAID_FIRST = 110
"""Characters of a message that are left for the error itself."""


def calls(
    function: str, places: Sequence[str], arguments: Mapping[str, Any], asked: Questions
) -> tuple[str, tuple[str, ...]]:
    """Return the call that answers every question with one answer, and calls with each answer to the others.

    Args:
      places: positional arguments, as they are written. arguments: keyword arguments.
    """
    options = {name: value for name, value in arguments.items() if value not in (None, False, "auto", {}, ())}

    def call(more: Mapping[str, Any]) -> str:
        settings = {name: value for name, value in more.items() if name not in surfaces.ARGUMENTS}
        named = {surfaces.ARGUMENTS[name]: value for name, value in more.items() if name not in settings}
        if function == RESTORE:
            named = {ARGUMENTS.get(name, name): value for name, value in named.items()}
        overrides = {**(options.get("overrides") or {}), **settings}
        return surfaces.call(function, *places, **{**options, **named, "overrides": overrides or None})

    return call(asked.answers) if asked.answers else "", tuple(map(call, asked.choices))


@contextmanager
def answered(ask: Callable[[Questions], tuple[str, tuple[str, ...]]]) -> Iterator[None]:
    """Add calls with answers to errors that ask something."""
    try:
        yield
    except DtoptError as error:
        if isinstance(error.questions, Questions):
            asking(error, error.questions, *ask(error.questions))
        raise


def restore_call(source: str, hints: Mapping[str, Any], longest: int = LONGEST) -> str:
    """`migrate.restore(...)` for a source with the given hints and a model named `model`. Values that would make it
    longer than `longest` are only named."""
    options = {ARGUMENTS.get(name, name): value for name, value in hints.items() if value not in (None, "auto", {})}
    named = "".join(f", {name}={comparison.as_written(value)!r}" for name, value in options.items())
    into = "model.optimizer, model.weights, restore_variables=True"
    hints_too = (", **hints", f", where hints is a dict of {', '.join(options)} as given here") if options else ("", "")
    calls = [
        f"migrate.restore({source!r}, {into}{named})",
        *(f"migrate.restore({place}, {into}{hints_too[0]}){hints_too[1]}" for place in (repr(source), "source")),
    ]
    return next((call for call in calls if len(call) <= longest), calls[-1])


ALIKE = ("name", "lazy_rows", "lazy_rows_keep_slots")
"""Arguments of `optim` that a call need not repeat."""
FAMILIES = {"keras": (modules.KERAS_3,), "tf-keras": (modules.TF_KERAS, modules.TF_KERAS_LEGACY)}


def instead(state: OptimizerState, target: str, source: str, hints: Mapping[str, Any]) -> str:
    """The advice if `--to keras` or `--to tf-keras` cannot write a model."""
    if not algorithms.is_known(state.algorithm):
        custom_objects = (
            "" if state.algorithm in optim.__all__ else f", custom_objects={{{state.algorithm!r}: YourClass}}"
        )
        return f"Migrate to slots (--to slots), and continue with optim.load_checkpoint(...{custom_objects})"
    compiled = "compiled"
    early = state.hyperparameters.get("stacks")  # Muon of Keras 3.10 to 3.12, later ones have only the name
    if early or not any(keras_targets.has(family, state.algorithm) for family in FAMILIES[target]):
        compiled = f"compiled with optim.for_keras(optim.{state.algorithm}({_changed_arguments(state)}))"
    return with_model(compiled, source, hints)


def with_model(compiled: str, source: str, hints: Mapping[str, Any]) -> str:
    """Return the call that fills a model of today's code; `compiled` is how that model was compiled."""
    begins = f"With the model built and {compiled} in today's code as `model`: "
    room = messages.LONGEST - SAID_FIRST - len(begins)
    return begins + restore_call(source, hints, min(LONGEST, room))


def _changed_arguments(state: OptimizerState) -> str:
    known = inspect.signature(getattr(optim, state.algorithm)).parameters
    alike = ALIKE if state.algorithm in comparison.RECTIFIED else (*ALIKE, "float32_powers")
    values = {name: value for name, value in state.hyperparameters.items() if name not in alike}
    changed = {n: v for n, v in values.items() if not comparison.same(v, known[n].default if n in known else None)}
    return ", ".join(f"{name}={comparison.as_written(value)!r}" for name, value in changed.items())
