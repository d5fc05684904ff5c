"""Subclasses that users wrote for OptimizerV2: the same code on `legacy.v2` and on tf_keras's, step for step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from optim.errors import UnsupportedError
from optim.legacy import v2
from tests.helpers.breadth import covering

LEGACY = tf_keras.optimizers.legacy
START = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def sign_descent(base: Any) -> Any:
    """A new algorithm, with a slot of its own and coefficients in `apply_state`."""

    class SignMomentum(base.Optimizer):  # type: ignore[misc,name-defined]
        _HAS_AGGREGATE_GRAD = True

        def __init__(self, learning_rate: Any = 0.01, keep: Any = 0.5, name: str = "SignMomentum", **kwargs: Any):
            super().__init__(name, **kwargs)
            self._set_hyper("learning_rate", kwargs.get("lr", learning_rate))
            self._set_hyper("decay", self._initial_decay)
            self._set_hyper("keep", keep)

        def _create_slots(self, var_list: Any) -> None:
            for variable in var_list:
                self.add_slot(variable, "mean", initializer="ones")

        def _prepare_local(self, var_device: str, var_dtype: Any, apply_state: Any) -> None:
            super()._prepare_local(var_device, var_dtype, apply_state)
            apply_state[(var_device, var_dtype)]["keep"] = tf.identity(self._get_hyper("keep", var_dtype))

        def _of(self, var: Any, apply_state: Any) -> Any:
            key = (var.device, var.dtype.base_dtype)
            return (apply_state or {}).get(key) or self._fallback_apply_state(*key)

        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
            c, mean = self._of(var, apply_state), self.get_slot(var, "mean")
            new = mean.assign(c["keep"] * mean + (1.0 - c["keep"]) * tf.sign(grad))
            return var.assign_sub(c["lr_t"] * new)

        def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any, apply_state: Any = None) -> Any:
            c, mean = self._of(var, apply_state), self.get_slot(var, "mean")
            rows = c["keep"] * tf.gather(mean, indices) + (1.0 - c["keep"]) * tf.sign(grad)
            self._resource_scatter_update(mean, indices, rows)
            return self._resource_scatter_add(var, indices, -c["lr_t"] * rows)

        def get_config(self) -> dict[str, Any]:
            own = {n: self._serialize_hyperparameter(n) for n in ("learning_rate", "keep")}
            return {**super().get_config(), **own, "decay": self._initial_decay}

    return SignMomentum


def lazy_adam(base: Any) -> Any:
    """A built-in class whose sparse steps are replaced, by a method that takes no `apply_state`."""

    class LazyAdam(base.Adam):  # type: ignore[misc,name-defined]
        def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
            dtype = var.dtype.base_dtype
            rate, step = self._decayed_lr(dtype), tf.cast(self.iterations + 1, dtype)
            b1, b2 = self._get_hyper("beta_1", dtype), self._get_hyper("beta_2", dtype)
            m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
            rows_m = b1 * tf.gather(m, indices) + (1 - b1) * grad
            rows_v = b2 * tf.gather(v, indices) + (1 - b2) * tf.square(grad)
            self._resource_scatter_update(m, indices, rows_m)
            self._resource_scatter_update(v, indices, rows_v)
            rate = rate * tf.sqrt(1 - b2**step) / (1 - b1**step)
            return self._resource_scatter_add(var, indices, -rate * rows_m / (tf.sqrt(rows_v) + self.epsilon))

    return LazyAdam


def decayed(name: str) -> Any:
    """Decoupled weight decay mixed into a built-in class, whose own steps it extends."""

    def make(base: Any) -> Any:
        class Decay:
            def __init__(self, weight_decay: Any, **kwargs: Any):
                super().__init__(**kwargs)
                self._set_hyper("weight_decay", weight_decay)

            def _prepare_local(self, var_device: str, var_dtype: Any, apply_state: Any) -> None:
                super()._prepare_local(var_device, var_dtype, apply_state)  # type: ignore[misc]
                apply_state[(var_device, var_dtype)]["wd_t"] = tf.cast(self._get_hyper("weight_decay"), var_dtype)

            def _decay(self, var: Any, apply_state: Any) -> Any:
                key = (var.device, var.dtype.base_dtype)
                own = (apply_state or {}).get(key) or self._fallback_apply_state(*key)
                return var.assign_sub(own["wd_t"] * var, self._use_locking)

            def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
                with tf.control_dependencies([self._decay(var, apply_state)]):
                    return super()._resource_apply_dense(grad, var, apply_state=apply_state)  # type: ignore[misc]

            def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any, apply_state: Any = None) -> Any:
                with tf.control_dependencies([self._decay(var, apply_state)]):
                    return super()._resource_apply_sparse(grad, var, indices, apply_state=apply_state)  # type: ignore[misc]

        class Decayed(Decay, getattr(base, name)):  # type: ignore[misc]
            def __init__(self, weight_decay: Any = 0.05, learning_rate: Any = 0.02, **kwargs: Any):
                super().__init__(weight_decay, learning_rate=learning_rate, **kwargs)

        return Decayed

    return make


def warmed_up(base: Any) -> Any:
    """A built-in class with another learning rate."""

    class WarmedUp(base.RMSprop):  # type: ignore[misc,name-defined]
        def _decayed_lr(self, var_dtype: Any) -> Any:
            return super()._decayed_lr(var_dtype) * tf.minimum(1.0, tf.cast(self.iterations + 1, var_dtype) / 4.0)

    return WarmedUp


def averaging(base: Any) -> Any:
    """A wrapper that holds another optimizer as `_optimizer`, lets it step, and counts with its own iterations."""

    class Averaging(base.Optimizer):  # type: ignore[misc,name-defined]
        def __init__(self, name: str = "Averaging", **kwargs: Any):
            super().__init__(name, **kwargs)
            self._optimizer = base.SGD(0.05, momentum=0.5)
            self._track_trackable(self._optimizer, "wrapped")

        def _create_slots(self, var_list: Any) -> None:
            self._optimizer._create_slots(var_list)
            for variable in var_list:
                self.add_slot(variable, "average", variable.read_value())

        def _prepare(self, var_list: Any) -> Any:
            return self._optimizer._prepare(var_list)

        def apply_gradients(self, grads_and_vars: Any, name: str | None = None, **kwargs: Any) -> Any:
            self._optimizer._iterations = self.iterations
            return super().apply_gradients(grads_and_vars, name, **kwargs)

        def _average(self, var: Any, done: Any) -> Any:
            average = self.get_slot(var, "average")
            with tf.control_dependencies([] if done is None else [done]):
                return average.assign(0.5 * average + 0.5 * var)

        def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
            return self._average(var, self._optimizer._resource_apply_dense(grad, var))

        def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
            return self._average(var, self._optimizer._resource_apply_sparse(grad, var, indices))

        @property
        def weights(self) -> Any:
            return self._weights + self._optimizer.weights

        def get_config(self) -> dict[str, Any]:
            return super().get_config()

    return Averaging


MAKERS = {
    "own": sign_descent,
    "lazy_adam": lazy_adam,
    "warmed_up": warmed_up,
    "averaging": averaging,
    **{
        f"decayed_{n}": decayed(n) for n in ("SGD", "Adam", "Nadam", "Adamax", "Ftrl", "Adadelta", "Adagrad", "RMSprop")
    },
}


def gradients(step: int) -> tuple[Any, Any]:
    """A dense one and `IndexedSlices` with a repeated row; the rows change from step to step."""
    values = np.random.default_rng(step).normal(size=(5, 3)).astype(np.float32)
    return tf.constant(values), tf.IndexedSlices(
        tf.constant(values[:3]), tf.constant([step % 5, 1, 1]), tf.constant([5, 3])
    )


@covering(1, name=MAKERS, mode=["eager", "function"])
@pytest.mark.quick(4)
def test_a_subclass_steps_as_it_did(name: str, mode: str) -> None:
    ends = []
    for base in (v2, LEGACY):
        optimizer = MAKERS[name](base)(clipvalue=0.8)
        dense, table = tf.Variable(START), tf.Variable(START)

        def step(a: Any, values: Any, indices: Any, optimizer: Any = optimizer, pair: Any = (dense, table)) -> None:
            optimizer.apply_gradients([(a, pair[0]), (tf.IndexedSlices(values, indices, tf.constant([5, 3])), pair[1])])

        run = tf.function(step) if mode == "function" else step
        for number in range(6):
            a, b = gradients(number)
            run(a, b.values, b.indices)
        ends.append([dense.numpy(), table.numpy(), *optimizer.get_weights()])
        assert int(optimizer.iterations) == 6
    assert len(ends[0]) == len(ends[1])
    for mine, want in zip(*ends, strict=True):
        np.testing.assert_allclose(mine, want, rtol=3e-5, atol=2e-6)


def test_hyperparameters_of_a_subclass_are_attributes_in_traces_and_in_the_config() -> None:
    optimizer, weights = sign_descent(v2)(learning_rate=1.0, keep=0.0, decay=1.0), tf.Variable([0.0])
    step = tf.function(lambda: optimizer.apply_gradients([(tf.constant([1.0]), weights)]))
    step()
    assert weights.numpy() == -1
    assert float(optimizer.keep) == 0
    optimizer.keep = 1.0
    step()
    assert weights.numpy() == -1.5  # the mean stays, the rate decays
    assert optimizer.get_config() == {
        "name": "SignMomentum", "learning_rate": 1.0, "keep": 1.0, "decay": 1.0
    }  # fmt: skip
    again = type(optimizer).from_config(optimizer.get_config())
    assert (float(again.keep), again._initial_decay) == (1.0, 1.0)
    scheduled = sign_descent(v2)(learning_rate=tf_keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5))
    again = type(scheduled).from_config(scheduled.get_config())
    again.apply_gradients([(tf.constant([1.0]), weights)])
    assert float(again._decayed_lr(tf.float32)) == 0.25


def test_the_state_of_a_subclass_is_in_checkpoints(tmp_path: Any) -> None:
    made = []
    for _ in range(2):
        weights = tf.Variable(START, name="weights")
        optimizer = sign_descent(v2)(keep=0.25)
        optimizer.apply_gradients([(tf.constant(START), weights)])
        made.append((optimizer, weights))
    (one, weights), (other, others) = made
    one.apply_gradients([(tf.constant(START), weights)])
    one.keep = 0.75
    path = tf.train.Checkpoint(optimizer=one, weights=weights).write(str(tmp_path / "c"))
    tf.train.Checkpoint(optimizer=other, weights=others).read(path).assert_consumed()
    np.testing.assert_array_equal(other.get_slot(others, "mean"), one.get_slot(weights, "mean"))
    assert float(other.keep) == 0.75
    assert int(other.iterations) == 2


def test_gradients_are_transformed_on_their_way() -> None:
    order: list[str] = []

    class Watched(v2.SGD):
        def _transform_loss(self, loss: Any) -> Any:
            order.append("loss")
            return 2.0 * loss

        def _transform_unaggregated_gradients(self, grads_and_vars: Any) -> Any:
            order.append("unaggregated")
            return grads_and_vars

        def _aggregate_gradients(self, grads_and_vars: Any) -> Any:
            order.append("aggregate")
            return super()._aggregate_gradients(grads_and_vars)

    weights = tf.Variable([1.0])
    double = lambda pairs: [(2.0 * g, v) for g, v in pairs]  # noqa: E731
    optimizer = Watched(1.0, gradient_transformers=[double, double], gradient_aggregator=lambda pairs: double(pairs))
    optimizer.minimize(lambda: weights, [weights])
    assert order == ["loss", "unaggregated", "aggregate"]
    assert weights.numpy() == 1 - 2 * 8
    optimizer.apply_gradients([(tf.constant([1.0]), weights)], experimental_aggregate_gradients=False)
    assert weights.numpy() == -15 - 4
    with tf.GradientTape() as tape:
        loss = 3.0 * weights
    v2.SGD(1.0).minimize(loss, [weights], tape=tape)
    assert weights.numpy() == -22
    with pytest.raises(ValueError, match="gradient_transformers"):
        v2.SGD(clipnorm=1.0, gradient_transformers=[double])
    with pytest.raises(ValueError, match="gradient_transformers"):
        optimizer.clipvalue = 1.0


def test_a_step_that_raises_half_way_leaves_everything_as_it_was() -> None:
    class Failing(v2.Adam):
        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
            super()._resource_apply_dense(grad, var, apply_state)
            if var.shape[0] == 2:
                raise ZeroDivisionError

    one, two, optimizer = tf.Variable([1.0]), tf.Variable([1.0, 2.0]), Failing(0.1)
    with pytest.raises(ZeroDivisionError):
        optimizer.apply_gradients([(tf.ones(1), one), (tf.ones(2), two)])
    np.testing.assert_array_equal(one, [1])
    assert all(not np.any(w) for w in optimizer.get_weights())


@pytest.mark.parametrize("make", [v2.SGD, sign_descent(v2)])
def test_a_tf1_graph_is_refused(make: Any) -> None:
    weights, optimizer = tf.Variable([1.0]), make()
    with tf.Graph().as_default(), pytest.raises(UnsupportedError, match=r"tf\.function"):
        optimizer.apply_gradients([(tf.ones(1), weights)])
    np.testing.assert_array_equal(weights, [1])
