"""Any state into any target and back: the same bits, or a refusal with a reason; never something else."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import migrate
from migrate import algorithms, generations
from migrate.algorithms import keras_config
from migrate.bytes.arrays import LazyArray
from migrate.errors import AmbiguousError
from migrate.releases.versions import UNKNOWN
from migrate.rules.differences import SLOT_MEANING
from migrate.state import OptimizerState, StoredVariable
from optim.errors import UnsupportedError
from tests.helpers.examples import drawn
from tests.places import CORPUS

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=12).filter(
    lambda name: name.strip("/") == name and "//" not in name
)
DTYPES = st.sampled_from(["float32", "float64", "float16", "bfloat16"])
SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
LISTS = [g for g in generations.GENERATIONS if g not in ("tf1", "experimental")]
WITH_LISTS = [a for a in algorithms.ALGORITHMS if a.name != "Adafactor"]


def _bits(array: np.ndarray) -> LazyArray:
    """As readers give it: bfloat16 as uint16 of the same bits."""
    value = np.asarray(array)
    stored = value.view(np.uint16) if value.dtype == ml_dtypes.bfloat16 else value
    return LazyArray(value.shape, value.dtype.name, lambda: stored, "drawn")


def _drawn(shape: tuple[int, ...], dtype: str, seed: int) -> LazyArray:
    """Every bit pattern is a value, NaN and negative zero, too."""
    wanted = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    count = int(np.prod(shape)) * wanted.itemsize
    return _bits(np.frombuffer(np.random.default_rng(seed).bytes(count), wanted).reshape(shape))


def _same(a: LazyArray, b: LazyArray) -> bool:
    return (a.shape, a.dtype, a.load().tobytes()) == (b.shape, b.dtype, b.load().tobytes())


@drawn(60)
@given(
    st.sampled_from(WITH_LISTS),
    st.lists(st.tuples(NAMES, SHAPES, DTYPES), min_size=1, max_size=5, unique_by=lambda item: item[0]),
    st.dictionaries(NAMES, st.tuples(SHAPES, DTYPES), max_size=2),
    st.integers(0, 2**40),
)
def test_any_state_survives_the_slot_layout(algorithm: Any, variables: Any, unmapped: Any, iterations: int) -> None:
    slots = {
        slot.name: {name: _drawn(shape, dtype, i) for i, (name, shape, dtype) in enumerate(variables)}
        for slot in algorithm.slots[:2]
    }
    state = OptimizerState(
        algorithm.name,
        {"name": "given", "learning_rate": 0.125},
        iterations,
        "drawn",
        slots,
        tuple(StoredVariable(n, _drawn(s, d, 9), s, d, True) for n, s, d in variables),
        scalars={"u_product": 0.1} if algorithm.name == "Nadam" else {},
        unmapped={name: _drawn(shape, dtype, 3) for name, (shape, dtype) in unmapped.items()},
    )
    with tempfile.TemporaryDirectory() as folder:
        migrate.write(state, str(Path(folder) / "out"))
        again = migrate.read(str(Path(folder) / "out"))
        assert (again.algorithm, again.iterations, again.scalars) == (state.algorithm, iterations, state.scalars)
        assert again.hyperparameters["learning_rate"] == 0.125
        assert [(v.name, v.shape, v.dtype) for v in again.variables] == [(n, tuple(s), d) for n, s, d in variables]
        assert {s: set(per) for s, per in again.slots.items()} == {s: set(per) for s, per in slots.items()}
        assert all(_same(again.slots[s][n], a) for s, per in slots.items() for n, a in per.items())
        assert all(_same(v.array, w.array) for v, w in zip(again.variables, state.variables, strict=True) if w.array)
        assert set(again.unmapped) == set(unmapped)
        assert all(_same(again.unmapped[name], array) for name, array in state.unmapped.items())


def _state(
    algorithm: Any, generation: str, shapes: list[tuple[int, ...]], iterations: int
) -> tuple[Any, OptimizerState]:
    """A state as it would have been read from that generation, with its defaults, and its config there."""
    config = {"learning_rate": 0.01, **algorithm.defaults(generation)}
    if generation == "keras2" and any("epsilon" in algorithm.defaults(other) for other in algorithm.generations):
        config["epsilon"] = 1e-7  # in which releases of that generation differ
    arguments = keras_config.arguments(config, {}, algorithm, generation, UNKNOWN, {"float32"})
    more, slots = algorithm.wanted(arguments.values, frozenset())
    rng = np.random.default_rng(iterations)
    names = [f"layer_{i}/kernel" for i in range(len(shapes))]
    owners = list(zip(names, shapes, strict=True))

    def value(slot: str, shape: tuple[int, ...]) -> LazyArray:
        drawn = rng.normal(size=shape).astype(np.float32)
        return _bits(np.abs(drawn) if algorithm.slot(slot).nonnegative else -np.abs(drawn))

    state = OptimizerState(
        algorithm.name,
        {**arguments.values, **more},
        iterations,
        "drawn",
        {slot: {n: value(slot, s) for n, s in owners if algorithm.has(config, slot, s, n)} for slot in slots},
        tuple(StoredVariable(n, None, s, "float32", True) for n, s in zip(names, shapes, strict=True)),
        scalars=algorithm.state({**arguments.values, **more}, {}, generation, iterations)[0],
    )
    return config, state


def is_idle(state: OptimizerState) -> bool:
    """Whether it is SGD without momentum, of which older lists hold a slot all the same."""
    return state.algorithm == "SGD" and not state.hyperparameters["momentum"]


def _into_list(state: OptimizerState, target: str, path: Path) -> list[Path]:
    """The lists of each order that the generation has for it; none where it cannot have one."""
    try:
        migrate.write(state, str(path), to="list", order=target)
    except AmbiguousError as error:
        numbers = [i for i in range(1, 5) if f"{target}:{i} is" in str(error)]
        if not numbers:
            raise
        return [p for i in numbers for p in _into_list(state, f"{target}:{i}", path.with_stem(f"{path.stem}-{i}"))]
    except UnsupportedError as error:
        if not any(key in str(error) for key in SLOT_MEANING):
            raise
        return []
    return [path]


@pytest.mark.parametrize("algorithm", WITH_LISTS, ids=lambda a: a.name)
@pytest.mark.quick(2)
def test_into_the_list_of_any_generation_and_back(algorithm: Any, tmp_path: Path) -> None:
    """What comes back from a list is bit for bit what went in; where it cannot, there is no list."""
    mine = [g for g in LISTS if g in algorithm.generations]
    for source, target in itertools.product(mine, mine):
        config, state = _state(algorithm, source, [(3, 2), (2,), (2, 5), (5,)], 11)
        written = _into_list(state, target, tmp_path / f"{source}-{target}.npz")
        assert written or source != target
        for path in written:
            again = migrate.read(
                str(path),
                optimizer_config={"class_name": algorithm.name, "config": {**config, "iterations": 11}},
                variables=[{"name": v.name, "shape": list(v.shape)} for v in state.variables],
                generation=target,
            )
            assert again.iterations == 11
            assert {s for s, per in again.slots.items() if per} - set(state.slots) <= (
                {"m"} if is_idle(state) else set()
            )
            assert all(_same(again.slots[s][n], a) for s, per in state.slots.items() for n, a in per.items())


@pytest.mark.parametrize(
    ("case", "to", "confirmed"),
    [
        ("tf24-sgd-clipboth-mlp", "tf-keras", {"clip_order": "value_first"}),
        ("tf215-new-lion-embed", "keras", {"weight_decay_exclude": []}),
    ],
)
def test_what_was_doubted_stays_so_where_the_target_is_the_source(
    case: str, to: str, confirmed: dict[str, Any], tmp_path: Path
) -> None:
    """Keras's own files do not say how certain they are: through one of them `approximate` became exact."""
    source = next((CORPUS / case / "source").glob("model.*"))
    target = tmp_path / f"again{'.keras' if to == 'keras' else '.h5'}"
    for overrides, fidelity in (({}, "approximate"), (confirmed, "exact")):
        assert (
            migrate.migrate_checkpoint(source, target, to=to, overrides=overrides, overwrite=True).fidelity == fidelity
        )
        state = migrate.read(target, overrides=confirmed)
        assert state.fidelity == fidelity, state.reasons
        assert not any("dtopt wrote it" in reason and "--set" in reason for reason in state.reasons)
