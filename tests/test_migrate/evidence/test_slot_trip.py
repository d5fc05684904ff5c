"""How many files a reader has to open who follows one slot from a file through `interpret`.

`interpret` runs about 60 files of `migrate` for an ordinary `.h5`. Most of them answer questions about the class, its
config and the releases, and never meet a slot. A slot passes through a file if a function there has its array: as an
argument, a local variable or a result, alone or up to two levels deep in a mapping, a sequence or a record, as a slot
is in `{slot: {variable: array}}`. A record that has all of the source, as `Known` has, is deeper than that.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from migrate import readers
from migrate.evidence.interpret import interpret
from migrate.state import OptimizerState, Stored
from tests.places import CORPUS, ROOT

PACKAGE = ROOT / "migrate"
LEVELS = 2
MOST_ON_THE_TRIP, MOST_AT_ALL = 20, 70


def _has(value: Any, array: Any, levels: int = LEVELS) -> bool:
    if value is array:
        return True
    if not levels:
        return False
    if isinstance(value, Mapping):
        parts = [*value.values()]
    elif isinstance(value, (list, tuple)):
        parts = [*value]
    elif dataclasses.is_dataclass(value) and hasattr(value, "__dict__"):
        parts = [*vars(value).values()]
    else:
        return False
    return any(_has(part, array, levels - 1) for part in parts)


def _followed(stored: Stored, array: Any) -> tuple[OptimizerState, set[str], set[str]]:
    """The state, the files of `migrate` that ran, and those that the array passed through."""
    ran, passed = set[str](), set[str]()

    def look(frame: FrameType, event: str, value: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event in ("call", "return") and path.is_relative_to(PACKAGE):
            name = str(path.relative_to(PACKAGE))
            ran.add(name)
            if name not in passed and any(_has(candidate, array) for candidate in (value, *frame.f_locals.values())):
                passed.add(name)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        state = interpret(stored)
    finally:
        sys.setprofile(before)
    return state, ran, passed


@pytest.mark.parametrize(
    ("case", "slot"),
    [("tf24-adam-convbn", "Adam/dense_1/kernel/m:0"), ("keras224-adadelta-mlp", "training/Adadelta/Variable:0")],
)
def test_a_slot_passes_through_few_files(case: str, slot: str) -> None:
    source = str(CORPUS / case / "source" / "model.h5")
    stored = readers.detect(source).read(source, None, None)
    assert isinstance(stored, Stored)
    array = dict(stored.weights)[slot]
    state, ran, passed = _followed(stored, array)
    assert any(candidate is array for slots in state.slots.values() for candidate in slots.values()), "it arrived"
    assert "evidence/result.py" in passed, "the last file is seen"
    assert len(passed) <= MOST_ON_THE_TRIP, sorted(passed)
    assert passed <= ran
    assert len(ran) <= MOST_AT_ALL, sorted(ran)
