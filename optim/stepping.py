"""One call of `apply_gradients`: check, gather, and run a real step on an executor.

Everything that can be refused is refused before the first variable changes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from optim import accumulation, averaging, execution, hyperparameters, loss_scaling, master_copies, slot_layout
from optim import learning_rate as rates
from optim.errors import HyperparameterError, NoGradientsError, UnsupportedError
from optim.executors import local, portable
from optim.executors.work import Work
from optim.variables import Tracked, check_distinct, conform, conform_all, matches, plain_name, split_pairs

if TYPE_CHECKING:
    from optim.optimizer import Optimizer


def apply(optimizer: Optimizer, grads_and_vars: Any) -> None:
    """What `Optimizer.apply_gradients` does."""
    averaging.check_not_swapped(optimizer, "apply_gradients")
    gradients, variables = split_pairs(grads_and_vars)
    if not gradients:
        return
    tracked = optimizer._state.tracked.recall(variables)
    if tracked is None:
        check_distinct(variables)
    missing = sum(gradient is None for gradient in gradients)
    if missing == len(gradients):
        raise NoGradientsError(
            f"No gradients provided for any variable: {_names(variables)}. Does the loss depend on them?"
        )
    if tracked is None:
        optimizer._build_once(variables)
        tracked = optimizer._state.tracked.find(variables)
    if missing:
        _warn_once(optimizer, [item for item, gradient in zip(tracked, gradients, strict=True) if gradient is None])
        tracked = [item for item, gradient in zip(tracked, gradients, strict=True) if gradient is not None]
        gradients = [gradient for gradient in gradients if gradient is not None]
    gradients = conform_all(gradients, tracked)
    if tf.executing_eagerly():
        _apply_eagerly(optimizer, tracked, gradients)
    else:
        execution.check_traceable(optimizer, tracked)
        _apply_traced(optimizer, tracked, gradients)


def _names(variables: Sequence[Any]) -> str:
    """Of the first five."""
    return ", ".join(plain_name(v) for v in variables[:5]) + (", ..." if len(variables) > 5 else "")


def _warn_once(optimizer: Optimizer, without_gradient: Sequence[Tracked]) -> None:
    """Tell which variables a step leaves alone for want of a gradient, once for each set of them."""
    indices = frozenset(item.index for item in without_gradient)
    if indices not in optimizer._warned_of:
        optimizer._warned_of.add(indices)
        names = _names([item.given for item in without_gradient])
        text = f"no gradients for {names}: they stay as they are. Does the loss depend on them?"
        warnings.warn(text, UserWarning, stacklevel=5)


def _apply_eagerly(optimizer: Optimizer, tracked: list[Tracked], gradients: list[Any]) -> None:
    state = optimizer._state
    report = optimizer._execution.report()
    counter = state.counter(slot_layout.ITERATIONS)
    iterations = int(counter.now())
    preparation = Preparation(optimizer, iterations)
    if optimizer._settings.steps > 1:
        if not accumulation.gather_eagerly(optimizer, tracked, gradients):
            return
        tracked = [t for t in state.tracked if t.index in optimizer._gathering]
        gradients = accumulation.take_mean(optimizer, tracked)
        local.wait_for_pending()
    work = preparation.work(tracked, gradients)
    constrained = _constrained(tracked)
    with _undone_on_error(optimizer, tracked, may_raise=bool(constrained) or not optimizer._uses_rule):
        stepped = _run(work, optimizer, report.executor)
        if stepped:
            counter.set(iterations + 1)
            for name, value in work.new_scalars().items():
                state.counter(name).set(value)
            _apply_constraints(optimizer, constrained)
    if work.loss_scale is not None:
        loss_scaling.update(optimizer, stepped)


def _run(work: Work, optimizer: Optimizer, executor: str) -> bool:
    """Run a step eagerly, and tell whether there was one; counters may be read and set without waiting after it."""
    if executor == "local":
        return local.run(work, optimizer._execution.plan())
    stepped = work.loss_scale is None or portable.is_finite(work)
    if stepped:
        portable.run(work)
    local.wait_for_pending()
    return stepped


@contextmanager
def _undone_on_error(optimizer: Optimizer, tracked: Sequence[Tracked], may_raise: bool) -> Iterator[None]:
    """Put everything back if a subclass's `update_step`, or a constraint, raises half way; other steps cannot."""
    if not may_raise:
        yield
        return
    changing = [t.variable for t in tracked] + optimizer._state.all_variables()
    before = [variable.read_value() for variable in changing]
    try:
        yield
    except BaseException:
        for variable, value in zip(changing, before, strict=True):
            variable.assign(value)
        raise


def _rule_scalars(optimizer: Optimizer, eager: bool) -> dict[str, Any]:
    """Current values of the algorithm's own scalars; eagerly, only after waiting."""
    assert optimizer._rule is not None
    state = optimizer._state
    names = list(optimizer._rule.scalars)
    if eager:
        return {name: float(state.counter(name).peek()) for name in names}
    return {name: state.scalars[name].read_value() for name in names}


def _apply_traced(optimizer: Optimizer, tracked: list[Tracked], gradients: list[Any]) -> None:
    state = optimizer._state
    iterations = state.scalars[slot_layout.ITERATIONS]

    def real_step(tracked: Sequence[Tracked], gradients: Sequence[Any], active: Sequence[Any] | None = None) -> None:
        work = Preparation(optimizer, iterations.read_value()).work(tracked, gradients, active)

        def run() -> tf.Tensor:
            if work.jit_compile:
                tf.function(lambda: portable.run(work), jit_compile=True, autograph=False)()
            else:
                portable.run(work)
            iterations.assign_add(1)
            for name, value in work.new_scalars().items():
                state.scalars[name].assign(value)
            _apply_constraints(optimizer, _constrained(tracked))
            return tf.constant(True)

        if work.loss_scale is None:
            run()
            return
        finite = portable.is_finite(work)
        tf.cond(finite, run, lambda: tf.constant(False))
        loss_scaling.update_traced(optimizer, finite)

    if optimizer._settings.ema.use_ema:
        averaging.check_at_every_call(optimizer)
    if optimizer._settings.steps == 1:
        real_step(tracked, gradients)
        return
    accumulation.gather(optimizer, tracked, gradients)
    # A trace cannot know which variables other calls of its window gathered for; where this call has no gradient for
    # one, its accumulator tells: it is zero if nobody had.
    gathered = [t for t in state.tracked if t.index in optimizer._gathering]
    now = {t.index for t in tracked}
    active = [True if t.index in now else accumulation.has_gathered(optimizer, t) for t in gathered]
    steps = state.scalars[slot_layout.ACCUMULATED_STEPS]
    count = steps.read_value() + 1
    complete = tf.equal(count, optimizer._settings.steps)
    steps.assign(tf.where(complete, tf.zeros_like(count), count))

    def step_with_mean() -> tf.Tensor:
        real_step(gathered, accumulation.take_mean(optimizer, gathered), active)
        return tf.constant(True)

    tf.cond(complete, step_with_mean, lambda: tf.constant(False))


class Preparation:
    """The scalars of one step, evaluated and checked before anything changes.

    `iterations` is a Python int eagerly and a tensor in a function; so are all scalars floats or float64 tensors.
    """

    def __init__(self, optimizer: Optimizer, iterations: Any):
        self._optimizer = optimizer
        eager = isinstance(iterations, int)
        self.rate = rates.current(optimizer, iterations)
        self.loss_scale = loss_scaling.for_step(optimizer, eager)
        hyper = {name: p.current(optimizer) for name, p in hyperparameters.declared(type(optimizer)).items()}
        step = float(iterations + 1) if eager else tf.cast(iterations + 1, tf.float64)
        self.coefficients: dict[float, dict[str, Any]] = {}
        if optimizer._settings.decay and not optimizer._uses_rule:
            raise UnsupportedError(
                f"decay={optimizer._settings.decay} would have no effect: {type(optimizer).__name__} has its own"
                " update_step; give it a learning-rate schedule"
            )
        if optimizer._uses_rule:
            assert optimizer._rule is not None
            hyper.update(_rule_scalars(optimizer, eager))
            if self.rate is None:
                raise HyperparameterError(f"{type(optimizer).__name__} was made without a learning_rate")
            for factor in set(optimizer._rate_factors.values()):
                hyper["learning_rate"] = self.rate * factor
                scalars = optimizer._rule.coefficients(np if eager else tf, hyper, step)
                self.coefficients[factor] = {n: float(v) for n, v in scalars.items()} if eager else scalars
        every = optimizer._settings.ema.ema_overwrite_frequency
        averages = optimizer._settings.ema.use_ema and every is not None
        self.overwrite = (iterations + 1) % every == 0 if averages else False

    def work(self, tracked: Sequence[Tracked], gradients: Sequence[Any], active: Sequence[Any] | None = None) -> Work:
        optimizer = self._optimizer
        settings = optimizer._settings
        return Work(
            tracked=tracked,
            gradients=gradients,
            slots=optimizer._state.slots,
            rule=optimizer._rule if optimizer._uses_rule else None,
            update_step=optimizer.update_step,
            coefficients=self.coefficients,
            rate_factors=[optimizer._rate_factors.get(t.index, 1.0) for t in tracked],
            decay_factors=[self._decay_factor(t) for t in tracked],
            active=active or [True] * len(tracked),
            lazy=[bool(settings.lazy_rows) and execution.is_lazy(optimizer, t) for t in tracked],
            clip=settings.clip,
            ema=settings.ema,
            overwrite=self.overwrite,
            loss_scale=self.loss_scale,
            jit_compile=bool(settings.jit_compile),
        )

    def _decay_factor(self, tracked: Tracked) -> Any:
        weight_decay = self._optimizer._weight_decay_of(tracked)
        if not weight_decay or not _is_decayed(self._optimizer, tracked):
            return None
        if self.rate is None:
            raise HyperparameterError("weight_decay needs a learning_rate; give the optimizer one")
        return 1.0 - weight_decay * (self.rate * self._optimizer._rate_factors.get(tracked.index, 1.0))


def _is_decayed(optimizer: Optimizer, tracked: Tracked) -> bool:
    is_excluded = id(tracked.variable) in optimizer._not_decayed
    return not is_excluded and not matches(optimizer._settings.weight_decay_exclude, tracked)


def update_one(optimizer: Optimizer, gradient: Any, variable: Any) -> None:
    """What `Optimizer.update_step` does where the algorithm is a rule."""
    tracked = optimizer._tracked(variable)
    counter = optimizer._state.counter(slot_layout.ITERATIONS)
    iterations = int(counter.now()) if tf.executing_eagerly() else optimizer.iterations.read_value()
    work = Preparation(optimizer, iterations).work([tracked], [conform(gradient, tracked)])
    master_copies.write(work.slots, tracked, portable.rule_value(work, 0, work.gradients[0]))


def _constrained(tracked: Sequence[Tracked]) -> list[Tracked]:
    return [item for item in tracked if getattr(item.given, "constraint", None) is not None]


def _apply_constraints(optimizer: Optimizer, constrained: Sequence[Tracked]) -> None:
    slots = optimizer._state.slots
    for item in constrained:
        value = item.given.constraint(master_copies.target(slots, item).read_value())
        master_copies.write(slots, item, value)
