"""`Optimizer`: the API that Keras 2.9 documented for DTensor optimizers, on any layout or none.

The class itself keeps state and names things; the maths of an algorithm is in `optim/rules`, the order of a step in
`optim/stepping.py`, the ways to run it in `optim/executors`, and each option in the module of its name.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim import (
    averaging,
    building,
    configs,
    execution,
    gradients,
    hyperparameters,
    loss_scaling,
    master_copies,
    meshes,
    multipliers,
    placement,
    reports,
    settings,
    slot_layout,
    stepping,
)
from optim import learning_rate as rates
from optim.errors import HyperparameterError, UnsupportedError
from optim.rule import Rule, Slot, slot_dims
from optim.state import State
from optim.variables import Tracked, check_patterns, unwrap


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
      learning_rate_multipliers: maps regular expressions to factors >= 0. In a variable whose name one of them matches
        (`re.search`), the learning rate counts that many times wherever it enters, weight decay included. With 0 the
        slots move and the variable stays. Patterns with different factors that match one variable are an error.
      lazy_rows: regular expressions; in a variable whose name one of them matches, rows (index along dim 0) whose
        gradient is all zero keep their values and slots, as OptimizerV2 and tf.train treat the rows that a sparse
        gradient leaves out under momentum and Adadelta. Steps are then portable.
      slot_placement: `"like_variable"`, `"zero1"` (slots are sharded further, over the mesh axes on which the variable
        is replicated), or a callable `(variable, slot_name) -> Layout`.
      gradient_accumulation_steps: the mean of this many gradients makes one step: clipping, decay, schedules and
        `iterations` go by real steps. >= 1.
      loss_scale: gradients are those of a loss times this (`scale_loss`; `minimize` does it) and are divided by it; a
        step on which one of them is not finite is left out, `iterations` included. > 0, or `"dynamic"`: 2¹⁵ at first,
        halved (to no less than 1) where a gradient is not finite, doubled after `loss_scale_growth_steps` (2000) finite
        steps in a row.
      master_copies: keep float32 copies of float16 and bfloat16 variables in a slot `master`, with float32 slots and
        averages. Steps act on the copies; the variables are their roundings.
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
        learning_rate_multipliers: Mapping[str, float] | None = None,
        lazy_rows: Sequence[str] = (),
        slot_placement: placement.Placement = placement.LIKE_VARIABLE,
        gradient_accumulation_steps: int | None = None,
        loss_scale: float | str | None = None,
        loss_scale_growth_steps: int | None = None,
        master_copies: bool = False,
        executor: str = "auto",
        lr: Any = None,
        decay: float = 0.0,
    ):
        keywords = {key: value for key, value in locals().items() if key in settings.Options.__annotations__}
        parsed = settings.parse(gradients_clip_option, ema_option, keywords)
        rate = rates.from_arguments(type(self), learning_rate, lr)
        settings.check_rule(parsed, rule if _uses_rule(type(self), rule) else None, type(self).__name__)
        meshes.check(mesh)
        super().__init__()
        self._name = name or type(self).__name__
        self._settings = parsed
        self._rule = rule
        self._state = State(self, self._name, mesh)
        self._not_decayed: set[int] = set()
        self._rate_factors: dict[int, float] = {}
        self._has_averages_in = False
        self._gathering: set[int] = set()
        self._warned_of: set[frozenset[int]] = set()
        self._execution = execution.Execution(self)
        self._index_dict: dict[int, int] = {}
        self.built = False
        self._state.new_scalar(slot_layout.ITERATIONS, 0, tf.int64, "iteration")
        self._given_rate: Any = None
        if rate is not None:
            self._learning_rate = rate
        if parsed.steps > 1:
            self._state.new_scalar(slot_layout.ACCUMULATED_STEPS, 0, tf.int64, "accumulated_steps")
        loss_scaling.add_state(self._state, parsed)
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
        return rates.read(self)

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        rates.replace(self, value)

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
          HyperparameterError: `learning_rate_multipliers` is ambiguous for a variable.
        """
        averaging.check_not_swapped(self, "build")
        with tf.init_scope(), tf.name_scope(self._state.scope):
            known = set(self._index_dict.values())
            new = [t for t in self._state.track(var_list) if t.index not in known]
            factors = self._settings.learning_rate_multipliers
            self._rate_factors.update({t.index: multipliers.factor_of(factors, t) for t in new})
            self._build_index_dict([t.given for t in self._state.tracked])
            building.add_slots(self, new)
        self.built = True

    def _slot_dims(self, slot: Slot, tracked: Tracked) -> tuple[int, ...] | None:
        """Dims of its variable that a slot of the rule has; None where this variable has no such slot."""
        return slot_dims(slot.like, tracked.variable.shape.rank)

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
          grads_and_vars: (gradient, variable) pairs. A gradient is a floating tensor of the variable's shape on its
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
        stepping.update_one(self, gradient, variable)

    def compute_gradients(self, loss: Any, var_list: Any, tape: tf.GradientTape | None = None) -> list[tuple[Any, Any]]:
        """Gradients of `loss`, times the scale under `loss_scale`, for `apply_gradients` divides by it.

        Args:
          loss: a callable without arguments, or a tensor that `tape` recorded; not scaled.
          var_list: variables, or a callable without arguments that gives them.
          tape: needed where `loss` is a tensor.

        Returns:
          (gradient, variable) pairs; a gradient may be None.

        Raises:
          ValueError: `loss` is a tensor and there is no tape.
        """
        scale = None if self._settings.loss_scale is None else self._seed
        return gradients.compute(loss, var_list, tape, scale)

    def _seed(self, loss: Any, var_list: Sequence[Any]) -> Any:
        self._build_once(var_list)
        return loss_scaling.factor_for(self, loss)

    def scale_loss(self, loss: Any) -> Any:
        """`loss` times the scale under `loss_scale`, else as it is: what a tape of your own is to differentiate.

        Raises:
          HyperparameterError: the dtype of the loss does not hold a constant scale.
          UnsupportedError: in a `tf.function`, before `build`, with a dynamic scale and without `mesh=`.
        """
        return loss_scaling.scaled(self, loss)

    @property
    def current_loss_scale(self) -> Any:
        """The scale now: a float, in a `tf.function` a float32 tensor if it is dynamic, None without `loss_scale`."""
        return loss_scaling.now(self)

    def minimize(self, loss: Any, var_list: Any, tape: tf.GradientTape | None = None) -> None:
        """`compute_gradients`, then `apply_gradients`."""
        self.apply_gradients(self.compute_gradients(loss, var_list, tape))

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Overwrite model variables by their moving averages; without `use_ema` there is nothing to do.

        Raises:
          UnsupportedError: no average was ever taken.
        """
        averaging.finalize(self, var_list)

    def swap_averages(self) -> None:
        """Exchange all variables and their moving averages, bit for bit; the next call brings each back.

        In between there are no steps: `apply_gradients`, `build`, `finalize_variable_values` and `save_checkpoint`
        raise.

        Raises:
          UnsupportedError: no `use_ema`, no average taken yet, or inside a `tf.function`.
        """
        averaging.swap(self)

    def averages_swapped(self) -> AbstractContextManager[None]:
        """`with optimizer.averages_swapped(): evaluate()`: `swap_averages` before and after.

        Raises, when it is entered:
          UnsupportedError: as `swap_averages`, or the averages are in the variables already.
        """
        return averaging.swapped(self)

    def refresh_master_copies(self, var_list: Sequence[Any] | None = None) -> None:
        """Take the copies of `master_copies` from variables (None: all) that were assigned to from outside.

        Raises:
          UnsupportedError: there are no copies.
        """
        if not self._settings.master_copies:
            raise UnsupportedError("there are no master copies; make the optimizer with master_copies=True")
        master_copies.refresh(self, var_list)

    def exclude_from_weight_decay(
        self, var_list: Sequence[Any] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """Leave variables out of weight decay.

        Args:
          var_list: variables. var_names: regular expressions of variable names, as `weight_decay_exclude`.
        """
        self._not_decayed.update(id(unwrap(v)) for v in var_list or ())
        more = check_patterns("var_names", list(var_names or ()))
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
        return self._execution.report()

    # What `stepping` asks for.

    @property
    def _uses_rule(self) -> bool:
        """Whether updates are the rule's, and not those of a user's own `update_step`."""
        return _uses_rule(type(self), self._rule)

    def _tracked(self, variable: Any) -> Tracked:
        return self._state.tracked[variable]

    def _weight_decay_of(self, tracked: Tracked) -> float | None:
        """Weight decay of a variable that is not excluded from it."""
        return self._settings.weight_decay


def _uses_rule(cls: type[Optimizer], rule: Rule | None) -> bool:
    return rule is not None and cls.update_step.__module__.startswith("optim.")
