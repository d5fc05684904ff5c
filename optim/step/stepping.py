"""One call of `apply_gradients`: check, gather, and run a real step on an executor.

Everything that can be refused is refused before the first variable changes.
"""

from __future__ import annotations

import functools
import itertools
import operator
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.autograph.impl.api import autograph_artifact

from optim import slot_layout
from optim.algorithm import Algorithm
from optim.errors import NoGradientsError, UnsupportedError
from optim.executors import local, one_op, portable
from optim.executors.gradient_metadata import UNCHANGED, GradientMetadata
from optim.executors.work import Work
from optim.options import master_copies
from optim.options.settings import Settings
from optim.state.row_gradient import clear_windows
from optim.state.state import State
from optim.state.tracked import Tracked, TrackedList, plain_name, unwrap
from optim.state.unsettled import Unsettled
from optim.step import replicas
from optim.step.execution import Execution
from optim.step.gradient_inputs import GradientInputs
from optim.step.gradients import (
    check_complex,
    check_distinct,
    check_dtypes,
    checked_when_run,
    conform,
    split_pairs,
)
from optim.step.interrupts import Deferred
from optim.step.preparation import Preparation
from optim.step.tape import compute
from optim.step.traces import Traces

_Function = TypeVar("_Function", bound=Callable[..., Any])


def not_converted(function: _Function) -> _Function:
    """Exclude a function from autograph. `do_not_convert` would wrap it, which would slow eager steps."""
    left: _Function = autograph_artifact(function)
    return left


class Stepper:
    """The steps of one optimizer.

    Args:
      build: makes the slots of variables, if they do not exist yet.
      preparation: computes the scalars of a step.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        state: State,
        settings: Settings,
        build: Callable[[Sequence[Any]], None],
        preparation: type[Preparation] = Preparation,
    ):
        self.execution = Execution(algorithm, state, settings)
        self.traces = Traces(self._before_traced)
        self._algorithm = algorithm
        self._state = state
        self._settings = settings
        self._gradient_inputs = GradientInputs(algorithm, state, settings, self.execution)
        self._build = build
        self._preparation = preparation
        settings.watch(self.options_changed)
        self._warned_of: set[frozenset[int]] = set()
        self._lock = threading.RLock()

    def prepare(self, what: str) -> None:
        """Prepare for `what`, which needs the final state."""
        self._settings.averages.check_not_swapped(what)
        self._state.settle()

    def _before_traced(self) -> None:
        """Prepare for each call of a function that contains a step."""
        self.prepare("apply_gradients")
        self._state.settle_checkpoints()

    def _prepared(self, iterations: Any) -> Preparation:
        return self._preparation(self._algorithm, self._state, self._settings, iterations)

    def options_changed(self) -> None:
        """Drop stored data and traces of steps, which are invalid after a change of options."""
        self.execution.forget()
        self.traces.changed()

    def variables_added(self) -> None:
        """Invalidate traces that complete a window of accumulation, because they need the new variables."""
        if self._settings.accumulation.is_used:
            self.traces.changed()

    def _build_once(self, var_list: Sequence[Any]) -> None:
        if not self._state.built:
            with tf.init_scope(), tf.name_scope(self._state.scope):
                self._build(var_list)
            self._state.built = True

    def compute_gradients(self, loss: Any, var_list: Any, tape: tf.GradientTape | None = None) -> list[tuple[Any, Any]]:
        """Return the gradients of `loss`, times the scale under `loss_scale`; `apply_gradients` divides by it.

        Args:
          loss: a callable without arguments, or a tensor that `tape` recorded; not scaled.
          var_list: variables, or a callable without arguments that returns them.
          tape: required if `loss` is a tensor.

        Returns:
          (gradient, variable) pairs; a gradient may be None.

        Raises:
          ValueError: `loss` is a tensor and there is no tape.
        """
        return compute(loss, var_list, tape, self._scale_of if self._settings.loss_scale.is_used else None)

    def _scale_of(self, loss: Any, var_list: Sequence[Any]) -> Any:
        self._build_once(var_list)
        return self._settings.loss_scale.factor_for(loss)

    def clip_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Clip gradients as a step would, for users of Keras's `_clip_gradients`; no step calls it."""
        return portable.clipped(gradients, self._settings.clipping.option)

    def apply(self, grads_and_vars: Any, aggregate: bool = True) -> None:
        """Apply gradients as `Optimizer.apply_gradients` describes.

        Args:
          aggregate: whether replicas of a `tf.distribute.Strategy` sum their gradients.
        """
        if tf.executing_eagerly():
            self._apply_pairs(grads_and_vars, aggregate, True)
        else:
            check_not_tf1()
            tf.autograph.experimental.do_not_convert(self._apply_pairs)(grads_and_vars, aggregate, False)

    def _apply_pairs(self, grads_and_vars: Any, aggregate: bool, is_eager: bool) -> None:
        self._settings.averages.check_not_swapped("apply_gradients")
        gradients, variables = split_pairs(grads_and_vars)
        if not gradients:
            return
        if replicas.needed():
            self._apply_in_replicas(gradients, variables, aggregate)
            return
        if not is_eager or replicas.in_copy():
            self._apply(gradients, variables)
            return
        replicas.check_alone([self._state.scalars[slot_layout.ITERATIONS]])
        with self._lock:  # the counters of one step are read, and set, one after the other
            self._apply(gradients, variables, alone=True)

    def _apply_in_replicas(self, gradients: list[Any], variables: list[Any], aggregate: bool) -> None:
        replicas.check("apply_gradients")
        pairs = replicas.alike(list(zip(gradients, variables, strict=True)))
        _check_some([gradient for gradient, _ in pairs], variables)
        replicas.step(
            pairs,
            aggregate=aggregate,
            build=lambda: self._build_once(variables),
            anchor=self._state.scalars[slot_layout.ITERATIONS],
            one=self.apply,
        )

    def _apply(self, gradients: list[Any], variables: list[Any], alone: bool = False) -> None:
        """Make one call; `alone`: eagerly, and not for one replica's copy of the state."""
        tracked = self._state.tracked.recall(variables)
        if tracked is None:
            check_distinct(variables)
        missing = _check_some(gradients, variables)
        if tracked is None:
            if alone or not replicas.in_copy():
                distinct = [unwrap(variable) for variable in variables]
                replicas.check_alone(distinct)
                replicas.check_not_on_servers(distinct)
            check_dtypes(gradients, variables)
            self._build_once(variables)
            tracked = self._state.tracked.find(variables)
        executor = self.execution.report().executor if alone else ""
        self._state.copy_late_values()
        if alone or not replicas.in_copy():
            self._state.settle_checkpoints()
        if missing:
            self._warn_once([item for item, gradient in zip(tracked, gradients, strict=True) if gradient is None])
            tracked = TrackedList(t for t, gradient in zip(tracked, gradients, strict=True) if gradient is not None)
            gradients = [gradient for gradient in gradients if gradient is not None]
        if tracked.has_complex:
            check_complex(tracked, self._settings.clipping.option.active, self._settings.loss_scale.is_used)
        gradients, metadata = self._gradient_inputs.conformed(gradients, tracked, executor)
        if self._state.tracked.any_overwritten:
            tracked, gradients = self._overwrite(tracked, gradients)
            metadata = replace(metadata, held_tensors=None)
        if alone:
            self._apply_eagerly(tracked, gradients, metadata, executor)
        else:
            self.execution.check_traceable(tracked)
            self._state.place_scalars()
            self.traces.watch()
            gradients, checks = checked_when_run(gradients, tracked)
            with tf.control_dependencies(checks):
                self._apply_traced(tracked, gradients, metadata)

    def _overwrite(self, tracked: TrackedList, gradients: list[Any]) -> tuple[TrackedList, list[Any]]:
        """Assign gradients to the variables that take them unchanged; return the others."""
        positions = [i for i, item in enumerate(tracked) if item.is_overwritten]
        if positions and self._settings.accumulation.is_used:
            raise UnsupportedError(f"{tracked[positions[0]]} is overwritten by its gradient, which is not accumulated")
        for i in positions:
            tracked[i].variable.assign(gradients[i])
        rest = [i for i in range(len(tracked)) if i not in positions]
        return TrackedList(tracked[i] for i in rest), [gradients[i] for i in rest]

    def _warn_once(self, without_gradient: Sequence[Tracked]) -> None:
        """Warn which variables a step does not change because they have no gradient, once for each set of them."""
        indices = frozenset(item.index for item in without_gradient)
        if indices not in self._warned_of:
            self._warned_of.add(indices)
            names = _names([item.user_variable for item in without_gradient])
            text = f"no gradients for {names}: they stay as they are. Does the loss depend on them?"
            warnings.warn(text, UserWarning, stacklevel=6)

    # Eagerly.

    def _apply_eagerly(
        self, tracked: TrackedList, gradients: list[Any], metadata: GradientMetadata, executor: str
    ) -> None:
        counter = self._state.counter(slot_layout.ITERATIONS)
        iterations = int(counter.now() if metadata.held_tensors is None else counter.peek())  # reading these has waited
        preparation = self._prepared(iterations)
        with Deferred():
            accumulation = self._settings.accumulation
            if accumulation.is_used:
                members = accumulation.gather_eagerly(tracked, gradients, self._gradient_inputs.takes_rows)
                if not members:
                    self._end_without_step(tracked, preparation)
                    return
                tracked = TrackedList(member.tracked for member in members)
                gradients = accumulation.take_mean(members, self._settings.masters.state_dtype)
                metadata = replace(metadata, held_tensors=None)
                local.wait_for_pending()
            work = preparation.work(tracked, gradients, metadata=metadata)
            constrained = _constrained(tracked)
            may_raise = bool(constrained) or self._algorithm.own_step is not None or tracked.has_complex
            with self._undone_on_error(tracked) if may_raise else nullcontext():
                stepped = self._run(work, executor)
                if callable(stepped) and may_raise:
                    stepped = not stepped()
                if stepped:
                    self._count(iterations, preparation, stepped if callable(stepped) else None)
                    self._apply_constraints(constrained)
            if not stepped:
                self._settings.loss_scale.update(False)

    def _count(self, iterations: int, preparation: Preparation, was_left_out: Callable[[], bool] | None) -> None:
        """Move the counters after a step; move them back later if a GPU left the step out."""
        loss_scale = self._settings.loss_scale
        values = {slot_layout.ITERATIONS: iterations + 1, **preparation.new_scalars()}
        counters = [self._state.counter(key) for key in (*values, *loss_scale.counters)]
        before = [counter.peek() for counter in counters] if was_left_out is not None else []
        for counter, value in zip(counters, values.values(), strict=False):
            counter.set(value)
        loss_scale.update(True)
        if was_left_out is not None:
            leave_out = functools.partial(loss_scale.update, False)
            self._state.unsettled = Unsettled(was_left_out, counters, before, leave_out)

    def _run(self, work: Work, executor: str) -> local.Stepped:
        """Run a step, and return whether there was one; afterwards counters may be read and set without waiting."""
        by_row = [i for i in range(len(work.tracked)) if work.needs_metadata(i)] if work.slices or work.named else []
        if executor == "local" and not by_row:
            return local.run(work, self.execution.plan())
        stepped = work.loss_scale is None or portable.is_finite(work)
        if stepped and executor == "local":
            rest = [i for i in range(len(work.tracked)) if i not in by_row]
            local.run(work.only(rest), self.execution.plan())
            work = work.only(by_row)
        if stepped:
            control = None if work.loss_scale is not None else one_op.control(work, portable.is_finite)
            portable.run(replace(work, control=control))
        local.wait_for_pending()
        return stepped

    @contextmanager
    def _undone_on_error(self, tracked: Sequence[Tracked]) -> Iterator[None]:
        """Restore everything if a subclass's `update_step`, a constraint, or a rule on complex numbers raises half
        way."""
        changing = [t.variable for t in tracked] + self._state.all_variables()
        before = [variable.read_value() for variable in changing]
        try:
            yield
        except BaseException:
            for variable, value in zip(changing, before, strict=True):
                variable.assign(value)
            raise

    # In a graph.

    def _apply_traced(self, tracked: Sequence[Tracked], gradients: list[Any], metadata: GradientMetadata) -> None:
        accumulation = self._settings.accumulation
        if not accumulation.is_used:
            self._step_in_graph(tracked, gradients, metadata=metadata)
            return
        complete = accumulation.gather(tracked, gradients)

        def gather_only() -> tf.Tensor:
            iterations = self._state.scalars[slot_layout.ITERATIONS].read_value()
            preparation = self._prepared(iterations)
            self._end_without_step(tracked, preparation)
            return tf.constant(False)

        def step_with_mean() -> tf.Tensor:
            members = accumulation.members(tracked, gradients)
            means = accumulation.take_mean(members, self._settings.masters.state_dtype)
            self._step_in_graph([m.tracked for m in members], means, [m.active for m in members])
            return tf.constant(True)

        tf.cond(complete, step_with_mean, gather_only)

    def _step_in_graph(
        self,
        tracked: Sequence[Tracked],
        gradients: Sequence[Any],
        active: Sequence[Any] | None = None,
        metadata: GradientMetadata = UNCHANGED,
    ) -> None:
        iterations = self._state.scalars[slot_layout.ITERATIONS]
        with one_op.place_of_scalars(tracked):
            preparation = self._prepared(iterations.read_value())
            work = preparation.work(tracked, gradients, active, metadata)
            waits = work.loss_scale is not None and _constrained(tracked)  # which only follow a step that was taken
            work = replace(work, control=None if waits else one_op.control(work, portable.is_finite))

        def run() -> tf.Tensor:
            with tf.control_dependencies(portable.run(work)):
                iterations.assign_add(1)
                for name, value in preparation.new_scalars().items():
                    self._state.scalars[name].assign(value)
            self._apply_constraints(_constrained(tracked))
            return tf.constant(True)

        if work.loss_scale is None:
            run()
            return
        if work.control is not None:
            self._step_unless_left_out(preparation, work)
            return
        finite = portable.is_finite(work)

        def leave_out() -> tf.Tensor:
            clear_windows(gradients)
            return tf.constant(False)

        tf.cond(finite, run, leave_out)
        self._settings.loss_scale.update_traced(finite)

    def _step_unless_left_out(self, preparation: Preparation, work: Work) -> None:
        """Run a step that a GPU may leave out, without a branch: a branch would wait before the launch."""
        was_taken = one_op.was_taken(work)
        iterations = self._state.scalars[slot_layout.ITERATIONS]
        with tf.control_dependencies(portable.run(work)):
            iterations.assign_add(tf.cast(was_taken, iterations.dtype))
            for name, value in preparation.new_scalars().items():
                variable = self._state.scalars[name]
                variable.assign(tf.where(was_taken, value, variable.read_value()))
        self._settings.loss_scale.update_traced(was_taken)

    # Both.

    def _end_without_step(self, tracked: Sequence[Tracked], preparation: Preparation) -> None:
        """End a call that only gathered gradients."""
        if self._settings.accumulation.count_calls and self._settings.averages.option.use_ema:
            known = TrackedList(self._state.tracked)
            portable.move_averages(preparation.work(known, [None] * len(known)))
            if tf.executing_eagerly():
                local.wait_for_pending()
        self._apply_constraints(_constrained(tracked))

    def update_step(self, gradient: Any, variable: Any) -> None:
        """Update one variable and its slots by the algorithm alone: no clipping, decay, averaging or counting of steps.

        Subclasses with a custom algorithm override this, and may call `super().update_step`; `gradient` is then dense,
        clipped, and in the layout of `variable`.

        Raises:
          UnsupportedError: the class has no algorithm.
        """
        if not self._algorithm.has_rule:
            raise UnsupportedError(f"{self._algorithm.owner} must override update_step(gradient, variable)")
        tracked = self._state.tracked[variable]
        if tf.executing_eagerly():
            iterations: Any = int(self._state.counter(slot_layout.ITERATIONS).now())
        else:
            iterations = self._state.scalars[slot_layout.ITERATIONS].read_value()
        preparation = self._prepared(iterations)
        work = preparation.work_of_rule(tracked, conform(gradient, tracked))
        portable.update(work, 0, work.gradients[0])

    def _apply_constraints(self, constrained: Sequence[Tracked]) -> None:
        slots = self._state.slots
        for item in constrained:
            value = item.user_variable.constraint(master_copies.target(slots, item).read_value())
            master_copies.write(slots, item, value)


def check_not_tf1() -> None:
    """Raise UnsupportedError in the graph of a TF1 session, where nothing would ever run a step."""
    if not tf.executing_eagerly() and not tf.inside_function():
        raise UnsupportedError(
            "this is a TensorFlow 1 graph, which optim cannot train: leave tf.Graph().as_default() and"
            " tf.compat.v1.disable_eager_execution() out, and put the step into a tf.function; `dtopt migrate` brings"
            " checkpoints of TF1 over"
        )


def _check_some(gradients: Sequence[Any], variables: Sequence[Any]) -> int:
    """Count the gradients that are None. Raises NoGradientsError if all are."""
    missing = sum(map(operator.is_, gradients, itertools.repeat(None)))
    if missing == len(gradients):
        raise NoGradientsError(
            f"No gradients provided for any variable: {_names(variables)}. Does the loss depend on them?"
        )
    return missing


def _names(variables: Sequence[Any]) -> str:
    """Return the names of the first five."""
    return ", ".join(plain_name(v) for v in variables[:5]) + (", ..." if len(variables) > 5 else "")


def _constrained(tracked: Sequence[Tracked]) -> list[Tracked]:
    if isinstance(tracked, TrackedList) and not tracked.may_be_constrained:
        return []
    return [t for t in tracked if t.may_be_constrained and getattr(t.user_variable, "constraint", None) is not None]
