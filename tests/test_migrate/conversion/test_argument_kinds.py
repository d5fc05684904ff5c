"""Wrong arguments are named before the file is opened: here there is no file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import migrate
from migrate.errors import ArgumentError

NOWHERE = Path("no such file.keras")


def _keras() -> Any:
    import keras

    return keras


def _model() -> Any:
    keras = _keras()
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


HINTS = {
    "a Keras optimizer": ({"optimizer_config": lambda: _keras().optimizers.Adam()}, "optimizer.get_config()"),
    "a config as text": ({"optimizer_config": lambda: '{"class_name": "Adam"}'}, "optimizer_config is"),
    "a number": ({"overrides": lambda: 3}, "overrides is 3; give a mapping"),
    "a list": ({"overrides": lambda: ["learning_rate=1"]}, "overrides is of the type list"),
    "a key that is no text": ({"overrides": lambda: {3: 4}}, "overrides has the key 3"),
    "a value that no config holds": ({"overrides": lambda: {"lr": [object()]}}, "overrides: 'lr' is of the type list"),
    "rows in a mapping": ({"variables": lambda: {"a": 1}}, "variables is of the type dict; give a list"),
    "a generation that is no text": ({"generation": lambda: 3}, "generation is 3; give a text"),
    "a format that is no text": ({"format": lambda: NOWHERE}, "format is of the type"),
    "a path that is no text": ({"optimizer_path": lambda: 0}, "optimizer_path is 0"),
}


@pytest.mark.parametrize("name", HINTS)
@pytest.mark.parametrize("function", ["read", "inspect", "migrate_checkpoint", "verify", "restore"])
def test_hints_of_another_kind_are_named(function: str, name: str, tmp_path: Path) -> None:
    factories, text = HINTS[name]
    hints = {key: value() for key, value in factories.items()}
    if function == "restore" and "variables" in hints:
        hints["source_variables"] = hints.pop("variables")
        text = f"source_{text}"
    more = {
        "read": (),
        "inspect": (),
        "migrate_checkpoint": (tmp_path / "dest",),
        "verify": (tmp_path / "dest",),
        "restore": (_keras().optimizers.Adam(), _model().weights),
    }[function]
    with pytest.raises(ArgumentError) as caught:
        getattr(migrate, function)(NOWHERE, *more, **hints)
    assert text in str(caught.value)


VARIABLES = {
    "a model": (_model, "variables is of the type Sequential; give its variables"),
    "an unbuilt model's": (lambda: _keras().Sequential([_keras().layers.Dense(1)]).weights, "Build it first"),
    "a number": (lambda: 3, "variables is 3; give a list of variables"),
    "a text": (lambda: "dense/kernel", "variables is 'dense/kernel'; give a list"),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_of_another_kind_are_named(name: str) -> None:
    factory, text = VARIABLES[name]
    with pytest.raises(ArgumentError) as caught:
        migrate.restore(NOWHERE, _keras().optimizers.Adam(), factory())
    assert text in str(caught.value)


OPTIMIZERS = {
    "a model": (_model, "give model.optimizer"),
    "a class": (lambda: _keras().optimizers.Adam, "optimizer is the class Adam; give an instance"),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_of_another_kind_are_named(name: str) -> None:
    factory, text = OPTIMIZERS[name]
    with pytest.raises(ArgumentError, match=text):
        migrate.restore(NOWHERE, factory(), _model().weights)


@pytest.mark.parametrize("function", ["read", "inspect", "contents"])
def test_a_source_that_is_no_path_is_named(function: str) -> None:
    with pytest.raises(ArgumentError, match="source is of the type Sequential; give the path"):
        getattr(migrate, function)(_model())


def test_a_misspelled_keyword_is_named() -> None:
    with pytest.raises(TypeError, match="no hint is called 'optimzer_config'"):
        migrate.restore(NOWHERE, _keras().optimizers.Adam(), _model().weights, optimzer_config={})  # type: ignore[call-arg]
