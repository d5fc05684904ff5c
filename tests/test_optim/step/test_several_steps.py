"""k steps in one `tf.function`, unrolled or in a loop, are k calls; what is read after a step is what it wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.layouts.placement import to_host
from tests.test_optim.cases import VARIANTS, WHOLE
from tests.test_optim.support import put, variable

EVERY = sorted({case.optimizer for case in VARIANTS})
SHARDINGS = {"rows": (["batch", "unsharded"], ["model"]), "both": (["batch", "model"], ["model"])}
OPTIONS: dict[str, dict[str, Any]] = {
    "bare": {},
    "all": {
        "global_clipnorm": 1.0,
        "use_ema": True,
        "ema_overwrite_frequency": 2,
        "gradient_accumulation_steps": 2,
        "loss_scale": 4.0,
        "weight_decay": 0.1,
    },
    "around": {
        "lookahead": {"sync_period": 2},
        "stochastic_average": {"average_period": 2},
        "weight_decay": 0.1,
        "decoupled_weight_decay": False,
    },
}
K = 4
FIRST = ["SGD", "RMSprop", "Adagrad", "Adadelta", "Adam", "AdamW", "Adamax", "Nadam", "Ftrl", "Lion"]
FIRST += ["Adafactor", "Lamb", "Muon"]
"""In every way; the others in one."""

USUAL = [("Adam", "both", "all", "native_function")]


def _cases() -> list[Any]:
    chosen = [
        (name, sharding, option, mode)
        for name in FIRST
        for sharding in SHARDINGS
        for option in ("bare", "all")
        for mode in ("function", "native_function")
        if mode == "function" or name not in WHOLE
    ]
    chosen += [(name, "both", "all", "function") for name in EVERY if name not in FIRST]
    chosen += [(name, "both", "around", "function") for name in ("Adam", "Lamb")]
    return [pytest.param(*case, marks=() if case in USUAL else pytest.mark.breadth) for case in chosen]


class _Model:
    """A loss of two variables, whose gradients are reduced over shards of data."""

    def __init__(self, name: str, sharding: str, options: dict[str, Any], mesh: Any):
        self.layouts = [dtensor.Layout(specs, mesh) for specs in SHARDINGS[sharding]]
        random = np.random.default_rng(3)
        self.w = variable(random.normal(size=(4, 4)), self.layouts[0], "w")
        self.b = variable(random.normal(size=(4,)), self.layouts[1], "b")
        self.x = put(random.normal(size=(8, 4)), dtensor.Layout(["batch", "unsharded"], mesh))
        self.optimizer = getattr(optim, name)(learning_rate=0.05, **options)
        self.optimizer.build([self.w, self.b])

    def step(self) -> tuple[Any, Any]:
        def loss() -> Any:
            return tf.reduce_mean(tf.square(tf.matmul(self.x, self.w) + self.b))

        self.optimizer.minimize(loss, [self.w, self.b])
        return self.w.read_value() * 1.0, self.b.read_value() * 1.0


@pytest.mark.parametrize(("name", "sharding", "option", "mode"), _cases())
@pytest.mark.breadth
def test_unrolled_and_looped_and_called(name: str, sharding: str, option: str, mode: str, mesh_2x2: Any) -> None:
    called, unrolled, looped = (_Model(name, sharding, OPTIONS[option], mesh_2x2) for _ in range(3))
    wanted = [[np.array(to_host(t)) for t in called.step()] for _ in range(K)]

    found = tf.function(lambda: [unrolled.step() for _ in range(K)])()
    for step, (have, want) in enumerate(zip(found, wanted, strict=True)):
        for a, b in zip(have, want, strict=True):
            np.testing.assert_allclose(to_host(a), b, rtol=1e-6, atol=1e-9, err_msg=f"unrolled, after step {step + 1}")

    @tf.function
    def loop() -> None:
        for _ in tf.range(K):
            looped.step()

    loop()
    for have, want in zip((looped.w, looped.b), wanted[-1], strict=True):
        np.testing.assert_allclose(to_host(have), want, rtol=1e-6, atol=1e-9)
    assert int(unrolled.optimizer.iterations.numpy()) == int(called.optimizer.iterations.numpy())
