"""`Optimizer`: the API that Keras 2.9 documented for DTensor optimizers, on any layout or none.

The class itself keeps state and names things; the maths of an algorithm is in `optim/rules`, the order of a step in
`optim/stepping.py`, the ways to run it in `optim/executors`, and each option in the module of its name.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim import (
    configs,
    gradients,
    hyperparameters,
    meshes,
    placement,
    reports,
    schedules,
    settings,
    slot_layout,
    stepping,
)
from optim import learning_rate as rates
from optim.errors import HyperparameterError, UnsupportedError
from optim.executors import local, portable
from optim.executors.work import compute_dtype
from optim.native import library
from optim.rule import Rule, Slot, slot_dims
from optim.state import State
from optim.variables import Tracked, conform, unwrap


class Optimizer(tf.Module):
    """Base of all optimizers; subclass it with `build` and `update_step` for an algorithm of your own.

    Args:
      name: prefix of the names of slot variables.
      gradients_clip_option: `GradientsClipOption` or a mapping with its fields.
      ema_option: `EMAOption` or a mapping with its fields.
      mesh: the DTensor mesh that all variables are on. With None it is found from the variables, which may then also
        be plain ones, or on several meshes.
      learning_rate: float >= 0, scalar tensor, a `LearningRateSchedule` of Keras 3, tf_keras or `optim.schedules`, or
        a zero-argument callable.
      rule: the algorithm, one of `optim.rules`; None where a subclass has its own `update_step`.
      clipnorm, clipvalue, global_clipnorm, clip_order: the fields of `GradientsClipOption`.
      use_ema, ema_momentum, ema_overwrite_frequency: the fields of `EMAOption`.
      jit_compile: True compiles the updates of each device's shards with XLA (eagerly, or in a `tf.function` on plain
        variables); DTensor's own functions cannot be compiled, and asking for it there raises.
      weight_decay: decoupled: before the update, and after clipping, p ← p · (1 − weight_decay · lr). >= 0.
      weight_decay_exclude: regular expressions; a variable whose name one of them matches (`re.search`) is not decayed.
      lazy_rows: regular expressions; in a variable whose name one of them matches, rows (index along dim 0) whose
        gradient is all zero keep their values and slots, as OptimizerV2 and tf.train treat the rows that a sparse
        gradient leaves out under momentum and Adadelta. Steps are then portable.
      slot_placement: `"like_variable"`, `"zero1"` (slots are sharded further, over the mesh axes on which the variable
        is replicated), or a callable `(variable, slot_name) -> Layout`.
      gradient_accumulation_steps: the mean of this many gradients makes one step: clipping, decay, schedules and
        `iterations` go by real steps. >= 1.
      executor: `"auto"`: eager steps run shard by shard where they can (`executor_report()` tells), steps inside a
        `tf.function` by portable ops. `"local"` and `"portable"` insist.
      lr: old name of `learning_rate`. decay: divides the learning rate by 1 + decay · iterations.

    Raises:
      HyperparameterError (a ValueError): out of range, contradictory, or not a number.
    """

    _self_setattr_tracking = False  # TensorFlow's switch: state is tracked under chosen names, in State

    def __init__(
        self,
        name: str | None = None,
        gradients_clip_option: Any = None,
        ema_option: Any = None,
        mesh: dtensor.Mesh | None = None,
        *,
        learning_rate: Any = None,
        rule: Rule | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        clip_order: str | None = None,
        use_ema: bool | None = None,
        ema_momentum: float | None = None,
        ema_overwrite_frequency: int | None = None,
        jit_compile: bool | None = None,
        weight_decay: float | None = None,
        weight_decay_exclude: Sequence[str] = (),
        lazy_rows: Sequence[str] = (),
        slot_placement: placement.Placement = placement.LIKE_VARIABLE,
        gradient_accumulation_steps: int | None = None,
        executor: str = "auto",
        lr: Any = None,
        decay: float = 0.0,
    ):
        keywords = {key: value for key, value in locals().items() if key in settings.Options.__annotations__}
        parsed = settings.parse(gradients_clip_option, ema_option, keywords)
        rate = rates.from_arguments(type(self), learning_rate, lr)
        if parsed.lazy_rows and rule is not None and not rule.elementwise:
            raise HyperparameterError(f"lazy_rows: a step of {type(self).__name__} cannot leave single rows out")
        meshes.check(mesh)
        super().__init__()
        self._name = name or type(self).__name__
        self._settings = parsed
        self._rule = rule
        self._state = State(self, self._name, mesh)
        self._not_decayed: set[int] = set()
        self._gathering: set[int] = set()
        self._plan: tuple[tuple[int, int], local.Plan] | None = None
        self._report: tuple[Any, reports.ExecutorReport] | None = None
        self._tokens: dict[Any, tf.Variable] = {}
        self._index_dict: dict[int, int] = {}
        self.built = False
        self._state.new_scalar(slot_layout.ITERATIONS, 0, tf.int64, "iteration")
        self._given_rate: Any = None
        if rate is not None:
            self._learning_rate = rate
        if parsed.steps > 1:
            self._state.new_scalar(slot_layout.ACCUMULATED_STEPS, 0, tf.int64, "accumulated_steps")
        for key, value in (rule.scalars if rule is not None else {}).items():
            self._state.new_scalar(key, value, tf.float64, key)
        if parsed.decay:
            warnings.warn("decay is the old inverse time decay; new code uses a schedule", DeprecationWarning, 3)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Write `**options` out in the signature of a subclass, for people and for tools."""
        super().__init_subclass__(**kwargs)
        cls.__signature__ = settings.full_signature(cls, Optimizer)

    # Attributes.

    @property
    def name(self) -> str:
        return self._name

    @property
    def iterations(self) -> tf.Variable:
        """Number of real steps taken: int64 scalar, on the mesh if there is one. May be set before the first step."""
        return self._state.scalars[slot_layout.ITERATIONS]

    @iterations.setter
    def iterations(self, value: Any) -> None:
        if self.built:
            raise RuntimeError("Cannot set iterations after the optimizer was built; use iterations.assign(...)")
        number = hyperparameters.to_number("iterations", value)
        if number is None or number < 0 or number != int(number):
            raise HyperparameterError(f"iterations must be an integer >= 0, got {value!r}")
        self.iterations.assign(int(number))

    _iterations = iterations

    @property
    def learning_rate(self) -> Any:
        """The constant rate's float64 variable, or what the schedule or callable gives at `iterations`.

        Setting a number assigns the variable; a schedule may be replaced by a schedule or a callable.
        """
        if self._rate is None:
            raise HyperparameterError(f"{type(self).__name__} was made without a learning_rate")
        if schedules.is_schedule(self._rate):
            eager = tf.executing_eagerly()
            return self._rate(tf.constant(self.iterations.numpy()) if eager else self.iterations.read_value())
        return self._rate if isinstance(self._rate, tf.Variable) else self._rate()

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        parsed = rates.parse(value)
        is_number = isinstance(parsed, float)
        if is_number and schedules.is_schedule(self._rate):
            raise TypeError(
                "This optimizer was created with a LearningRateSchedule, which a number cannot replace; set another"
                " schedule, or a callable that returns the number"
            )
        if is_number and isinstance(self._rate, tf.Variable):
            self._rate.assign(parsed)
        else:
            self._learning_rate = parsed

    lr = learning_rate

    @property
    def _rate(self) -> Any:
        """The constant's variable, which moves to the mesh of the model's variables; or what else was given."""
        constant = isinstance(self._given_rate, float)
        return self._state.scalars[slot_layout.LEARNING_RATE] if constant else self._given_rate

    @property
    def _learning_rate(self) -> Any:
        return self._rate

    @_learning_rate.setter
    def _learning_rate(self, parsed: Any) -> None:
        """Keep a parsed rate; subclasses written for Keras 2.9 assign `self._build_learning_rate(...)` here."""
        self._given_rate = float(parsed) if isinstance(parsed, (int, float)) else parsed
        if isinstance(self._given_rate, float):
            self._state.new_scalar(slot_layout.LEARNING_RATE, self._given_rate, tf.float64, "learning_rate")
        else:
            self._state.remove_scalar(slot_layout.LEARNING_RATE)

    def _build_learning_rate(self, value: Any) -> Any:
        return rates.parse(value)

    @property
    def variables(self) -> list[tf.Variable]:
        """All state: iterations, learning rate, other scalars, then slot by slot in build order."""
        return self._state.all_variables()

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        """None of an optimizer's state is trainable."""
        return []

    @property
    def slot_names(self) -> list[str]:
        """Names of the slots that exist; before `build`, those that the algorithm will have."""
        if self._state.slots.names or self._rule is None:
            return self._state.slots.names
        return [slot.name for slot in self._rule.slots]

    def get_slot(self, variable: Any, name: str) -> tf.Variable:
        """The slot `name` of a model variable, shaped like it. Raises UnknownVariableError (a KeyError).

        Where the algorithm keeps that slot for variables of another rank only (Adafactor's row means of a bias), it is
        a scalar zero, as in Keras, and no part of the state.
        """
        tracked = self._state.tracked[variable]
        found = self._state.slots.find(name, tracked)
        if found is None and self.built and name in [slot.name for slot in (self._rule.slots if self._rule else ())]:
            return self._state.placeholder(tracked)
        return found if found is not None else self._state.slots.get(name, tracked)

    @property
    def mesh(self) -> dtensor.Mesh | None:
        """The mesh of the counters: the one given, or the one that all variables share."""
        return self._state.mesh

    def __getattr__(self, name: str) -> Any:
        """Options are readable under the names of their keywords: `optimizer.clipnorm`, `optimizer.use_ema`, ..."""
        if not name.startswith("_") and "_settings" in self.__dict__:
            for holder in (self._settings, self._settings.clip, self._settings.ema):
                if hasattr(holder, name):
                    return getattr(holder, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    # Building.

    def build(self, var_list: Sequence[Any]) -> None:
        """Create the slots of model variables; those of variables known already are left as they are.

        A subclass with slots of its own extends this: `super().build(var_list)`, then
        `add_variable_from_reference` for each variable. May be called again with further variables.

        Raises:
          GradientsError: not a variable. MismatchError: a variable is not on the optimizer's mesh.
        """
        with tf.init_scope(), tf.name_scope(self._state.scope):
            known = set(self._index_dict.values())
            new = [t for t in self._state.track(var_list) if t.index not in known]
            self._build_index_dict([t.given for t in self._state.tracked])
            for slot in self._rule.slots if self._rule is not None else ():
                for tracked in new:
                    self._build_slot(slot, tracked)
            for tracked in new:
                self._build_option_slots(tracked)
        self.built = True

    def _build_slot(self, slot: Slot, tracked: Tracked) -> None:
        dims = self._slot_dims(slot, tracked)
        if dims is not None:
            policy = self._settings.slot_placement
            self._state.new_slot(slot.name, tracked, policy, fill=slot.initial, dims=dims)

    def _slot_dims(self, slot: Slot, tracked: Tracked) -> tuple[int, ...] | None:
        """Dims of its variable that a slot of the rule has; None where this variable has no such slot."""
        return slot_dims(slot.like, tracked.variable.shape.rank)

    def _build_option_slots(self, tracked: Tracked) -> None:
        policy = self._settings.slot_placement
        if self._settings.ema.use_ema:
            self._state.new_slot(slot_layout.AVERAGE, tracked, policy, value=tracked.variable.read_value())
        if self._settings.steps > 1:
            wide = compute_dtype(tracked.variable.dtype)
            self._state.new_slot(slot_layout.ACCUMULATED_GRADIENT, tracked, policy, dtype=wide)

    def _build_once(self, var_list: Sequence[Any]) -> None:
        if not self.built:
            with tf.init_scope(), tf.name_scope(self._state.scope):
                self.build(var_list)
            self.built = True

    def _build_index_dict(self, var_list: Sequence[Any]) -> None:
        """Position of each variable in build order, by `_var_key`, for subclasses written for Keras 2.9."""
        self._index_dict = {self._var_key(variable): i for i, variable in enumerate(var_list)}

    def _var_key(self, variable: Any) -> int:
        return id(unwrap(variable))

    def add_variable(
        self,
        shape: Sequence[int] | None = (),
        dtype: Any = None,
        initializer: Any = "zeros",
        name: str | None = None,
    ) -> tf.Variable:
        """Create a variable of the whole optimizer, replicated on the mesh if there is one.

        Args:
          shape: tuple of ints; a scalar by default.
          dtype: float32 by default.
          initializer: `"zeros"`, `"ones"`, or a callable `(shape, dtype) -> tensor`.
          name: its name, and its key in checkpoints.

        Raises:
          HyperparameterError: an unknown initializer.
        """
        return self._state.new_variable(shape, tf.as_dtype(dtype or tf.float32), initializer, name)

    def add_variable_from_reference(
        self,
        model_variable: Any,
        variable_name: str,
        shape: Sequence[int] | None = None,
        initial_value: Any = None,
    ) -> tf.Variable:
        """Create a slot of a model variable: same dtype, and by default same shape and layout (or `slot_placement`).

        Args:
          model_variable: the variable it belongs to.
          variable_name: the slot's name, `m` for example; the variable is called `m/<name of the model variable>`.
          shape: another shape than the model variable's; then the slot is replicated on its mesh.
          initial_value: number, array or tensor of that shape; zeros by default.
        """
        with tf.init_scope():
            (tracked,) = self._state.track([model_variable])
            return self._state.new_reference(
                variable_name, tracked, self._settings.slot_placement, shape, initial_value
            )

    # Stepping.

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> None:
        """Take one step.

        Args:
          grads_and_vars: (gradient, variable) pairs. A gradient is a tensor of the variable's shape and dtype on its
            mesh, in any layout; or `IndexedSlices`; or None, which leaves that variable as it is. An empty sequence
            does nothing.

        Raises:
          GradientsError (a TypeError): malformed pairs, or a variable twice.
          NoGradientsError (a ValueError): all gradients are None.
          UnknownVariableError (a KeyError): a variable that the optimizer was not built on.
          MismatchError (a ValueError): shape, dtype or mesh of a gradient do not fit its variable.
          HyperparameterError (a ValueError): the learning rate or a callable hyperparameter is out of range now.
          No variable is changed when any of these is raised.
        """
        stepping.apply(self, grads_and_vars)

    def update_step(self, gradient: Any, variable: Any) -> None:
        """Update one variable and its slots by the algorithm alone: no clipping, averaging, or counting of steps.

        Subclasses with an algorithm of their own override this; `gradient` is then dense, clipped, and in the layout of
        `variable`.

        Raises:
          UnsupportedError: the class has no algorithm.
        """
        if self._rule is None:
            raise UnsupportedError(f"{type(self).__name__} must override update_step(gradient, variable)")
        tracked = self._state.tracked[variable]
        eager = tf.executing_eagerly()
        iterations = int(self._state.counter(slot_layout.ITERATIONS).now()) if eager else self.iterations.read_value()
        work = stepping.Preparation(self, iterations).work([tracked], [conform(gradient, tracked)])
        value = portable.rule_value(work, 0, work.gradients[0])
        tracked.variable.assign(placement.relayout(value, tracked.layout))

    def compute_gradients(self, loss: Any, var_list: Any, tape: tf.GradientTape | None = None) -> list[tuple[Any, Any]]:
        """Gradients of `loss`.

        Args:
          loss: a callable without arguments, or a tensor that `tape` recorded.
          var_list: variables, or a callable without arguments that gives them.
          tape: needed where `loss` is a tensor.

        Returns:
          (gradient, variable) pairs; a gradient may be None.

        Raises:
          ValueError: `loss` is a tensor and there is no tape.
        """
        return gradients.compute(loss, var_list, tape)

    def minimize(self, loss: Any, var_list: Any, tape: tf.GradientTape | None = None) -> None:
        """`compute_gradients`, then `apply_gradients`."""
        self.apply_gradients(self.compute_gradients(loss, var_list, tape))

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Overwrite model variables by their moving averages; without `use_ema` there is nothing to do.

        Raises:
          UnsupportedError: no average was ever taken.
        """
        if not self._settings.ema.use_ema:
            return
        if not self.built or int(self._state.counter(slot_layout.ITERATIONS).now()) == 0:
            raise UnsupportedError("no moving average was taken yet: take a step before finalize_variable_values")
        pairs = [(t, self._state.slots.get(slot_layout.AVERAGE, t)) for t in map(self._tracked, var_list)]
        for tracked, average in pairs:
            tracked.variable.assign(placement.relayout(average.read_value(), tracked.layout))

    def exclude_from_weight_decay(
        self, var_list: Sequence[Any] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """Leave variables out of weight decay.

        Args:
          var_list: variables. var_names: regular expressions of variable names, as `weight_decay_exclude`.
        """
        self._not_decayed.update(id(unwrap(v)) for v in var_list or ())
        more = settings.patterns("var_names", list(var_names or ()))
        self._settings = settings.excluding(self._settings, more)

    # Config.

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments as JSON values; `from_config` makes the same optimizer from them."""
        return configs.to_config(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Optimizer:
        """An optimizer with this configuration and no state.

        `config` may also hold live objects: a mesh, a schedule, a callable. It is not changed.

        Raises:
          HyperparameterError: a key that the class does not know, or a value that it refuses.
        """
        return configs.from_config(cls, config)

    # Reports.

    def memory_report(self) -> reports.MemoryReport:
        """Bytes on each local device, of the variables that the optimizer was built on and of their slots."""
        return reports.memory_report([t.variable for t in self._state.tracked], self._state.slots.items())

    def executor_report(self) -> reports.ExecutorReport:
        """Which executor eager steps use, why, and what updates each variable."""
        key = (self._state_key(), library.status())
        if self._report is None or self._report[0] != key:
            self._report = (key, stepping.executor_report(self))
        return self._report[1]

    # What `stepping` asks for.

    @property
    def _uses_rule(self) -> bool:
        """Whether updates are the rule's, and not those of a user's own `update_step`."""
        return self._rule is not None and type(self).update_step.__module__.startswith("optim.")

    def _tracked(self, variable: Any) -> Tracked:
        return self._state.tracked[variable]

    def _state_key(self) -> tuple[int, int]:
        return len(self._state.tracked), len(self._state.slots)

    def _local_plan(self) -> local.Plan:
        key = self._state_key()
        if self._plan is None or self._plan[0] != key:
            self._plan = (key, local.Plan(list(self._state.tracked), self._state.slots))
        return self._plan[1]

    def _mesh_token(self, mesh: dtensor.Mesh) -> tf.Variable:
        if mesh not in self._tokens:
            layout = dtensor.Layout.replicated(mesh, 0)
            self._tokens[mesh] = placement.new_variable(0, tf.int64, "token", layout)
        return self._tokens[mesh]

    def _current_rate(self, iterations: Any) -> Any:
        if self._rate is None:
            return None
        own = self._state.scalars.get(slot_layout.LEARNING_RATE)
        source = self._rate
        if source is own and isinstance(iterations, int):
            source = float(self._state.counter(slot_layout.LEARNING_RATE).peek())
        return rates.evaluate(source, iterations, self._settings.decay)

    def _is_decayed(self, tracked: Tracked) -> bool:
        if id(tracked.variable) in self._not_decayed:
            return False
        return not stepping.matches(self._settings.weight_decay_exclude, tracked)

    def _weight_decay_of(self, tracked: Tracked) -> float | None:
        """Weight decay of a variable that is not excluded from it."""
        return self._settings.weight_decay
