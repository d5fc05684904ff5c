"""One language chooses variables: regular expressions that are searched in names; a full name chooses itself alone."""

from __future__ import annotations

import re
from typing import Any

import pytest

import migrate
from migrate.algorithms import patterns
from optim.errors import HyperparameterError
from tests import adversary
from tests.places import CORPUS
from tests.test_migrate.confirm import typed

ADAMW = adversary.case(CORPUS / "keras38-adamw-convbn")
SOURCE = ADAMW.folder / ADAMW.source
BASE = [f"block{i}_conv{j}/{role}" for i in range(1, 6) for j in range(1, 4) for role in ("kernel", "bias")]
HEAD = ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"]


def _chosen(option: str, names: list[str]) -> list[str]:
    return list(patterns.in_overrides(typed(option), names)["untrained"])


def test_a_frozen_base_is_one_word() -> None:
    option = patterns.naming("untrained", BASE, [*BASE, *HEAD])
    assert option == "--set 'untrained=[\"block\"]'"
    assert _chosen(option, [*BASE, *HEAD]) == BASE


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (BASE[:8], [*BASE, *HEAD]),
        (BASE[2:], [*BASE, *HEAD]),
        (["a", "ab", "abc", "abcd", "abcde"], ["a", "ab", "abc", "abcd", "abcde", "b"]),
        (["a", "ab", "abc", "abcd", "abcde"], ["a", "ab", "abc", "abcd", "abcde", "xab"]),
        ([f"d_{i}/kernel:0" for i in range(9)], [f"d_{i}/{w}:0" for i in range(12) for w in ("kernel", "bias")]),
        (["a.b/c", "a.b/d", "a.b/e", "a.b/f", "a.b/g"], ["a.b/c", "a.b/d", "a.b/e", "a.b/f", "a.b/g", "aXb/c"]),
        (HEAD, [*BASE, *HEAD]),
    ],
    ids=("blocks", "most blocks", "prefixes", "one in another", "numbered", "dotted", "few"),
)
def test_patterns_choose_exactly_what_they_name(wanted: list[str], names: list[str]) -> None:
    assert sorted(_chosen(patterns.naming("untrained", wanted, names), names)) == sorted(wanted)


def test_a_full_name_chooses_no_longer_one() -> None:
    names = ["dense/kernel", "my_dense/kernel", "dense/kernel_1"]
    assert patterns.in_overrides({"untrained": ["dense/kernel"]}, names) == {"untrained": ["dense/kernel"]}
    (anchored,) = patterns.in_overrides({"weight_decay_exclude": ["dense/kernel"]}, names)["weight_decay_exclude"]
    assert [name for name in names if re.search(anchored, name)] == ["dense/kernel"]  # as `optim` does


@pytest.mark.parametrize("key", ["untrained", "weight_decay_exclude", "lazy_rows"])
def test_patterns_that_choose_nothing_are_refused(key: str) -> None:
    with pytest.raises(HyperparameterError, match=rf"{key}: no variable matches 'offset'.*such as .*gamma"):
        migrate.read(SOURCE, **ADAMW.hints, overrides={key: ["offset"]})


@pytest.mark.parametrize("value", ["kernel", [3], ["("]], ids=str)
@pytest.mark.parametrize("key", ["untrained", "weight_decay_exclude", "lazy_rows"])
def test_what_is_no_list_of_patterns_is_refused(key: str, value: Any) -> None:
    with pytest.raises(HyperparameterError, match=f"{key}.* regular expression"):
        migrate.read(SOURCE, **ADAMW.hints, overrides={key: value})


def test_variables_take_patterns() -> None:
    """As the names that they choose, in the order of the source."""
    source = CORPUS / "tf24-adam-convbn" / "source" / "model.h5"
    state = migrate.read(source)
    every = [{"name": v.name, "shape": list(v.shape)} for v in state.variables if v.trainable]
    by_name, by_pattern = (
        migrate.read(source, variables=every),
        migrate.read(source, variables=["^conv|gamma|beta|^dense_1"]),
    )
    assert by_pattern.slots.keys() == by_name.slots.keys()
    assert [v.name for v in by_pattern.variables if v.trainable] == [row["name"] for row in every]
    with pytest.raises(HyperparameterError, match=r"no variable matches 'kernal'.*such as conv2d/kernel"):
        migrate.read(source, variables=["kernal"])
