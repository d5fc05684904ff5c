"""A part of a source into a live optimizer: a new last layer, a grown vocabulary, parts of a table, weights alone.

What is carried is compared with the arrays of the source, read by h5py, and with the next steps that its own release
took; what starts fresh with what a new optimizer has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import migrate
from migrate.errors import StrictError
from optim.errors import HyperparameterError, MismatchError, UnsupportedError
from tests.helpers import next_steps
from tests.places import CASE_FOLDER, CORPUS

CASE = CORPUS / "keras224-adadelta-mlp"
SOURCE = str(CASE / "source" / "model.h5")
SLOTS = ("accumulated_grad", "accumulated_delta_var")
ARGUMENTS = {"rho": 0.95, "epsilon": 1e-7}
Arrays = dict[str, np.ndarray]


@pytest.fixture(name="oracle")
def _oracle() -> Mapping[str, np.ndarray]:
    return dict(np.load(CASE / "oracle.npz"))


@pytest.fixture(name="names")
def _names() -> list[str]:
    return [v["name"].removesuffix(":0") for v in json.loads((CASE / "case.json").read_text())["trainable"]]


def _stored(number: int) -> Arrays:
    """The slots of a variable, by h5py."""
    with h5py.File(SOURCE) as file:
        weights = file["optimizer_weights"]
        listed = [np.asarray(weights[n.decode()]) for n in weights.attrs["weight_names"]]
    return dict(zip(SLOTS, (listed[number], listed[4 + number]), strict=True))


class Tensors:
    """Live variables of TensorFlow with an optimizer of some library."""

    def __init__(self, make: Callable[[Any], Any], arrays: Arrays, is_keras: bool = False):
        import keras
        import tensorflow as tf

        self.variables = {
            name: keras.Variable(a, name=name.replace("/", "_")) if is_keras else tf.Variable(a, name=name)
            for name, a in arrays.items()
        }
        self.optimizer = make(list(self.variables.values()))

    @property
    def target(self) -> Any:
        return self.optimizer

    def value(self, name: str) -> np.ndarray:
        return np.asarray(self.variables[name])

    def slot(self, slot: str, name: str) -> np.ndarray:
        if hasattr(self.optimizer, "_accumulated_grads"):
            lists = (self.optimizer._accumulated_grads, self.optimizer._accumulated_delta_vars)
            return np.asarray(lists[SLOTS.index(slot)][list(self.variables).index(name)])
        legacy_names = {"accumulated_grad": "accum_grad", "accumulated_delta_var": "accum_var"}
        is_legacy = "accum_grad" in getattr(self.optimizer, "get_slot_names", list)()
        return np.asarray(self.optimizer.get_slot(self.variables[name], legacy_names[slot] if is_legacy else slot))

    def moments(self) -> list[np.ndarray]:
        variables = self.optimizer.variables
        arrays = [np.asarray(v) for v in (variables() if callable(variables) else variables)]
        return [array for array in arrays if array.ndim]

    def count(self) -> int:
        return int(self.optimizer.iterations)

    def step(self, gradients: Arrays) -> None:
        import tensorflow as tf

        self.optimizer.apply_gradients([(tf.constant(gradients[n]), v) for n, v in self.variables.items()])


class Torch:
    """Parameters of PyTorch."""

    def __init__(self, arrays: Arrays, name: str = "Adadelta", **arguments: Any):
        torch = pytest.importorskip("torch", reason="torch is not installed (pip install torch)")
        self.variables = {n: torch.nn.Parameter(torch.from_numpy(a.copy())) for n, a in arrays.items()}
        parameters = list(self.variables.values())
        self.target = self.optimizer = getattr(torch.optim, name)(parameters, **arguments)

    def value(self, name: str) -> np.ndarray:
        return self.variables[name].detach().numpy()

    def slot(self, slot: str, name: str) -> np.ndarray:
        key = {"accumulated_grad": "square_avg", "accumulated_delta_var": "acc_delta"}[slot]
        kept = self.optimizer.state.get(self.variables[name], {})
        return kept[key].numpy() if kept else np.zeros(self.value(name).shape, np.float32)  # torch makes it later

    def moments(self) -> list[np.ndarray]:
        return [kept[name].numpy() for kept in self.optimizer.state.values() for name in kept]

    def count(self) -> int:
        return int(max((kept["step"] for kept in self.optimizer.state.values()), default=0))

    def step(self, gradients: Arrays) -> None:
        import torch

        for name, variable in self.variables.items():
            variable.grad = torch.from_numpy(gradients[name].copy())
        self.optimizer.step()


class Leaves:
    """Leaves of a pytree with a transformation of optax; the mapping has no names of those that start fresh."""

    def __init__(self, make: Callable[[Any], Any], arrays: Arrays):
        import jax.numpy as jnp
        import optax

        self.target = migrate.Optax(make(optax), {n.replace("/", "."): jnp.asarray(a) for n, a in arrays.items()})
        self.variables = {name: name.replace("/", ".") for name in arrays}

    def value(self, name: str) -> np.ndarray:
        return np.asarray(self.target.params[self.variables[name]])

    def slot(self, slot: str, name: str) -> np.ndarray:
        field = {"accumulated_grad": "e_g", "accumulated_delta_var": "e_x"}[slot]
        leaf_state = next(part for part in self.target.state if hasattr(part, field))
        return np.asarray(getattr(leaf_state, field)[self.variables[name]])

    def moments(self) -> list[np.ndarray]:
        import jax

        return [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(self.target.state)]

    def count(self) -> int:
        return -1  # of Adadelta optax keeps none

    def step(self, gradients: Arrays) -> None:
        import jax.numpy as jnp
        import optax

        leaf_gradients = {self.variables[name]: jnp.asarray(g) for name, g in gradients.items()}
        updates, self.target.state = self.target.tx.update(leaf_gradients, self.target.state, self.target.params)
        self.target.params = optax.apply_updates(self.target.params, updates)


def _rate() -> float:
    return float(migrate.read(SOURCE).hyperparameters["learning_rate"])


def _live(kind: str, arrays: Arrays) -> Any:
    import keras
    import tf_keras

    import optim

    arguments = {"learning_rate": _rate(), **ARGUMENTS}
    if kind == "torch":
        return Torch(arrays, lr=_rate(), rho=0.95, eps=1e-7)
    if kind == "optax":
        return Leaves(lambda optax: optax.adadelta(_rate(), 0.95, 1e-7), arrays)
    home = {
        "optim": optim,
        "keras": keras.optimizers,
        "tf_keras": tf_keras.optimizers,
        "legacy": tf_keras.optimizers.legacy,
    }[kind]
    return Tensors(lambda _: home.Adadelta(**arguments), arrays, kind == "keras")


KINDS = [
    "optim",
    "keras",
    "tf_keras",
    "legacy",
    *(pytest.param(n, marks=pytest.mark.breadth) for n in ("torch", "optax")),
]


def _starts(oracle: Mapping[str, np.ndarray], names: list[str]) -> Arrays:
    return {name: oracle[f"at_save/var/{i}"] for i, name in enumerate(names)}


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def _steps(live: Any, oracle: Mapping[str, np.ndarray], indices: Mapping[str, int]) -> float:
    """The worst error of the first parts of variables over six steps, which are the source's own."""
    worst = 0.0
    for step in range(6):
        gradients = {name: _random(*live.value(name).shape) for name in live.variables}
        for name, i in indices.items():
            gradient = oracle[f"grad/{step}/{i}"]
            gradients[name][tuple(map(slice, gradient.shape))] = gradient
        live.step(gradients)
        for name, i in indices.items():
            want = oracle[f"var/{step}/{i}"]
            got = live.value(name)[tuple(map(slice, want.shape))]
            worst = max(worst, next_steps.off(got, want, oracle[f"at_save/var/{i}"]))
    return worst


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_last_layer(kind: str, oracle: Any, names: list[str]) -> None:
    kept = {n: a for n, a in _starts(oracle, names).items() if n in names[:2]}
    head = {"head/kernel": _random(7, 6), "head/bias": _random(6)}
    live = _live(kind, {**kept, **head})
    variables = {n: v for n, v in live.variables.items() if kind != "optax" or n in kept}
    with pytest.raises(StrictError, match="fresh"):
        migrate.restore(SOURCE, live.target, variables, fresh=["head"], strict=True)
    report = migrate.restore(SOURCE, live.target, variables, fresh=["head"])
    assert (report.fidelity, sorted(report.dropped)) == ("approximate", sorted(names[2:]))
    assert sorted(n.replace(".", "/") for n in report.fresh) == sorted(head)
    for word in ("fresh", "dropped"):
        assert any(f": {word}, " in reason for reason in report.reasons)
    for i, name in enumerate(kept):
        for slot, stored in _stored(i).items():
            np.testing.assert_array_equal(live.slot(slot, name), stored)
    for name, start in head.items():
        np.testing.assert_array_equal(live.value(name), start)
        assert not any(live.slot(slot, name).any() for slot in SLOTS)
    assert _steps(live, oracle, {names[0]: 0, names[1]: 1}) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_grown_table(kind: str, oracle: Any, names: list[str]) -> None:
    starts = _starts(oracle, names)
    larger = {names[2]: _random(7, 5), names[3]: _random(5)}
    live = _live(kind, {**starts, **larger})
    with pytest.raises(MismatchError, match="fresh="):
        migrate.restore(SOURCE, live.target, live.variables)
    patterns = [f"^{re.escape(name)}$" for name in larger]
    report = migrate.restore(SOURCE, live.target, live.variables, grown=patterns, restore_variables=True)
    assert (report.fidelity, sorted(report.grown), report.fresh) == ("approximate", sorted(larger), ())
    for i, name in enumerate(names):
        first = tuple(map(slice, starts[name].shape))
        np.testing.assert_array_equal(live.value(name)[first], starts[name])
        for slot, stored in _stored(i).items():
            got = live.slot(slot, name).copy()
            np.testing.assert_array_equal(got[first], stored)
            got[first] = 0
            assert not got.any()
    np.testing.assert_array_equal(live.value(names[2])[:, 3:], larger[names[2]][:, 3:])
    assert _steps(live, oracle, {name: i for i, name in enumerate(names)}) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_in_parts(kind: str, oracle: Any, names: list[str]) -> None:
    starts = _starts(oracle, names)
    whole = starts.pop(names[2])
    parts = {f"{names[2]}/part_0": whole[:4], f"{names[2]}/part_1": whole[4:]}
    live = _live(kind, {**starts, **parts})
    report = migrate.restore(SOURCE, live.target, live.variables, restore_variables=True)
    assert report.fidelity == "approximate"
    assert f"{names[2]}: re-sharded, 2 of the model from 1 part of the source along dim 0" in report.reasons
    for slot, stored in _stored(2).items():
        slots = [live.slot(slot, name) for name in parts]
        np.testing.assert_array_equal(np.concatenate(slots), stored)
    live.step({n: oracle[f"grad/0/{names.index(n)}"] if n in names else oracle["grad/0/2"][:4] for n in live.variables}
              | {f"{names[2]}/part_1": oracle["grad/0/2"][4:]})  # fmt: skip
    got = np.concatenate([live.value(name) for name in parts])
    assert next_steps.off(got, oracle["var/0/2"], whole) <= 1


def _new(kind: str, arrays: Arrays) -> Any:
    """Another optimizer than the source's."""
    import keras
    import tf_keras

    import optim

    if kind == "torch":
        return Torch(arrays, "AdamW", lr=0.01)
    if kind == "optax":
        return Leaves(lambda optax: optax.adadelta(0.1), arrays)
    homes = {"optim": optim, "keras": keras.optimizers, "tf_keras": tf_keras.optimizers}
    home = homes.get(kind, tf_keras.optimizers.legacy)
    return Tensors(lambda _: home.Adam(0.01), arrays, kind == "keras")


@pytest.mark.parametrize("kind", KINDS)
def test_weights_alone_with_another_optimizer(kind: str, oracle: Any, names: list[str]) -> None:
    starts = _starts(oracle, names)
    live = _new(kind, {name: np.zeros_like(a) for name, a in starts.items()})
    live.step({name: np.ones_like(a) for name, a in starts.items()})
    if kind != "optax":
        with pytest.raises(UnsupportedError, match=r"weights_only=True\)$"):
            migrate.restore(SOURCE, live.target, live.variables)
    report = migrate.restore(SOURCE, live.target, live.variables, weights_only=True)
    assert report.fidelity == "approximate"
    assert report.reasons[0].startswith("weights only: the optimizer is reset on purpose")
    for name, start in starts.items():
        np.testing.assert_array_equal(live.value(name), start)
    assert live.count() <= 0
    assert not any(np.any(array) for array in live.moments())


def _advised(message: str) -> str:
    match = re.search(r"migrate\.restore\(.*\)", message.partition(", where new is")[0])
    assert match, message
    return match[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_call_that_an_error_names_works_as_typed(kind: str, oracle: Any, names: list[str]) -> None:
    kept = {n: a for n, a in _starts(oracle, names).items() if n in names[:2]}
    live = _live(kind, {**kept, "head/kernel": _random(7, 6), "head/bias": _random(6)})
    mapping = {name: live.variables[name] for name in kept}
    new = {"new/0": live.variables["head/kernel"], "new/1": live.variables["head/bias"]}
    known: dict[str, Any] = {"migrate": migrate, "source": SOURCE, "optimizer": live.target, "mapping": mapping}
    known |= {"new": new, "variables": list(live.variables.values())}
    for onto in [mapping] if kind in ("torch", "optax") else [mapping, known["variables"]]:
        with pytest.raises(MismatchError) as caught:
            migrate.restore(SOURCE, live.target, onto)
        report = eval(_advised(str(caught.value)), known)
        assert len(report.fresh) == 2
        assert sorted(report.dropped) == sorted(names[2:])


def test_patterns_that_choose_nothing_are_refused_with_candidates(oracle: Any, names: list[str]) -> None:
    live = _live("optim", _starts(oracle, names))
    for option in ("fresh", "grown"):
        with pytest.raises(HyperparameterError, match=f"{option}: 'haed' matches no variable.*{names[0]}"):
            migrate.restore(SOURCE, live.target, list(live.variables.values()), **{option: ["haed"]})
    with pytest.raises(HyperparameterError, match="not a regular expression"):
        migrate.restore(SOURCE, live.target, list(live.variables.values()), fresh="he(ad")
    with pytest.raises(HyperparameterError, match="both as fresh and as grown"):
        migrate.restore(SOURCE, live.target, list(live.variables.values()), fresh=".", grown=names[0])


def test_what_an_optimizer_was_built_on_starts_fresh_by_its_own_name(oracle: Any, names: list[str]) -> None:
    """The mapping has the kept variables alone."""
    kept = {n: a for n, a in _starts(oracle, names).items() if n in names[:2]}
    for kind in ("optim", "keras"):
        live = _live(kind, {**kept, "head/kernel": _random(7, 6)})
        live.optimizer.build(list(live.variables.values()))
        mapping = {name: live.variables[name] for name in kept}
        report = migrate.restore(SOURCE, live.optimizer, mapping, fresh="head")
        assert len(report.fresh) == 1
        assert _steps(live, oracle, {names[0]: 0, names[1]: 1}) <= 1


def test_layers_that_keras_numbered_are_not_taken_for_others() -> None:
    """`dense_1` of a model with a dropped first layer is not the source's `dense_1`."""
    from migrate.live.variable_matching import LiveVariable, Part, match
    from migrate.state import StoredVariable

    def matched(live: list[str], part: Part) -> dict[str, tuple[str, str]]:
        stored = [StoredVariable(n, None, (2, 2), "float32", True) for n in ("dense/k", "dense_1/k")]
        stored.append(StoredVariable("dense_2/k", None, (2, 5), "float32", True))
        live_variables = [LiveVariable(n, None, (2, 9) if n in part.fresh else (2, 2), True) for n in live]
        pairs = match(live_variables, stored, needed=lambda v: True, ordered=True, equal=lambda g, v: False, part=part)
        return {p.live.name: (p.stored.name, p.how) for p in pairs}

    assert matched(["dense/k", "dense_1/k", "head/k"], Part({"head/k"})) == {
        "dense/k": ("dense/k", "name"),
        "dense_1/k": ("dense_1/k", "name"),
    }
    assert matched(["dense_1/k", "dense_2/k", "head/k"], Part({"head/k"})) == {
        "dense_1/k": ("dense/k", "position"),
        "dense_2/k": ("dense_1/k", "position"),
    }


def test_parts_that_tensorflow_1_partitioned() -> None:
    """Its Saver writes the whole table; its own next steps were recorded part by part."""
    import tensorflow as tf

    import optim

    folder = CASE_FOLDER / "graphs" / "partitioned"
    document, oracle = json.loads((folder / "case.json").read_text()), dict(np.load(folder / "oracle.npz"))
    live = [tf.Variable(oracle[f"at_save/var/{i}"], name=name) for i, name in enumerate(document["trainable"])]
    optimizer = optim.Adam(0.01, epsilon=1e-8)
    report = migrate.restore(folder / "source" / "model.ckpt-4", optimizer, live, optimizer_config=document["config"])
    assert len([reason for reason in report.reasons if "re-sharded" in reason]) == 4
    assert next_steps.error(next_steps.applying(optimizer, live), live, oracle, document["n"]) <= 1


def test_initial_slots_are_those_of_the_live_rule(tmp_path: Path) -> None:
    """Adagrad's accumulator begins above zero, and an average with its variable."""
    import tensorflow as tf

    import optim

    def variables(*names: str) -> list[Any]:
        return [tf.Variable(_random(3, 2 + i), name=name) for i, name in enumerate(names)]

    old, new = variables("a/kernel", "old/kernel"), variables("a/kernel", "new/kernel")
    source = optim.Adagrad(0.1, initial_accumulator_value=0.25, use_ema=True)
    source.apply_gradients([(tf.ones_like(v), v) for v in old])
    optim.save_checkpoint(tmp_path / "saved", source, old)
    live = optim.Adagrad(0.1, initial_accumulator_value=0.25, use_ema=True)
    migrate.restore(tmp_path / "saved", live, new, fresh="new/")
    assert (live.get_slot(new[1], "accumulator").numpy() == 0.25).all()
    np.testing.assert_array_equal(live.get_slot(new[1], "average"), new[1])
    np.testing.assert_array_equal(live.get_slot(new[0], "accumulator"), source.get_slot(old[0], "accumulator"))
