"""Run by `test_backends.py` in a process of its own: `optim.Groups` on the backend that KERAS_BACKEND names.

Prints one JSON line for each check: its name, and its traceback if it failed.
"""

from __future__ import annotations

import copy
import sys
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

import optim
from optim.errors import HyperparameterError, UnsupportedError
from tests.test_optim.keras.check_runner import run_checks

BACKEND = keras.backend.backend()
SHAPES = {"embed/table": (8, 4), "block/kernel": (4, 6), "block/bias": (6,), "norm/scale": (4,)}
MEMBERS = (
    ("embed", lambda: optim.Adagrad(0.1), ["embed/table"]),
    ("bias|norm", lambda: optim.Nadam(0.01), ["block/bias", "norm/scale"]),
    (None, lambda: optim.Muon(0.02), ["block/kernel"]),
)


def groups(**options: Any) -> Any:
    return optim.Groups([(pattern, make()) for pattern, make, _ in MEMBERS], **options)


def variables() -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        name: keras.Variable(random.normal(size=shape).astype("float32"), name=name.replace("/", "_"))
        for name, shape in SHAPES.items()
    }


def gradients(call: int) -> dict[str, Any]:
    random = np.random.default_rng(call + 1)
    return {n: keras.ops.convert_to_tensor(random.normal(size=s).astype("float32")) for n, s in SHAPES.items()}


def values(of: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: keras.ops.convert_to_numpy(variable.value) for name, variable in of.items()}


def train(optimizer: Any, of: dict[str, Any], names: Any = tuple(SHAPES), calls: Any = range(3)) -> None:
    for call in calls:
        given = gradients(call)
        optimizer.apply([given[name] for name in names], [of[name] for name in names])


def check_each_variable_moves_as_its_own_optimizer_moves_it() -> None:
    of, alone = variables(), variables()
    train(optim.for_keras(groups()), of)
    for _, make, names in MEMBERS:
        made = make()
        train(optim.for_keras(type(made).from_config(made.get_config())), alone, names)
    for name, value in values(of).items():
        np.testing.assert_array_equal(value, values(alone)[name], name)


def check_one_norm_clips_the_gradients_of_all_groups() -> None:
    of = variables()
    start, given = (
        values(of),
        {n: np.asarray(keras.ops.convert_to_numpy(g), np.float64) for n, g in gradients(0).items()},
    )
    optimizer = optim.Groups([("kernel", optim.SGD(0.1)), (None, optim.SGD(0.2))], global_clipnorm=0.5)
    train(optim.for_keras(optimizer), of, calls=[0])
    norm = np.sqrt(sum(np.sum(g**2) for g in given.values()))
    for name, value in values(of).items():
        rate = 0.1 if "kernel" in name else 0.2
        np.testing.assert_allclose(value, start[name] - rate * 0.5 / norm * given[name], rtol=1e-5, atol=1e-6)


def check_the_rates_of_all_groups_move_together() -> None:
    adapted = optim.for_keras(optim.Groups([("bias", optim.SGD(0.4)), (None, optim.SGD(0.1))]))
    adapted.learning_rate = 0.05
    assert [entry["config"]["learning_rate"] for _, entry in adapted.get_config()["groups"]] == [0.2, 0.05]
    scheduled = optim.Groups(
        [("bias", optim.SGD(optim.schedules.ExponentialDecay(0.1, 1, 0.5))), (None, optim.SGD(0.1))]
    )
    for error, act in (
        (TypeError, lambda: setattr(optim.for_keras(scheduled), "learning_rate", 0.05)),
        (UnsupportedError, lambda: setattr(adapted, "global_clipnorm", 1.0)),
        (AttributeError, lambda: adapted.members),
        (HyperparameterError, lambda: optim.Groups([(None, optim.SGD(clipnorm=1.0))])),
        (
            HyperparameterError,
            lambda: optim.for_keras(optim.Groups([("x", optim.SGD())])).build(list(variables().values())),
        ),
    ):
        try:
            act()
        except error:
            continue
        raise AssertionError(f"no {error.__name__}")


def check_a_model_and_a_copy_continue() -> None:
    random = np.random.default_rng(0)
    x, y = (random.random((32, n)).astype(np.float32) for n in (4, 2))

    def fit(model: Any) -> list[float]:
        return list(model.fit(x, y, 8, epochs=2, shuffle=False, verbose=0).history["loss"])

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
    optimizer = optim.Groups([("bias", optim.SGD(0.1, momentum=0.9)), (None, optim.Nadam(0.01))], use_ema=True)
    model.compile(optim.for_keras(optimizer), "mse")
    fit(model)
    model.optimizer.learning_rate = 0.005
    again = copy.deepcopy(model.optimizer)
    assert again.get_config() == model.optimizer.get_config()
    optim.keras_objects()
    path = Path(tempfile.mkdtemp()) / "model.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    assert fit(loaded) == fit(model)
    for one, two in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(two))


def check_a_checkpoint_continues_on_tensorflow() -> None:
    """Write one, and what the variables are some steps later; `test_backends.py` compares."""
    of = variables()
    adapted = optim.for_keras(groups())
    train(adapted, of)
    folder = Path(sys.argv[1])
    optim.save_checkpoint(folder / "checkpoint", adapted, of)
    train(adapted, of, calls=range(3, 6))
    np.savez(folder / "later.npz", **{name.replace("/", "_"): value for name, value in values(of).items()})


if __name__ == "__main__":
    run_checks(globals())
