"""What the metadata of a slot-variable checkpoint may say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from optim.errors import CheckpointError
from optim.slot_layout import Metadata, VariableEntry

SOUND = Metadata("SGD", {}, (VariableEntry("w", (4, 5), "float32"),), {"m": ("w",)})


def test_it_is_read_as_it_was_written() -> None:
    assert Metadata.from_json(SOUND.to_json(), "here") == SOUND


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [4.04, 5]},
        {"shape": ["4", 5]},
        {"shape": None},
        {"name": ["w"]},
        {"dtype": 32},
        {"trainable": "false"},
        {"stored": None},
    ],
    ids=str,
)
def test_another_kind_of_value_is_damage(change: dict[str, Any]) -> None:
    document = json.loads(SOUND.to_json())
    document["variables"][0] |= change
    with pytest.raises(CheckpointError, match="here: its metadata is damaged"):
        Metadata.from_json(json.dumps(document), "here")
    del document["variables"][0][next(iter(change))]
    with pytest.raises(CheckpointError, match="here: its metadata is damaged"):
        Metadata.from_json(json.dumps(document), "here")
