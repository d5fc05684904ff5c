"""Shared code of the legacy interfaces: an `optim` optimizer that does the work, and its settings by their old
names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from optim import schedules, slot_layout
from optim.errors import UnsupportedError
from optim.executors import portable
from optim.legacy import _gradients
from optim.optimizer import Optimizer
from optim.options import rate as rates
from optim.options.option_objects import GradientsClipOption
from optim.state import weights as weights_of_state
from optim.step import replicas
from optim.step.gradients import check_pairs
from optim.step.stepping import check_not_tf1


class LegacyOptimizer(tf.Module):
    """Base of `legacy.v1.Optimizer` and `legacy.v2.Optimizer`.

    Clipping is done here and not by the inner optimizer, because the legacy interfaces clip the slices of sparse
    gradients, and `get_gradients` of v1 returns clipped ones.
    """

    _self_setattr_tracking = False
    _kept_rows: tuple[str, ...] | None = None
    """None: rows that `IndexedSlices` leave out get a zero gradient. With names of slots, these rows and slots do not
    change."""

    def __init__(self, optimizer: Optimizer, clip: GradientsClipOption, decay: Any):
        super().__init__()
        self._modern = optimizer
        self._clip = clip
        self._iterations_exist = False
        self._counts_elsewhere = False
        self._track_trackable(optimizer, "optimizer")
        self.decay = decay

    # Hyperparameters that all have.

    @property
    def iterations(self) -> tf.Variable:
        """Number of steps taken: int64 scalar, on the mesh of the variables if they are on one.

        In v2 it joins `weights` at its first use, or at the first step, as in OptimizerV2.
        """
        self._iterations_exist = not self._counts_elsewhere
        return self._modern.iterations

    @iterations.setter
    def iterations(self, value: Any) -> None:
        if isinstance(value, tf.Variable):
            self._iterations = value
            self._iterations_exist = True
        else:
            self._modern.iterations = value

    @property
    def _iterations(self) -> tf.Variable:
        return self._modern.iterations

    @_iterations.setter
    def _iterations(self, variable: tf.Variable) -> None:
        """Count with the variable of another optimizer, as wrappers do; it is then not in `weights`."""
        if variable is not self._modern.iterations:
            self._modern._state.put_scalar(slot_layout.ITERATIONS, variable)
        self._iterations_exist, self._counts_elsewhere = False, True

    @property
    def learning_rate(self) -> Any:
        """The constant rate's variable, in float32; the schedule; or the callable's value. `lr` is the same."""
        rate = self._modern._learning_rate
        if rate is None:
            raise AttributeError(f"{type(self).__name__} has no learning_rate; declare it with _set_hyper")
        return rate if schedules.is_schedule(rate) else self._modern.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        parsed = rates.parse(value)
        current = self._modern._learning_rate
        if isinstance(parsed, float) and isinstance(current, tf.Variable):
            current.assign(parsed)  # which a traced function sees, too
        else:
            self._modern._learning_rate = parsed

    lr = learning_rate

    @property
    def decay(self) -> float:
        """The learning rate is divided by 1 + decay · iterations, iterations before the step. >= 0."""
        return self._modern.decay

    @decay.setter
    def decay(self, value: Any) -> None:
        self._modern.decay = value

    @property
    def _rate_decay(self) -> float:
        """The decay of the learning rate, which Nadam's `decay` is not."""
        return self._modern.decay

    @property
    def clipvalue(self) -> float | None:
        """Each element of a gradient is clipped to [-clipvalue, clipvalue]. > 0, or None."""
        return self._clip.clipvalue

    @clipvalue.setter
    def clipvalue(self, value: float | None) -> None:
        self._clip = self._checked_clip(replace(self._clip, clipvalue=value))

    @property
    def clipnorm(self) -> float | None:
        """Each gradient is scaled down to at most this norm. > 0, or None."""
        return self._clip.clipnorm

    @clipnorm.setter
    def clipnorm(self, value: float | None) -> None:
        self._clip = self._checked_clip(replace(self._clip, clipnorm=value))

    @property
    def global_clipnorm(self) -> float | None:
        """All gradients are scaled down together to at most this joint norm. > 0, or None."""
        return self._clip.global_clipnorm

    @global_clipnorm.setter
    def global_clipnorm(self, value: float | None) -> None:
        self._clip = self._checked_clip(replace(self._clip, global_clipnorm=value))

    def _checked_clip(self, clip: GradientsClipOption) -> GradientsClipOption:
        return clip

    # Weights.

    @property
    def weights(self) -> list[tf.Variable]:
        """The optimizer's state in the order of the original's list."""
        raise UnsupportedError(f"{type(self).__name__} has no weights; use a subclass")

    def get_weights(self) -> list[np.ndarray]:
        """Return the values of `weights`, as whole numpy arrays whatever the layouts."""
        return weights_of_state.read(self.weights)

    def _create_all_weights(self, var_list: Sequence[Any]) -> None:
        """Make the slots of variables before the first step, so that `set_weights` can set them."""
        self._modern.build(list(var_list))

    # Steps.

    @tf.autograph.experimental.do_not_convert
    def _step(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Make one step on clipped gradients without None; errors as `Optimizer.apply_gradients`."""
        check_not_tf1()
        if replicas.needed():
            raise UnsupportedError(
                "optim.legacy.v1 does not step in a tf.distribute.Strategy, which it never knew; use optim.legacy.v2"
            )
        pairs = check_pairs(pairs)
        self._create_all_weights([variable for _, variable in pairs])
        if self._kept_rows is None:
            self._modern.apply_gradients(pairs)
            return
        with _gradients.other_rows_kept(self._modern._state, pairs, self._kept_rows):
            self._modern.apply_gradients(pairs)

    def _apply_pairs(self, pairs: Sequence[tuple[Any, Any]], aggregate: bool = True) -> None:
        """Make one step for Keras's `fit`, on gradients that are not clipped yet; some may be None."""
        present = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        clipped = portable.clipped([gradient for gradient, _ in present], self._clip)
        self._step(list(zip(clipped, [variable for _, variable in present], strict=True)))

    def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> Any:
        """Return (gradient, variable) pairs of a loss."""
        return _gradients.compute(loss, var_list, grad_loss, tape)

    def _updated(self, params: Sequence[Any]) -> list[Any]:
        """Return the variables that a step on `params` wrote: iterations and other scalars, their slots, themselves."""
        state, rule = self._modern._state, self._modern._rule
        assert rule is not None
        names = [slot.name for slot in rule.slots]
        slots = [slot for p in params for slot in state.slots.of(state.tracked[p], names).values()]
        return [self.iterations, *(state.scalars[name] for name in rule.scalars), *slots, *params]
