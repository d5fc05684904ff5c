"""The op by which devices step together: each waits for the last."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import cancellation

from optim.devices import call
from optim.native import generate, library
from optim.rules.sgd import SGDRule

NATIVE = pytest.mark.parametrize("mode", ["native"])
PROGRAM = generate.program_for(SGDRule())
NONE = np.zeros(0)


class Two:
    """A joined group of two variables, of which each device has one."""

    def __init__(self) -> None:
        assert PROGRAM is not None
        self.variables = [tf.Variable(np.ones(3, np.float32)) for _ in range(2)]
        nothing = tf.constant([], tf.int64)
        self.groups, numbers = [], []
        for variable in self.variables:
            group, number = call("DtoptGroup", [variable.handle], [], [], [], nothing, nothing, nothing, nothing)
            self.groups.append(group)
            numbers.append(number)
        kind = ("T", tf.float32.as_datatype_enum, "rule", PROGRAM.name, "shapes", PROGRAM.shapes, "passes", [])
        more = ("powers", [], "scalars_of_all", 1, "identity_at_zero", False)
        joined, self.number = call("DtoptJoin", tf.stack(numbers), nothing, *kind, *more)
        self.groups.append(joined)

    def step(self, k: int) -> None:
        """What device `k` does."""
        assert PROGRAM is not None
        library.ops().dtopt_step_together(
            variables=[self.variables[k].handle],
            slots=[],
            averages=[],
            roundings=[],
            group=self.number,
            gradients=[tf.fill([3], float(k + 1))],
            rows=[],
            windows=[],
            meanings=tf.constant(NONE, tf.float64),
            scalars=tf.constant([0.5], tf.float64),
            scales=tf.constant([float(k + 1)], tf.float64),
            decays=tf.constant(NONE, tf.float64),
            options=tf.constant([np.inf, 0.0, 0.0], tf.float64),
            active=tf.constant([], tf.bool),
            overwrite=False,
            control=tf.constant(NONE, tf.float64),
            T=tf.float32,
            rule=PROGRAM.name,
            shapes=PROGRAM.shapes,
            passes=PROGRAM.passes,
            powers=PROGRAM.powers,
            scalars_of_all=1,
            identity_at_zero=False,
            sparse=[],
            others=[],
            totals=[],
            gathered=[],
            limits=[],
            calls=1,
        )

    def values(self) -> list[float]:
        return [float(variable[0]) for variable in self.variables]


class Device(threading.Thread):
    """A call in a thread, and what it raised."""

    def __init__(self, what: Any):
        super().__init__(daemon=True)
        self.what, self.error = what, None
        self.start()

    def run(self) -> None:
        try:
            self.what()
        except tf.errors.OpError as error:
            self.error = error

    def end(self) -> Any:
        self.join(20)
        assert not self.is_alive(), "it waits for ever"
        return self.error


@NATIVE
def test_the_last_device_steps_all(mode: str) -> None:
    two = Two()
    for k in (0, 1):
        two.variables[0].assign(np.ones(3)), two.variables[1].assign(np.ones(3))
        first = Device(lambda k=k: two.step(k))
        time.sleep(0.2)
        assert first.is_alive()
        assert two.values() == [1.0, 1.0]
        two.step(1 - k)
        assert first.end() is None
        assert two.values() == [0.5, -1.0]  # each by its own gradient and scale


@NATIVE
def test_a_device_that_comes_twice(mode: str) -> None:
    two = Two()
    first = Device(lambda: two.step(0))
    time.sleep(0.2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="steps twice"):
        two.step(0)
    two.step(1)
    assert first.end() is None
    assert two.values() == [0.5, -1.0]


@NATIVE
def test_who_is_cancelled_leaves(mode: str) -> None:
    """As DTensor cancels what all devices do where one fails; later steps are not disturbed."""
    two = Two()
    function = tf.function(lambda: two.step(0)).get_concrete_function()
    manager = cancellation.CancellationManager()
    first = Device(manager.get_cancelable_function(function))
    time.sleep(0.2)
    assert first.is_alive()
    manager.start_cancel()
    assert isinstance(first.end(), tf.errors.CancelledError)
    assert two.values() == [1.0, 1.0]
    again = Device(lambda: two.step(0))
    two.step(1)
    assert again.end() is None
    assert two.values() == [0.5, -1.0]
