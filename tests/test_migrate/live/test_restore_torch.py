"""`migrate.restore` into `torch.optim`: torch takes the source's own next steps, or the report says why not.

torch is not among the locked packages. These tests run where it is installed, `pip install torch`, and are skipped with
that reason where it is not: `pytest -m breadth tests/test_migrate/live/test_restore_torch.py`. With
`DTOPT_TEST_DEVICE=GPU` parameters lie on a GPU.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

import migrate
from migrate.errors import StrictError
from optim.errors import MismatchError, UnsupportedError
from tests.helpers.placed import ON_GPU
from tests.places import CORPUS, SCOPED
from tests.test_migrate.confirm import confirmed

pytestmark = pytest.mark.breadth


def _torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed (pip install torch)")


def _tensor(array: Any) -> Any:
    return _torch().from_numpy(np.ascontiguousarray(array)).to("cuda" if ON_GPU else "cpu")


def _adam(o: Any, p: Any, h: Mapping[str, Any]) -> Any:
    return o.Adam(p, lr=h["learning_rate"], betas=(h["beta_1"], h["beta_2"]), eps=h["epsilon"], amsgrad=h["amsgrad"])


def _decayed(h: Mapping[str, Any]) -> float:
    return float(h["learning_rate"] / (1.0 + h["decay"] * h["iterations"]))


CASES = {
    "keras224-sgd-momentum-convbn": lambda o, p, h: o.SGD(p, lr=h["learning_rate"], momentum=h["momentum"]),
    "keras224-nadam-mlp": lambda o, p, h: o.NAdam(
        p, h["learning_rate"], (h["beta_1"], h["beta_2"]), h["epsilon"], momentum_decay=h["schedule_decay"]
    ),
    "keras224-adadelta-mlp": lambda o, p, h: o.Adadelta(p, h["learning_rate"], h["rho"], h["epsilon"]),
    "keras231-adagrad-decay-eps-nested": lambda o, p, h: o.Adagrad(
        p, h["learning_rate"], lr_decay=h["decay"], eps=h["epsilon"]
    ),
    "tf115-rmsprop-mlp": lambda o, p, h: o.RMSprop(p, _decayed(h), h["rho"], h["epsilon"]),
    "tf24-adam-convbn": _adam,
    "extra-tfa19-radam-mlp-h5": lambda o, p, h: o.RAdam(
        p,
        h["learning_rate"],
        (h["beta_1"], h["beta_2"]),
        h["epsilon"],
        weight_decay=h["weight_decay"],
        decoupled_weight_decay=True,
    ),
    "tf115-adamax-mlp": lambda o, p, h: o.Adamax(p, h["learning_rate"], (h["beta_1"], h["beta_2"]), h["epsilon"]),
}
APPROXIMATE = {
    "extra-tfa19-radam-mlp-h5": "epsilon_hat is False in the source and True",
    "tf24-adam-convbn": "epsilon is added after",
    "tf115-adamax-mlp": "epsilon is added to the gradient",
    "keras224-nadam-mlp": "u_product",
    "tf115-rmsprop-mlp": "learning_rate is InverseTimeDecay",  # which torch keeps outside: right for one step
}
STEPS = {"tf115-rmsprop-mlp": 1}
CONFIRMED = {"keras231-adagrad-decay-eps-nested": {"iterations": 5}}
"""Keras 2.3 reads its counter before or after it is raised: the report says so, and how this is settled."""


FUSED = ("keras224-sgd-momentum-convbn", "keras231-adagrad-decay-eps-nested", "tf24-adam-convbn")
UNCAPTURED = ("keras224-sgd-momentum-convbn", "keras231-adagrad-decay-eps-nested")
WAYS = [
    *((name, option) for name in CASES for option in ("", "foreach")),
    *((name, "fused") for name in FUSED if not (ON_GPU and name.startswith("keras231-adagrad"))),
    *((name, "capturable") for name in CASES if ON_GPU and name not in UNCAPTURED),
]
"""How torch steps: as it chooses, all together, in one kernel, or as a CUDA graph may hold it (on GPUs alone)."""


def _stepping(module: Any, option: str) -> Any:
    """The classes of `torch.optim`, with an option set for all."""
    names = ("SGD", "NAdam", "Adadelta", "Adagrad", "RMSprop", "Adam", "RAdam", "Adamax")
    return SimpleNamespace(
        **{name: partial(getattr(module, name), **({option: True} if option else {})) for name in names}
    )


def _axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """As torch lays out kernels."""
    return {4: (3, 2, 0, 1), 2: (1, 0)}.get(len(shape), tuple(range(len(shape))))


def _parameters(case: Any) -> tuple[Any, dict[str, Any], list[tuple[Any, tuple[int, ...], int]]]:
    """The state read, the mapping for `restore`, and (parameter, axes, number in the oracle)."""
    torch = _torch()
    state = migrate.read(case.source, **case.hints)
    values = {v.name: np.asarray(v.array.load()) for v in state.variables if v.array is not None}
    onto: dict[str, Any] = {}
    rows = []
    trained = [v.name for v in state.variables if v.trainable]
    for i in range(len(case.names)):
        start = case.oracle[f"at_save/var/{i}"]
        name = next(
            (n for n, v in values.items() if n not in onto and v.shape == start.shape and (v == start).all()),
            trained[i],  # a list holds no values
        )
        axes = _axes(start.shape)
        parameter = torch.nn.Parameter(_tensor(start.transpose(axes)))
        onto[name] = (parameter, axes)
        rows.append((parameter, axes, i))
    return state, onto, rows


@pytest.mark.parametrize(("name", "option"), WAYS)
def test_torch_takes_the_sources_own_next_steps(name: str, option: str, load_case: Any) -> None:
    torch = _torch()
    case = load_case(name)
    state, onto, rows = _parameters(case)
    hyperparameters = {**state.hyperparameters, "iterations": state.iterations}
    optimizer = CASES[name](_stepping(torch.optim, option), [p for p, _, _ in rows], hyperparameters)
    report = migrate.restore(case.source, optimizer, onto, overrides=CONFIRMED.get(name), **_hints(case))
    assert report.fidelity == ("approximate" if name in APPROXIMATE else "exact"), report.reasons
    if name in APPROXIMATE:
        assert APPROXIMATE[name] in " ".join(report.reasons)
    for step in range(STEPS.get(name, 3)):
        for parameter, axes, i in rows:
            parameter.grad = _tensor(case.oracle[f"grad/{step}/{i}"].transpose(axes))
        optimizer.step()
        for parameter, axes, i in rows:
            wanted, start = (case.oracle[key].transpose(axes) for key in (f"var/{step}/{i}", f"at_save/var/{i}"))
            values = parameter.detach().cpu().numpy()
            moved = np.linalg.norm(wanted - start) + 1e-12
            off = np.linalg.norm(values - wanted)
            tolerance = 1e-3 if name in APPROXIMATE else 1e-5
            assert off / moved < tolerance or off / np.linalg.norm(wanted) < 2e-6, (step, i, off / moved)


def _hints(case: Any) -> dict[str, Any]:
    hints = dict(case.hints)
    if "variables" in hints:
        hints["source_variables"] = hints.pop("variables")
    return hints


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_spoiled_second_moment_is_not_exact(value: float, load_case: Any, tmp_path: Path) -> None:
    torch = _torch()
    case = load_case("keras224-adadelta-mlp")
    state, onto, rows = _parameters(case)
    make = CASES["keras224-adadelta-mlp"]
    sound = make(torch.optim, [p for p, _, _ in rows], state.hyperparameters)
    assert migrate.restore(case.source, sound, onto).fidelity == "exact"
    spoiled = tmp_path / "model.h5"
    shutil.copy(case.source, spoiled)
    kept = next(iter(state.slots["accumulated_grad"].values())).stored_as
    with h5py.File(spoiled, "r+") as file:
        file[kept][(0,) * file[kept].ndim] = value
    report = migrate.restore(spoiled, make(torch.optim, [p for p, _, _ in rows], state.hyperparameters), onto)
    assert report.fidelity == "approximate"
    assert "slot accumulated_grad" in " ".join(report.reasons)


SGD = "keras224-sgd-momentum-convbn"


def _steps_apart(optimizer: Any, case: Any, rows: list[tuple[Any, Any, int]]) -> float:
    """The largest relative error of three steps; `rows` have what makes a parameter's array of the source's."""
    torch = _torch()
    worst = 0.0
    for step in range(3):
        for parameter, order, i in rows:
            parameter.grad = torch.empty_like(parameter).copy_(_tensor(order(case.oracle[f"grad/{step}/{i}"])))
        optimizer.step()
        for parameter, order, i in rows:
            wanted = order(case.oracle[f"var/{step}/{i}"])
            off = np.linalg.norm(parameter.detach().cpu().numpy() - wanted)
            worst = max(worst, float(off / np.linalg.norm(wanted)))
    return worst


@pytest.mark.parametrize("is_fused", [False, True])
def test_slots_lie_in_memory_as_their_parameter_does(is_fused: bool, load_case: Any) -> None:
    """A fused step goes through both by address: it took those of others where kernels are channels_last."""
    torch = _torch()
    case = load_case(SGD)
    state, onto, rows = _parameters(case)
    for parameter, _, _ in rows:
        back = parameter.ndim - 1, *range(parameter.ndim - 1)
        parameter.data = parameter.data.movedim(0, -1).contiguous().permute(back)
    options = {"lr": state.hyperparameters["learning_rate"], "momentum": state.hyperparameters["momentum"]}
    optimizer = torch.optim.SGD([p for p, _, _ in rows], **options, fused=is_fused)
    assert migrate.restore(case.source, optimizer, onto, **case.hints).fidelity == "exact"
    for parameter in optimizer.state:
        assert optimizer.state[parameter]["momentum_buffer"].stride() == parameter.stride()
    moved = [(p, lambda a, axes=axes: np.ascontiguousarray(a.transpose(axes)), i) for p, axes, i in rows]
    assert _steps_apart(optimizer, case, moved) < 1e-6


def test_a_function_says_what_axes_cannot(load_case: Any) -> None:
    """Gates of a GRU, rows behind a Flatten, depthwise kernels: here all numbers of a variable in a row, shuffled."""
    torch = _torch()
    case = load_case(SGD)
    state, onto, rows = _parameters(case)

    def shuffled(array: np.ndarray) -> np.ndarray:
        return np.random.default_rng(1).permutation(array.reshape(-1))

    names = {id(parameter): name for name, (parameter, _) in onto.items()}
    live = {names[id(p)]: torch.nn.Parameter(_tensor(shuffled(case.oracle[f"at_save/var/{i}"]))) for p, _, i in rows}
    optimizer = torch.optim.SGD(
        list(live.values()), lr=state.hyperparameters["learning_rate"], momentum=state.hyperparameters["momentum"]
    )
    other = {name: (p, lambda array: array.reshape(-1)) for name, p in live.items()}
    with pytest.raises(MismatchError, match="has its values in an order that is not that of its function"):
        migrate.restore(case.source, optimizer, other, **case.hints)
    mapping = {name: (parameter, shuffled) for name, parameter in live.items()}
    assert migrate.restore(case.source, optimizer, mapping, **case.hints).fidelity == "exact"
    assert _steps_apart(optimizer, case, [(live[names[id(p)]], shuffled, i) for p, _, i in rows]) < 1e-6
    for wrong in (lambda array: array.reshape(-1) * 0, lambda array: array.reshape(-1)[:1]):
        with pytest.raises(MismatchError, match="does not put each number there once"):
            migrate.restore(case.source, optimizer, {name: (p, wrong) for name, p in live.items()}, **case.hints)


def test_other_rules_parameters_and_classes_are_said(load_case: Any) -> None:
    torch = _torch()
    case = load_case("keras224-sgd-momentum-convbn")
    _, onto, rows = _parameters(case)
    parameters = [p for p, _, _ in rows]
    with pytest.raises(UnsupportedError, match=r"is SGD and the live one torch\.optim\.Adam"):
        migrate.restore(case.source, torch.optim.Adam(parameters), onto)
    optimizer = torch.optim.SGD(parameters, lr=0.5, momentum=0.9, weight_decay=0.1)
    report = migrate.restore(case.source, optimizer, onto)
    assert report.fidelity == "approximate"
    assert any(reason.startswith("learning_rate is") for reason in report.reasons)
    assert any(reason.startswith("weight_decay is None") for reason in report.reasons)
    assert any(reason.startswith("decoupled_weight_decay is True") for reason in report.reasons)
    with pytest.raises(StrictError):
        migrate.restore(case.source, optimizer, onto, strict=True)
    with pytest.raises(MismatchError, match="no parameter is given"):
        migrate.restore(case.source, optimizer, dict(list(onto.items())[1:]))
    with pytest.raises(MismatchError, match="give a mapping"):
        migrate.restore(case.source, optimizer, parameters)
    wrong = {name: (parameter, tuple(range(len(axes)))) for name, (parameter, axes) in onto.items()}
    with pytest.raises(MismatchError, match="axes"):
        migrate.restore(case.source, optimizer, wrong)


def test_what_is_frozen_on_one_side_alone_is_not_exact(load_case: Any) -> None:
    torch = _torch()
    case = load_case("keras224-sgd-momentum-convbn")
    state, onto, rows = _parameters(case)
    parameters = [p for p, _, _ in rows]
    optimizer = torch.optim.SGD(
        parameters, lr=state.hyperparameters["learning_rate"], momentum=state.hyperparameters["momentum"]
    )
    assert migrate.restore(case.source, optimizer, onto, **case.hints).fidelity == "exact"
    parameters[0].requires_grad_(False)
    report = migrate.restore(case.source, optimizer, onto, **case.hints)
    assert report.fidelity == "approximate"
    assert report.reasons == (
        f"{next(iter(onto))}: trained in the source, and requires_grad is False in the live model",
    )
    statistics = next(v for v in state.variables if not v.trainable)
    more = torch.nn.Parameter(_tensor(np.array(statistics.array.load())))
    optimizer.add_param_group({"params": [more]})
    reasons = migrate.restore(case.source, optimizer, {**onto, statistics.name: more}, **case.hints).reasons
    assert f"{statistics.name}: not trained in the source, and requires_grad is True in the live model" in reasons


def test_weight_decay_in_the_gradient_is_that_of_optim(tmp_path: Path, load_case: Any) -> None:
    torch = _torch()
    import tensorflow as tf

    import optim

    case = load_case(SGD)
    state, onto, rows = _parameters(case)
    decay = {"weight_decay": 0.1, "decoupled_weight_decay": False}
    migrate.write(replace(state, hyperparameters={**state.hyperparameters, **decay}), tmp_path / "slots")
    options = {name: state.hyperparameters[name] for name in ("learning_rate", "momentum")}
    live = torch.optim.SGD([p for p, _, _ in rows], options["learning_rate"], options["momentum"], weight_decay=0.1)
    assert migrate.restore(tmp_path / "slots", live, onto).fidelity == "exact"
    variables = {v.name: tf.Variable(tf.zeros(v.shape)) for v in state.variables}
    ours = optim.load_checkpoint(str(tmp_path / "slots"), variables)
    for _ in range(3):
        for parameter, _ in onto.values():
            parameter.grad = torch.ones_like(parameter)
        live.step()
        ours.apply_gradients([(tf.ones_like(variables[name]), variables[name]) for name in onto])
    for name, (parameter, axes) in onto.items():
        np.testing.assert_allclose(parameter.detach().cpu().numpy(), variables[name].numpy().transpose(axes), rtol=1e-5)


def test_each_group_is_asked_by_itself(load_case: Any) -> None:
    torch = _torch()
    case = load_case("keras224-nadam-mlp")
    state, onto, rows = _parameters(case)
    h = state.hyperparameters
    first, *others = [p for p, _, _ in rows]
    groups = [{"params": [first]}, {"params": others, "betas": (0.8, 0.99)}, {"params": [], "eps": 1.0}]
    optimizer = torch.optim.NAdam(
        groups, h["learning_rate"], (h["beta_1"], h["beta_2"]), h["epsilon"], momentum_decay=h["schedule_decay"]
    )
    reasons = migrate.restore(case.source, optimizer, onto, **_hints(case)).reasons
    assert not any("epsilon" in reason for reason in reasons), "no parameter is in the last group"
    products = [float(optimizer.state[p]["mu_product"]) for p in (first, others[0])]
    terms = [[b * (1 - 0.5 * 0.96 ** (t * h["schedule_decay"])) for t in range(1, 6)] for b in (h["beta_1"], 0.8)]
    assert products == pytest.approx([np.prod(series) for series in terms], rel=1e-6)


def test_wider_parameters_hooks_and_no_numbers_are_said(load_case: Any) -> None:
    torch = _torch()
    case = load_case(SGD)
    state, onto, _ = _parameters(case)
    options = {"lr": state.hyperparameters["learning_rate"], "momentum": state.hyperparameters["momentum"]}

    def restored(dtype: Any, **place: Any) -> Any:
        live = {n: (torch.nn.Parameter(p.detach().to(dtype=dtype, **place)), axes) for n, (p, axes) in onto.items()}
        optimizer = torch.optim.SGD([p for p, _ in live.values()], **options)
        optimizer.register_step_pre_hook(lambda *_: None)
        return migrate.restore(case.source, optimizer, live)

    wider, hooks = sorted(restored(torch.float64).reasons)
    assert "computed in a wider dtype" in wider
    assert "calls hooks" in hooks
    with pytest.raises(MismatchError, match="its parameter bfloat16, which cannot hold it"):
        restored(torch.bfloat16)
    with pytest.raises(UnsupportedError, match="meta device"):
        restored(torch.float32, device="meta")


def test_hooks_of_all_optimizers_and_a_step_of_ones_own_are_said(load_case: Any) -> None:
    torch = _torch()
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    case = load_case(SGD)
    state, onto, _ = _parameters(case)
    options = {"lr": state.hyperparameters["learning_rate"], "momentum": state.hyperparameters["momentum"]}
    optimizer = torch.optim.SGD([p for p, _ in onto.values()], **options)
    assert migrate.restore(case.source, optimizer, onto).fidelity == "exact"
    hook = register_optimizer_step_pre_hook(lambda *_: None)
    try:
        assert "calls hooks" in " ".join(migrate.restore(case.source, optimizer, onto).reasons)
    finally:
        hook.remove()
    optimizer.step = lambda: None
    assert "step of the live optimizer was replaced" in " ".join(migrate.restore(case.source, optimizer, onto).reasons)


@pytest.mark.parametrize("axes", ["ab", (None, 0), 5])
def test_axes_that_are_none_are_refused(axes: Any, load_case: Any) -> None:
    torch = _torch()
    case = load_case("keras224-sgd-momentum-convbn")
    _, onto, rows = _parameters(case)
    optimizer = torch.optim.SGD([p for p, _, _ in rows], lr=0.1)
    name = next(iter(onto))
    with pytest.raises(MismatchError, match="not a permutation such as"):
        migrate.restore(case.source, optimizer, {**onto, name: (onto[name][0], axes)}, **case.hints)


def test_a_schedule_comes_with_the_call_that_makes_it_a_rate_of_torch() -> None:
    torch = _torch()
    source = SCOPED / "warm" / "source" / "model.ckpt"
    state = migrate.read(source)
    live = {v.name: torch.nn.Parameter(torch.zeros(v.shape)) for v in state.variables if v.trainable}
    momentum = state.hyperparameters.get("momentum", 0.0)
    report = migrate.restore(source, torch.optim.SGD(live.values(), lr=0.01, momentum=momentum), live)
    assert any("group['lr'] = migrate.learning_rate(state, steps taken)" in reason for reason in report.reasons)
    assert [migrate.learning_rate(state, n) for n in (1, 6, 7, 9)] == pytest.approx([0.02, 0.1, 0.01, 0.001])


def test_a_scheduler_of_torch_is_not_called_exact() -> None:
    torch = _torch()
    source = CORPUS / "keras224-sgd-momentum-convbn" / "source" / "model.h5"
    state = migrate.read(source)
    live = {v.name: torch.nn.Parameter(torch.zeros(v.shape)) for v in state.variables if v.trainable}
    rate, momentum = (state.hyperparameters[name] for name in ("learning_rate", "momentum"))
    optimizer = torch.optim.SGD(live.values(), lr=rate, momentum=momentum)
    assert migrate.restore(source, optimizer, live).fidelity == "exact"
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    report = migrate.restore(source, optimizer, live)
    assert any("a scheduler of torch" in reason for reason in report.reasons)


def test_values_that_a_parameter_has_deny_a_wrong_mapping(load_case: Any) -> None:
    """Two of one shape exchanged: the next steps would be 1e5 times what rounding explains off."""
    torch = _torch()
    case = load_case("keras224-sgd-momentum-convbn")
    state, onto, rows = _parameters(case)
    one, other = "batch_normalization_1/gamma", "batch_normalization_1/beta"
    wrong = {**onto, one: onto[other], other: onto[one]}
    optimizer = CASES["keras224-sgd-momentum-convbn"](torch.optim, [p for p, _, _ in rows], state.hyperparameters)
    with pytest.raises(MismatchError, match=f"given for '{one}' has the values of '{other}'"):
        migrate.restore(case.source, optimizer, wrong)
    assert migrate.restore(case.source, optimizer, wrong, restore_variables=True).fidelity == "approximate"
    assert migrate.restore(case.source, optimizer, onto, restore_variables=True).fidelity == "approximate"
    assert migrate.restore(case.source, optimizer, onto, restore_variables=True).fidelity == "exact"  # now they fit


def test_what_a_source_without_slots_trains_may_not_be_left_out() -> None:
    """An optimizer that lacks it takes no step with it: that was exact, and 4e4 times what rounding explains off."""
    torch = _torch()
    source = CORPUS / "tf215-legacy-sgd-mlp" / "source" / "model.h5"
    state = migrate.read(source)
    assert not state.slots
    live = {v.name: torch.nn.Parameter(torch.zeros(v.shape)) for v in state.variables if v.trainable}
    rest = dict(list(live.items())[1:])
    optimizer = torch.optim.SGD(rest.values(), lr=state.hyperparameters["learning_rate"])
    with pytest.raises(MismatchError, match="no parameter is given for"):
        migrate.restore(source, optimizer, rest)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("tf115-rmsprop-mlp", {"centered": True}),
        ("tf115-rmsprop-mlp", {"momentum": 0.9}),
        ("tf24-adam-convbn", {"amsgrad": True}),
    ],
)
def test_torch_can_step_with_slots_that_the_source_has_not(name: str, option: dict[str, Any], load_case: Any) -> None:
    torch = _torch()
    case = load_case(name)
    _, onto, rows = _parameters(case)
    make = torch.optim.Adam if "adam" in name else torch.optim.RMSprop
    optimizer = make([p for p, _, _ in rows], lr=0.01, **option)
    assert migrate.restore(case.source, optimizer, onto, **_hints(case)).fidelity == "approximate"
    for parameter, _, _ in rows:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert all(torch.isfinite(parameter).all() for parameter, _, _ in rows)


def test_alike_dims_are_in_no_order_until_somebody_says_so(load_case: Any) -> None:
    """torch has kernels the other way round: a forgotten (1, 0) was exact, and 7e5 times what rounding explains off."""
    torch = _torch()
    case = load_case("extra-k122-sgd-nodecay-frozen-h5")
    state, onto, rows = _parameters(case)
    hints = {**case.hints, "overrides": confirmed(case.source, **case.hints)}
    options = {"lr": state.hyperparameters["learning_rate"], "momentum": 0.9, "nesterov": True}
    optimizer = torch.optim.SGD([p for p, _, _ in rows], **options)
    bare = {name: p if p.ndim == 2 and p.shape[0] == p.shape[1] else (p, axes) for name, (p, axes) in onto.items()}
    with pytest.raises(MismatchError, match=r"has its values with the axes \(1, 0\)"):
        migrate.restore(case.source, optimizer, bare, **hints)
    for restores in (False, True):
        with torch.no_grad():
            for parameter, _, _ in rows:
                parameter.copy_(_tensor(np.random.default_rng(1).standard_normal(parameter.shape)))
        assert migrate.restore(case.source, optimizer, onto, **hints).fidelity == "exact"
        report = migrate.restore(case.source, optimizer, bare, restore_variables=restores, **hints)
        assert report.fidelity == "approximate"
        assert "Give the axes" in " ".join(report.reasons)
    again = migrate.restore(case.source, optimizer, bare, restore_variables=True, **hints)
    assert again.fidelity == "approximate", "the values stand there since the call before"


def test_torch_steps_with_what_was_never_trained() -> None:
    """Its Adam makes no slots where there is a step count: the first step raised KeyError."""
    torch = _torch()
    source = CORPUS / "extra-tf24-adam-untrained-h5" / "source" / "model.h5"
    state = migrate.read(source)
    assert not state.slots
    live = {v.name: (torch.nn.Parameter(torch.zeros(v.shape)), range(len(v.shape))) for v in state.variables}
    optimizer = torch.optim.Adam([p for p, _ in live.values()], lr=state.hyperparameters["learning_rate"])
    migrate.restore(source, optimizer, live)
    for parameter, _ in live.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert all(int(entry["step"]) == state.iterations + 1 for entry in optimizer.state.values())


def test_what_was_never_trained_goes_on_with_the_steps_of_all(tmp_path: Path, load_case: Any) -> None:
    """Keras corrects moments by one count for all, so that a late variable moves far less than torch would move it."""
    torch = _torch()
    case = load_case("keras224-nadam-mlp")
    state, onto, rows = _parameters(case)
    late, (parameter, _) = list(onto.items())[-1]
    slots = {slot: {n: a for n, a in owners.items() if n != late} for slot, owners in state.slots.items()}
    migrate.write(replace(state, slots=slots), tmp_path / "late")
    optimizer = CASES["keras224-nadam-mlp"](torch.optim, [p for p, _, _ in rows], state.hyperparameters)
    migrate.restore(tmp_path / "late", optimizer, onto)
    assert float(optimizer.state[parameter]["step"]) == state.iterations
    assert not optimizer.state[parameter]["exp_avg"].any()
