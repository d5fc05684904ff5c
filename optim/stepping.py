"""One call of `apply_gradients`: check, gather, and run a real step on an executor.

Everything that can be refused is refused before the first variable changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from optim import hyperparameters, placement, slot_layout
from optim.errors import HyperparameterError, NoGradientsError, UnsupportedError
from optim.executors import kernels, local, native, portable
from optim.executors.work import Work
from optim.reports import ExecutorReport
from optim.variables import Tracked, check_distinct, conform_all, plain_name, split_pairs

if TYPE_CHECKING:
    from optim.optimizer import Optimizer


def apply(optimizer: Optimizer, grads_and_vars: Any) -> None:
    """What `Optimizer.apply_gradients` does."""
    gradients, variables = split_pairs(grads_and_vars)
    if not gradients:
        return
    tracked = optimizer._state.tracked.recall(variables)
    if tracked is None:
        check_distinct(variables)
    missing = sum(gradient is None for gradient in gradients)
    if missing == len(gradients):
        names = ", ".join(plain_name(v) for v in variables[:5])
        raise NoGradientsError(f"no gradient for any variable ({names}...): does the loss depend on them?")
    if tracked is None:
        optimizer._build_once(variables)
        tracked = optimizer._state.tracked.find(variables)
    if missing:
        tracked = [item for item, gradient in zip(tracked, gradients, strict=True) if gradient is not None]
        gradients = [gradient for gradient in gradients if gradient is not None]
    gradients = conform_all(gradients, tracked)
    if tf.executing_eagerly():
        _apply_eagerly(optimizer, tracked, gradients)
    else:
        _check_traceable(optimizer, tracked)
        _apply_traced(optimizer, tracked, gradients)


def _apply_eagerly(optimizer: Optimizer, tracked: list[Tracked], gradients: list[Any]) -> None:
    state = optimizer._state
    report = optimizer.executor_report()
    counter = state.counter(slot_layout.ITERATIONS)
    iterations = int(counter.now())
    _wait_for_other_meshes(optimizer, tracked)
    preparation = Preparation(optimizer, iterations)
    if optimizer._settings.steps > 1:
        if not _gather_eagerly(optimizer, tracked, gradients):
            return
        tracked = [t for t in state.tracked if t.index in optimizer._gathering]
        gradients = _take_mean(optimizer, tracked)
        counter.now()
    work = preparation.work(tracked, gradients)
    with _undone_on_error(optimizer, tracked):
        if report.executor == "local":
            local.run(work, optimizer._local_plan())
        else:
            portable.run(work)
            counter.now()
        counter.set(iterations + 1)
        if work.rule is not None:
            for name in work.rule.scalars:
                state.counter(name).set(work.coefficients[name])
        _apply_constraints(tracked)


@contextmanager
def _undone_on_error(optimizer: Optimizer, tracked: Sequence[Tracked]) -> Iterator[None]:
    """Put everything back if a subclass's `update_step`, or a constraint, raises half way; other steps cannot."""
    if optimizer._uses_rule and all(getattr(t.given, "constraint", None) is None for t in tracked):
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
        if work.jit_compile:
            tf.function(lambda: portable.run(work), jit_compile=True, autograph=False)()
        else:
            portable.run(work)
        iterations.assign_add(1)
        for name in work.rule.scalars if work.rule is not None else ():
            state.scalars[name].assign(work.coefficients[name])
        _apply_constraints(tracked)

    if optimizer._settings.steps == 1:
        real_step(tracked, gradients)
        return
    _gather(optimizer, tracked, gradients)
    # A trace cannot know which variables other calls of its window gathered for; where this call has no gradient for
    # one, its accumulator tells: it is zero if nobody had.
    gathered = [t for t in state.tracked if t.index in optimizer._gathering]
    now = {t.index for t in tracked}
    active = [True if t.index in now else _has_gathered(optimizer, t) for t in gathered]
    steps = state.scalars[slot_layout.ACCUMULATED_STEPS]
    count = steps.read_value() + 1
    complete = tf.equal(count, optimizer._settings.steps)
    steps.assign(tf.where(complete, tf.zeros_like(count), count))

    def step_with_mean() -> tf.Tensor:
        real_step(gathered, _take_mean(optimizer, gathered), active)
        return tf.constant(True)

    tf.cond(complete, step_with_mean, lambda: tf.constant(False))


class Preparation:
    """The scalars of one step, evaluated and checked before anything changes.

    `iterations` is a Python int eagerly and a tensor in a function; so are all scalars floats or float64 tensors.
    """

    def __init__(self, optimizer: Optimizer, iterations: Any):
        self._optimizer = optimizer
        eager = isinstance(iterations, int)
        self.rate = optimizer._current_rate(iterations)
        hyper = {name: p.current(optimizer) for name, p in hyperparameters.declared(type(optimizer)).items()}
        step = float(iterations + 1) if eager else tf.cast(iterations + 1, tf.float64)
        self.coefficients: dict[str, Any] = {}
        if optimizer._settings.decay and not optimizer._uses_rule:
            raise UnsupportedError(
                f"decay={optimizer._settings.decay} would have no effect: {type(optimizer).__name__} has its own"
                " update_step; give it a learning-rate schedule"
            )
        if optimizer._uses_rule:
            assert optimizer._rule is not None
            scalars = {**hyper, "learning_rate": self.rate, **_rule_scalars(optimizer, eager)}
            self.coefficients = optimizer._rule.coefficients(np if eager else tf, scalars, step)
            if eager:
                self.coefficients = {name: float(value) for name, value in self.coefficients.items()}
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
            decay_factors=[self._decay_factor(t) for t in tracked],
            active=active or [True] * len(tracked),
            lazy=[bool(settings.lazy_rows) and is_lazy(optimizer, t) for t in tracked],
            clip=settings.clip,
            ema=settings.ema,
            overwrite=self.overwrite,
            jit_compile=bool(settings.jit_compile),
        )

    def _decay_factor(self, tracked: Tracked) -> Any:
        weight_decay = self._optimizer._weight_decay_of(tracked)
        if not weight_decay or not self._optimizer._is_decayed(tracked):
            return None
        if self.rate is None:
            raise HyperparameterError("weight_decay needs a learning_rate; give the optimizer one")
        return 1.0 - weight_decay * self.rate


# Accumulation.


def _gather(optimizer: Optimizer, tracked: Sequence[Tracked], gradients: Sequence[Any]) -> None:
    """Add gradients to their accumulators."""
    for item, gradient in zip(tracked, gradients, strict=True):
        total = optimizer._state.slots.get(slot_layout.ACCUMULATED_GRADIENT, item)
        total.assign_add(placement.relayout(tf.cast(gradient, total.dtype), placement.layout_of(total)))
        optimizer._gathering.add(item.index)


def _gather_eagerly(optimizer: Optimizer, tracked: Sequence[Tracked], gradients: Sequence[Any]) -> bool:
    """Add gradients to their accumulators, and tell whether they make a step now."""
    counter = optimizer._state.counter(slot_layout.ACCUMULATED_STEPS)
    count = int(counter.peek()) + 1
    complete = count >= optimizer._settings.steps
    _gather(optimizer, tracked, gradients)
    counter.now()
    counter.set(0 if complete else count)
    return complete


def _take_mean(optimizer: Optimizer, tracked: Sequence[Tracked]) -> list[Any]:
    """Mean of the gathered gradients in the variables' dtype and layout; the accumulators start again at zero."""
    means = []
    for item in tracked:
        total = optimizer._state.slots.get(slot_layout.ACCUMULATED_GRADIENT, item)
        mean = tf.cast(total.read_value() / optimizer._settings.steps, item.variable.dtype)
        means.append(placement.relayout(mean, item.layout))
        total.assign(tf.zeros_like(total))
    if tf.executing_eagerly():
        optimizer._gathering.clear()
    return means


def _has_gathered(optimizer: Optimizer, tracked: Tracked) -> Any:
    """A bool tensor: whether the variable's accumulator holds anything."""
    total = optimizer._state.slots.get(slot_layout.ACCUMULATED_GRADIENT, tracked)
    return tf.logical_not(tf.equal(tf.reduce_max(tf.abs(total.read_value())), 0))


def _apply_constraints(tracked: Sequence[Tracked]) -> None:
    for item in tracked:
        constraint = getattr(item.given, "constraint", None)
        if constraint is not None:
            item.variable.assign(placement.relayout(constraint(item.variable.read_value()), item.layout))


# Which executor.


def _wait_for_other_meshes(optimizer: Optimizer, tracked: Sequence[Tracked]) -> None:
    """The counter has waited for its own mesh; variables on another need one read of theirs."""
    waited: set[Any] = {optimizer._state.mesh, None}
    for item in {id(t.mesh): t for t in tracked}.values():
        if item.mesh not in waited:
            waited.add(item.mesh)
            local.wait_for(optimizer._mesh_token(item.mesh))


def executor_report(optimizer: Optimizer) -> ExecutorReport:
    """What an eager step will use. Raises UnsupportedError if `executor="local"` asks for what cannot be."""
    reason = _why_portable(optimizer)
    settings = optimizer._settings
    if settings.executor == "local" and reason:
        raise UnsupportedError(f'executor="local" is impossible here: {reason}; use executor="auto"')
    if settings.jit_compile and reason:
        raise UnsupportedError(f"jit_compile=True needs the local executor, which is impossible here: {reason}")
    names: dict[str, str] = {}
    for item in optimizer._state.tracked:
        names[item.name] = _kernel_name(optimizer, item, bool(reason))
    why = reason or "every shard can be updated in place"
    return ExecutorReport("portable" if reason else "local", why, names, _why_not_native(optimizer, bool(reason)))


def _kernel_name(optimizer: Optimizer, item: Tracked, is_portable: bool) -> str:
    if not optimizer._uses_rule:
        return "update_step"
    if is_portable:
        return "ops"
    if optimizer._settings.jit_compile:
        return "xla"
    assert optimizer._rule is not None
    if not native.why_not(optimizer._rule, item, optimizer._state.slots):
        return "native"
    return "fused" if kernels.kernel_for(optimizer._rule, item.variable.dtype) else "ops"


def _why_not_native(optimizer: Optimizer, is_portable: bool) -> str:
    """The first reason why a variable is not updated by dtopt's own kernel; empty if all are."""
    if is_portable:
        return "the steps are portable"
    if optimizer._settings.jit_compile:
        return "jit_compile asks for XLA"
    state = optimizer._state
    reasons = (native.why_not(optimizer._rule, item, state.slots) for item in state.tracked)
    return next(filter(None, reasons), "")


def _why_portable(optimizer: Optimizer) -> str:
    settings = optimizer._settings
    if settings.executor == "portable":
        return 'executor="portable" was asked for'
    if not optimizer._uses_rule:
        return f"{type(optimizer).__name__} has its own update_step"
    if optimizer._rule is not None and not optimizer._rule.elementwise:
        return f"the rule of {type(optimizer).__name__} looks at whole tensors"
    lazy = next((t for t in optimizer._state.tracked if is_lazy(optimizer, t)), None)
    if lazy is not None:
        return f"lazy_rows names variable {lazy}"
    for item in optimizer._state.tracked:
        if why := _why_not_in_shards(optimizer, item):
            return why
    norms = settings.clip.clipnorm is not None or settings.clip.global_clipnorm is not None
    if norms and dtensor.num_clients() > 1:
        return "norms of gradients span several clients"
    return ""


def _why_not_in_shards(optimizer: Optimizer, item: Tracked) -> str:
    """Why the slots of a variable are placed so that its shards cannot be updated one by one; empty if they can."""
    state = optimizer._state
    names = [*(slot.name for slot in (optimizer._rule.slots if optimizer._rule else ())), slot_layout.AVERAGE]
    placed = {name: placement.layout_of(slot) for name, slot in state.slots.of(item, names).items()}
    odd = next((name for name, layout in placed.items() if layout != item.layout), None)
    if odd is None:
        return ""
    where = f"slot {odd!r} of {item} is placed otherwise than the variable (slot_placement)"
    layout = placed[odd]
    if layout is None or item.layout is None or not placement.is_finer(layout, item.layout):
        return f"{where}, and not only sharded further"
    if any(other != layout for other in placed.values()):
        return f"{where}, and its slots are not all placed alike"
    if optimizer._settings.jit_compile:
        return f"{where}, and jit_compile compiles the update of whole shards"
    return f"{where}, and the mesh has several clients" if dtensor.num_clients() > 1 else ""


def _check_traceable(optimizer: Optimizer, tracked: Sequence[Tracked]) -> None:
    """Refuse, while tracing, what TensorFlow would run wrongly."""
    settings = optimizer._settings
    if settings.executor == "local":
        raise UnsupportedError(
            'executor="local" steps outside of tf.function: compute gradients in the function, return them, and call'
            " apply_gradients on them eagerly"
        )
    meshes = {t.mesh for t in tracked}
    if len(meshes) > 1:
        raise UnsupportedError(
            "one tf.function cannot update variables of several meshes, or of a mesh and of none (TensorFlow would run"
            " an assignment to a plain variable once per device); call apply_gradients eagerly"
        )
    for slot, index, variable in optimizer._state.slots.items():
        layout, own = optimizer._state.tracked.at(index).layout, placement.layout_of(variable)
        if layout is not None and own is not None and not placement.is_finer(own, layout):
            raise UnsupportedError(
                f"slot {slot!r} of {optimizer._state.tracked.at(index)} is sharded across its variable's layout; a read"
                " of the variable after the step in the same tf.function would give its old value (TensorFlow 2.21);"
                " call apply_gradients eagerly"
            )
    if settings.jit_compile and meshes != {None}:
        raise UnsupportedError(
            "jit_compile=True has no effect inside a tf.function over DTensors, which TensorFlow never compiles;"
            " call apply_gradients eagerly, or leave jit_compile out"
        )


def is_lazy(optimizer: Optimizer, tracked: Tracked) -> bool:
    patterns = optimizer._settings.lazy_rows
    return bool(patterns) and tracked.variable.shape.rank > 0 and matches(patterns, tracked)


def matches(patterns: Sequence[str], tracked: Tracked) -> bool:
    """Whether one of the regular expressions is found in the variable's name, here or in checkpoints."""
    names = (tracked.name, plain_name(tracked.given))
    return any(re.search(pattern, name) for pattern in patterns for name in names)
