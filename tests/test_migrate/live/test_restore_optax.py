"""`migrate.restore` into optax: a transformation takes the source's own next steps, or the report says why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate.errors import StrictError
from optim.errors import MismatchError, UnsupportedError
from tests.places import SCOPED

pytestmark = pytest.mark.breadth
LISTS = ("weights.npz", "weights.npy", "weights.pkl")
Make = Callable[[Any, Mapping[str, Any]], Any]


@pytest.fixture(name="optax")
def installed() -> Any:
    import optax

    return optax


def _decaying(o: Any, h: Mapping[str, Any]) -> Any:
    """Keras's `decay`: inverse time."""
    return lambda count: h["learning_rate"] / (1.0 + h["decay"] * count)


def _moments(h: Mapping[str, Any]) -> dict[str, Any]:
    return {"b1": h["beta_1"], "b2": h["beta_2"], "eps": h["epsilon"]}


CASES: dict[str, Make] = {
    "keras224-sgd-momentum-convbn": lambda o, h: o.sgd(h["learning_rate"], h["momentum"]),
    "tf20-sgd-nesterov-decay-nested": lambda o, h: o.chain(
        o.scale_by_learning_rate(_decaying(o, h)), o.trace(h["momentum"], nesterov=True)
    ),
    "tf115-sgd-decay-clipvalue-embed": lambda o, h: o.chain(o.clip(h["clipvalue"]), o.sgd(_decaying(o, h))),
    "keras224-adadelta-mlp": lambda o, h: o.adadelta(h["learning_rate"], h["rho"], h["epsilon"]),
    "tf215-new-rmsprop-mlp": lambda o, h: o.rmsprop(h["learning_rate"], h["rho"], h["epsilon"]),
    "tf215-new-lion-embed": lambda o, h: o.lion(
        h["learning_rate"], h["beta_1"], h["beta_2"], weight_decay=h.get("weight_decay", 0.0)
    ),
    "tf24-adam-convbn": lambda o, h: o.adam(h["learning_rate"], **_moments(h)),
    "keras38-adamw-convbn": lambda o, h: o.adamw(h["learning_rate"], **_moments(h), weight_decay=h["weight_decay"]),
    "tf115-adamax-mlp": lambda o, h: o.adamax(h["learning_rate"], **_moments(h)),
    "extra-tfa19-radam-mlp-h5": lambda o, h: o.chain(
        o.radam(h["learning_rate"], **_moments(h)), o.add_decayed_weights(-h["learning_rate"] * h["weight_decay"])
    ),
}
EXACT = {
    "keras224-sgd-momentum-convbn",
    "tf20-sgd-nesterov-decay-nested",
    "tf115-sgd-decay-clipvalue-embed",
    "keras224-adadelta-mlp",
    "tf215-new-rmsprop-mlp",
    "tf215-new-lion-embed",
}
CONFIRMED: dict[str, dict[str, Any]] = {
    "tf115-sgd-decay-clipvalue-embed": {"repeated_rows": "absent"},
    "tf215-new-lion-embed": {"weight_decay_exclude": []},
}


def _axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Matrices the other way round, so that a mapping must say so."""
    return (1, 0) if len(shape) == 2 else tuple(range(len(shape)))


def _source(case: Any) -> str:
    folder = Path(case.source).parent
    name = next((f for f in case.document["source"] if f.endswith((".index", ".keras", ".h5"))), "")
    return str(folder / name.removesuffix(".index")) if name else case.source


def _hints(case: Any) -> dict[str, Any]:
    """What a user says of it, for `restore`."""
    kind, optimizer = case.document["format"], case.document["optimizer"]
    if kind in ("h5", "keras"):
        return {}
    hints = {"optimizer_config": {"class_name": optimizer["class"], "config": optimizer["config"]}}
    if kind not in LISTS:
        return hints
    return {**hints, "generation": case.generation, "source_variables": case.hints["variables"]}


def _read(case: Any) -> Any:
    hints = _hints(case)
    return migrate.read(_source(case), variables=hints.pop("source_variables", None), **hints)


def _parameters(state: Any, case: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A pytree with the case's trainable variables, and the mapping to it."""
    import jax.numpy as jnp

    values = {v.name: np.asarray(v.array.load()) for v in state.variables if v.array is not None}
    params: dict[str, Any] = {}
    onto: dict[str, Any] = {}
    trained = [v.name for v in state.variables if v.trainable]
    for i in range(len(case.names)):
        start = case.oracle[f"at_save/var/{i}"]
        same = (n for n, v in values.items() if n not in onto and v.shape == start.shape and (v == start).all())
        onto[next(same, trained[i])] = (f"layer_{i}/w", _axes(start.shape))
        params[f"layer_{i}"] = {"w": jnp.asarray(start.transpose(_axes(start.shape)))}
    return params, onto


def _worst(training: Any, case: Any, optax: Any, steps: int = 3) -> float:
    """How far the next steps lead from the source's own, relative to what these moved."""
    import jax.numpy as jnp

    params, state, worst = training.params, training.state, 0.0
    for step in range(steps):
        source_gradients = [case.oracle[f"grad/{step}/{i}"] for i in range(len(case.names))]
        gradients = {
            f"layer_{i}": {"w": jnp.asarray(g.transpose(_axes(g.shape)))} for i, g in enumerate(source_gradients)
        }
        updates, state = training.tx.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        for i in range(len(case.names)):
            wanted, start = case.oracle[f"var/{step}/{i}"], case.oracle[f"at_save/var/{i}"]
            off = np.linalg.norm(np.asarray(params[f"layer_{i}"]["w"]).transpose(_axes(wanted.shape)) - wanted)
            moved = max(np.linalg.norm(wanted - start), 0.2 * np.linalg.norm(wanted))
            worst = max(worst, float(off / (moved + 1e-12)))
    return worst


@pytest.fixture(name="restored")
def into(load_case: Any, optax: Any) -> Any:
    """A function: name of a case, what makes the transformation -> report, the training, the case."""

    def restore(name: str, make: Make, **options: Any) -> tuple[Any, Any, Any]:
        case = load_case(name)
        state = _read(case)
        params, onto = _parameters(state, case)
        training = migrate.Optax(make(optax, {"decay": 0.0, **state.hyperparameters}), params)
        return migrate.restore(_source(case), training, onto, **_hints(case), **options), training, case

    return restore


@pytest.mark.parametrize("name", CASES)
def test_optax_takes_the_sources_own_next_steps(name: str, restored: Any, optax: Any) -> None:
    report, training, case = restored(name, CASES[name], overrides=CONFIRMED.get(name))
    assert report.fidelity == ("exact" if name in EXACT else "approximate"), report.reasons
    assert _worst(training, case, optax) < (1e-5 if name in EXACT else 1e-3)


def _last(params: Any) -> Any:
    """A mask: of the leaves the last one alone."""
    return {name: {"w": i == len(params) - 1} for i, name in enumerate(params)}


SGD = "keras224-sgd-momentum-convbn"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda o, h: o.sgd(h["learning_rate"], 0.8), "its next steps are not"),
        (lambda o, h: o.sgd(2 * h["learning_rate"], h["momentum"]), "its next steps are not"),
        (lambda o, h: o.sgd(h["learning_rate"], h["momentum"], nesterov=True), "its next steps are not"),
        (lambda o, h: o.chain(o.clip_by_global_norm(5e4), o.sgd(h["learning_rate"], h["momentum"])), "clipping"),
        (lambda o, h: o.chain(o.zero_nans(), o.sgd(h["learning_rate"], h["momentum"])), None),
        (lambda o, h: o.sgd(o.linear_schedule(h["learning_rate"], 0.0, 10, 10_000), h["momentum"]), "schedule"),
        (
            lambda o, h: o.chain(
                o.masked(o.add_decayed_weights(1e-3), _last), o.sgd(h["learning_rate"], h["momentum"])
            ),
            "its next steps are not",
        ),
    ],
)
def test_what_only_steps_show_is_said(make: Make, message: str | None, restored: Any) -> None:
    if message is None:
        with pytest.raises(UnsupportedError, match="no source contains a value for it"):
            restored(SGD, make)
        return
    report, _, _ = restored(SGD, make)
    assert report.fidelity == "approximate"
    assert message in " ".join(report.reasons)


def test_a_formula_of_a_graph_is_compared_with_a_schedule(optax: Any) -> None:
    """Linear for 5 steps, then 0.1, from step 7 on 0.01, and from step 8 on 0.001: its constants say where it turns."""
    import jax.numpy as jnp

    source = SCOPED / "warm" / "source" / "model.ckpt"
    state = migrate.read(source)
    params = {v.name.replace("/", "_"): jnp.zeros(v.shape) for v in state.variables if v.trainable}
    onto = {v.name: v.name.replace("/", "_") for v in state.variables if v.trainable}

    def warm(count: Any, last: float) -> Any:
        late = jnp.where(count <= 6, 0.1, jnp.where(count <= 7, 0.01, last))
        return jnp.where(count < 5, 0.1 * jnp.asarray(count, "float32") / 5, late)

    for last in (0.001, 0.002):
        rule = optax.chain(
            optax.trace(state.hyperparameters["momentum"]),
            optax.scale_by_learning_rate(lambda count, last=last: warm(count, last)),
        )
        report = migrate.restore(source, migrate.Optax(rule, params), onto)
        assert (report.fidelity == "exact") == (last == 0.001), report.reasons
    assert "which shows the schedule" in " ".join(report.reasons)


def test_a_function_lays_out_what_axes_cannot(load_case: Any, optax: Any) -> None:
    case = load_case(SGD)
    state, source = _read(case), _source(case)
    params, onto = _parameters(state, case)
    rule = CASES[SGD](optax, state.hyperparameters)
    plain = migrate.Optax(rule, params)
    migrate.restore(source, plain, onto)

    def shuffled(array: np.ndarray) -> np.ndarray:
        return np.random.default_rng(1).permutation(np.ravel(array))

    row = {name: {"w": shuffled(np.transpose(layer["w"], _axes(layer["w"].shape)))} for name, layer in params.items()}
    training = migrate.Optax(rule, row)
    report = migrate.restore(source, training, {name: (leaf, shuffled) for name, (leaf, _) in onto.items()})
    assert report.fidelity == "exact", report.reasons
    for one, other in zip(training.state[0].trace.values(), plain.state[0].trace.values(), strict=True):
        np.testing.assert_array_equal(one["w"], shuffled(np.transpose(other["w"], _axes(other["w"].shape))))


def test_injected_hyperparameters_stay_and_are_compared(restored: Any, optax: Any) -> None:
    def make(o: Any, h: Mapping[str, Any]) -> Any:
        return o.inject_hyperparams(o.sgd)(h["learning_rate"], h["momentum"])

    report, training, case = restored(SGD, make, restore_variables=True)
    assert report.fidelity == "exact", report.reasons
    assert _worst(training, case, optax) < 1e-5
    state = training.state
    state.hyperparams["learning_rate"] = state.hyperparams["learning_rate"] * 2
    onto = _parameters(_read(case), case)[1]
    assert migrate.restore(_source(case), training, onto).fidelity == "approximate"
    assert float(training.state.hyperparams["learning_rate"]) == pytest.approx(
        float(state.hyperparams["learning_rate"])
    )


def test_nothing_changes_where_it_is_refused(load_case: Any, optax: Any) -> None:
    case = load_case(SGD)
    state = _read(case)
    params, onto = _parameters(state, case)
    rate, momentum = state.hyperparameters["learning_rate"], state.hyperparameters["momentum"]
    training = migrate.Optax(optax.sgd(rate, momentum / 2), params)
    before = training.state, training.params
    with pytest.raises(StrictError):
        migrate.restore(_source(case), training, onto, strict=True)
    with pytest.raises(UnsupportedError, match="no place for its slot m"):
        migrate.restore(_source(case), migrate.Optax(optax.adam(rate), params), onto)
    with pytest.raises(UnsupportedError, match="two places"):
        migrate.restore(_source(case), migrate.Optax(optax.chain(optax.trace(0.5), training.tx), params), onto)
    with pytest.raises(MismatchError, match="no leaf array is given"):
        migrate.restore(_source(case), training, dict(list(onto.items())[1:]))
    with pytest.raises(MismatchError, match="give a mapping"):
        migrate.restore(_source(case), training, list(onto.values()))
    with pytest.raises(MismatchError, match="axes"):
        migrate.restore(_source(case), training, {name: leaf for name, (leaf, _) in onto.items()})
    with pytest.raises(UnsupportedError, match=r"migrate\.Optax\(tx, params\)"):
        migrate.restore(_source(case), training.tx, onto)
    assert before == (training.state, training.params) or before[0] is training.state


def test_a_slight_weight_decay_is_told(restored: Any) -> None:
    """A tenth of the step where gradients are as small as 1e-6; on weights as small as they are nothing shows."""
    name = "keras224-sgd-momentum-convbn"
    report, _, _ = restored(name, lambda o, h: o.chain(o.add_decayed_weights(1e-7), CASES[name](o, h)))
    assert report.fidelity == "approximate"
    assert "which shows weight decay" in " ".join(report.reasons)


@pytest.mark.parametrize(
    "factor",
    [
        lambda shape: 2.0 if shape[0] > 40 else 1.0,
        lambda shape: max(1.0, shape[0] / 50) ** 0.5,
        lambda shape: min(1.0, 32 / shape[0]),
        lambda shape: (np.arange(shape[0])[:, None] < 40).astype(np.float32),
    ],
)
def test_steps_that_sizes_multiply_are_named(optax: Any, factor: Callable[[tuple[int, ...]], Any]) -> None:
    """As Muon's learning rates, or those that follow the width of a layer."""
    import jax

    from migrate.live.optax import sizes, trial

    params = {"table": np.zeros((60, 4), np.float32), "kernel": np.zeros((24, 4), np.float32)}
    scaled = optax.stateless(lambda steps, _: jax.tree.map(lambda leaf: leaf * factor(leaf.shape), steps))
    assert sizes.differs(optax.chain(optax.sgd(0.1, 0.9), scaled), params, trial.CUT)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: o.adamw(1e-3),
        lambda o: o.chain(o.clip_by_global_norm(1.0), o.adam(o.cosine_decay_schedule(1e-3, 50))),
        lambda o: o.rmsprop(1e-3, centered=True, momentum=0.9),
        lambda o: o.lion(1e-3),
        lambda o: o.radam(1e-3),
        lambda o: o.inject_hyperparams(o.adam)(1e-3),
    ],
)
def test_sizes_change_nothing_in_usual_steps(optax: Any, make: Callable[[Any], Any]) -> None:
    from migrate.live.optax import sizes, trial

    params = {"table": np.zeros((60, 4), np.float32), "bias": np.zeros(40, np.float32)}
    assert not sizes.differs(make(optax), params, trial.CUT)


@pytest.mark.parametrize(("least", "differs"), [(40, True), (20, False), (60, False)])
def test_a_mask_that_looks_at_sizes_is_named(optax: Any, least: int, differs: bool) -> None:
    import jax

    from migrate.live.optax import sizes, trial

    params = {"table": np.zeros((50, 4), np.float32), "kernel": np.zeros((24, 4), np.float32)}
    mask = lambda tree: jax.tree.map(lambda leaf: leaf.shape[0] > least, tree)  # noqa: E731
    decay = optax.add_decayed_weights(0.01, mask=mask)
    plain = optax.chain(decay, optax.sgd(0.1, 0.9))
    for tx in (plain, optax.MultiSteps(plain, 3)):  # whose step is a branch of a condition
        assert sizes.differs(tx, params, trial.CUT) is differs
