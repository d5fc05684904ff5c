"""Variables of one name and one shape in an object graph, whose slots only their order tells apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import migrate
from migrate.errors import AmbiguousError, ContradictionError
from migrate.readers import tf_object
from optim.errors import HyperparameterError, MismatchError
from tests.helpers.bundles import of_module

ADAM = {"class_name": "Adam", "config": {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}}


def _alike(folder: Path, names: list[str], slots: list[str]) -> str:
    """A checkpoint of variables of these names, all of one shape, and slots of these, whose values count."""
    import tensorflow as tf

    variables = [tf.Variable(tf.fill((2,), float(i)), name=name) for i, name in enumerate(names)]
    first_slots = [tf.Variable(tf.fill((2,), 100.0 + i), name=f"Adam/m/{name}") for i, name in enumerate(slots)]
    other = [tf.Variable(tf.fill((2,), 200.0 + i), name=f"Adam/v/{name}") for i, name in enumerate(slots)]
    return of_module(folder, variables, {"_momentums": first_slots, "_velocities": other})


def _paired(source: str, **hints: Any) -> dict[str, float]:
    state = migrate.read(source, optimizer_config=ADAM, **hints)
    return {name: float(array.load()[0]) for name, array in state.slots["m"].items()}


def _order(*names: int | str) -> list[dict[str, Any]]:
    return [{"name": name if isinstance(name, str) else f"model.vs.{name}", "shape": [2]} for name in names]


def test_the_order_of_variables_that_are_alike_is_an_assumption(tmp_path: Path) -> None:
    source = _alike(tmp_path, ["same"] * 12, ["same"] * 12)
    in_order = {f"model.vs.{i}": 100.0 + i for i in range(12)}
    state = migrate.read(source, optimizer_config=ADAM)
    doubt = next(o for o in state.origins if o.subject == "order of variables")
    assert (doubt.certain, doubt.confirm) == (False, "--set slot_order=source")
    assert "model.vs.0, model.vs.1" in doubt.reason
    assert "and 8 more" in doubt.reason
    assert _paired(source) == _paired(source, overrides={"slot_order": "source"}) == in_order
    state = migrate.read(source, optimizer_config=ADAM, overrides={"slot_order": "source"})
    assert all(o.certain for o in state.origins if o.subject == "order of variables")
    assert _paired(source, variables=_order(*reversed(range(12)))) == {f"model.vs.{i}": 111.0 - i for i in range(12)}
    with pytest.raises(HyperparameterError, match="slot_order is 'name'; it takes source"):
        migrate.read(source, optimizer_config=ADAM, overrides={"slot_order": "name"})


def test_an_order_that_the_named_slots_deny_is_refused(tmp_path: Path) -> None:
    source = _alike(tmp_path, ["same", "first", "same", "last"], ["last", "same", "first", "same"])
    with pytest.raises(AmbiguousError, match=r"had others in another order.*--variables FILE"):
        migrate.read(source, optimizer_config=ADAM)
    hint = _order("last", 2, "first", 0)
    assert _paired(source, variables=hint) == {"last": 100.0, "model.vs.2": 101.0, "first": 102.0, "model.vs.0": 103.0}
    wrong = {
        r"position 1 are of model\.vs\.0 or model\.vs\.2, and --variables has first": _order("last", "first", 2, 0),
        r"position 3 .* --variables has no variable there": _order("last", 2, "first"),
    }
    for message, hint in wrong.items():
        with pytest.raises(ContradictionError, match=message):
            migrate.read(source, optimizer_config=ADAM, variables=hint)


def test_which_of_some_that_are_alike_have_slots_is_asked(tmp_path: Path) -> None:
    source = _alike(tmp_path, ["same"] * 3, ["same"] * 2)
    with pytest.raises(AmbiguousError, match=r"model\.vs\.2, and some of these have no slots.*--variables FILE"):
        migrate.read(source, optimizer_config=ADAM)
    assert _paired(source, variables=_order(2, 0)) == {"model.vs.2": 100.0, "model.vs.0": 101.0}
    with pytest.raises(MismatchError, match="which are fewer"):
        tf_object.read(_alike(tmp_path / "b", ["same"] * 2, ["same"] * 3))
