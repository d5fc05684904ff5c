"""`Optimizer`, the base of `optim.legacy.v2` and of optimizers that users wrote for OptimizerV2."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypedDict

import tensorflow as tf

from optim import schedules
from optim.arguments import LearningRate
from optim.errors import HyperparameterError, NoGradientsError
from optim.executors import portable
from optim.legacy import _extension, _gradients, _hypers
from optim.legacy._slots import SlotOptimizer, Slots
from optim.optimizer import Optimizer as ModernOptimizer
from optim.options.option_objects import GradientsClipOption
from optim.state.tracked import plain_name
from optim.step import replicas
from optim.step.gradients import check_pairs
from optim.step.stepping import check_not_tf1

NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")
"""Names that TensorFlow accepts for a scope."""

Transformer = Callable[[list[tuple[Any, Any]]], Sequence[tuple[Any, Any]]]
"""Makes (gradient, variable) pairs from such pairs."""


class Keywords(TypedDict, total=False):
    """`**kwargs` of every optimizer, explained by `Optimizer`."""

    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    clip_order: str
    lr: LearningRate
    decay: float
    gradient_aggregator: Transformer | None
    gradient_transformers: Sequence[Transformer] | None


class Optimizer(SlotOptimizer):
    """Base of all v2 optimizers, with the extension API of OptimizerV2 (TF 2.4 to 2.10, `optimizer_v2.py`).

    A subclass declares its hyperparameters with `_set_hyper`, its slots in `_create_slots` with `add_slot`, and updates
    a variable in `_resource_apply_dense(grad, var, apply_state=None)` and `_resource_apply_sparse(grad, var, indices,
    apply_state=None)`. `_prepare_local` adds to the coefficients in `apply_state`. Subclasses of the built-in classes
    may override any of these, and call `super()`; their steps then use TensorFlow's ops and not the kernel.

    Args:
      name: of the optimizer, and prefix of the names of slots.
      gradient_aggregator: a callable that gets the (gradient, variable) pairs of a replica and returns the pairs for
        its step; None sums gradients over the replicas of a `tf.distribute.Strategy`.
      gradient_transformers: callables, called in turn after that, each with the pairs that the one before returned. Not
        with `clipnorm`, `clipvalue` or `global_clipnorm`.
      clipnorm: each gradient is scaled down to at most this norm. > 0.
      clipvalue: each element of a gradient is clipped to [-clipvalue, clipvalue]. > 0.
      global_clipnorm: all gradients are scaled down together to at most this joint norm. > 0, not with `clipnorm`.
      clip_order: `"value_first"` as in TF 2.4 and later, `"norm_first"` as in TF 2.0 to 2.3, if both limits are set.
      lr: old name of `learning_rate`; if you pass both, `lr` is used, as in OptimizerV2.
      decay: the learning rate is divided by 1 + decay · iterations. >= 0.

    Raises:
      HyperparameterError (a ValueError): out of range, or a malformed name. TypeError: another keyword.
    """

    _HAS_AGGREGATE_GRAD = True
    _use_locking = True
    _slot_names: ClassVar[Mapping[str, str]] = {}
    """Slots by the names of OptimizerV2, with those of `optim`."""
    _per_variable: ClassVar[bool] = False
    """Whether weights are listed variable by variable (Ftrl), and not slot by slot."""

    def __init__(self, name: Any, *, _modern: ModernOptimizer | None = None, **kwargs: Any):
        unknown = sorted(set(kwargs) - set(Keywords.__annotations__))
        if unknown:
            raise TypeError(
                f"{type(self).__name__} got an unexpected keyword argument {unknown[0]!r}; it takes"
                f" {', '.join(Keywords.__annotations__)}"
            )
        options = {key: value for key, value in kwargs.items() if key != "lr"}
        self.gradient_aggregator = options.pop("gradient_aggregator", None) or replicas.summed
        self.gradient_transformers = list(options.pop("gradient_transformers", None) or [])
        self._hyper = _hypers.Hypers(self._new_hyper)
        decay = options.pop("decay", 0.0)
        modern = _modern or ModernOptimizer(checked_name("name", name))
        super().__init__(modern, self._checked_clip(GradientsClipOption(**options)), decay)
        self._slots = Slots(modern, self._slot_names, self._per_variable)

    def _checked_clip(self, clip: GradientsClipOption) -> GradientsClipOption:
        if clip.active and self.gradient_transformers:
            raise HyperparameterError(
                "clipnorm, clipvalue and global_clipnorm cannot be set where gradient_transformers are; clip in one of"
                " the transformers"
            )
        return clip

    @property
    def name(self) -> str:
        """Name of the optimizer."""
        return self._modern.name

    # Gradients.

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """Return the gradients of `loss` with respect to `params`, before clipping, as from TF 2.4 on.

        Args:
          loss: a callable without arguments that returns the loss; or, inside a `tf.function`, a tensor of it.
          params: list of variables.

        Raises:
          NoGradientsError (a ValueError): a gradient is None.
          UnsupportedError (a ValueError): an eager tensor as loss, for which nothing was recorded.
        """
        return _gradients.require_all(_gradients.compute(loss, params))

    def get_updates(self, loss: Any, params: Any) -> list[Any]:
        """Take one step on `loss`, arguments and errors as of `get_gradients`.

        Returns:
          The variables that the step wrote: `iterations`, the slots, `params`. (Graph mode returned an op that would.)
        """
        variables = tf.nest.flatten(params)
        self.apply_gradients(list(zip(self.get_gradients(loss, variables), variables, strict=True)))
        return self._updated(variables)

    def minimize(
        self, loss: Any, var_list: Any, grad_loss: Any = None, name: str | None = None, tape: Any = None
    ) -> Any:
        """Compute gradients of `loss` and apply them.

        Args:
          loss: a callable without arguments that returns the value to minimize; or a tensor, with the tape that
            recorded it, or inside the `tf.function` that computes it.
          var_list: variables, or a callable that returns them, called after `loss`.
          grad_loss: the gradient of `loss`, shaped like it; ones by default.
          name: see `apply_gradients`.
          tape: the `tf.GradientTape` that recorded `loss`; for a callable, a tape to record it.

        Returns, raises: as `apply_gradients`; and UnsupportedError (a ValueError) for an eager tensor without a tape.
        """
        return self.apply_gradients(self._compute_gradients(loss, var_list, grad_loss, tape), name=name)

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        return _gradients.compute(loss, var_list, grad_loss, tape, self._transform_loss, self._get_gradients)

    def _transform_loss(self, loss: Any) -> Any:
        """Return the value that `minimize` differentiates in place of `loss`; subclasses override it."""
        return loss

    def _get_gradients(self, tape: Any, loss: Any, var_list: Any, grad_loss: Any = None) -> list[tuple[Any, Any]]:
        """Differentiate for `minimize`; subclasses override it."""
        return _gradients.differentiate(tape, loss, var_list, grad_loss)

    def _transform_unaggregated_gradients(self, grads_and_vars: Any) -> Any:
        """Transform the pairs of a replica in `apply_gradients` before they are aggregated; subclasses override it."""
        return grads_and_vars

    def _aggregate_gradients(self, grads_and_vars: Any) -> Any:
        """Apply `gradient_aggregator` to the pairs; subclasses may override it."""
        return self.gradient_aggregator(grads_and_vars)

    def _transform_gradients(self, grads_and_vars: Any) -> Any:
        """Clip, then call `gradient_transformers`; subclasses may override it."""
        pairs = list(grads_and_vars)
        clipped = portable.clipped([gradient for gradient, _ in pairs], self._clip)
        pairs = list(zip(clipped, [variable for _, variable in pairs], strict=True))
        for transformer in self.gradient_transformers:
            pairs = list(transformer(pairs))
        return pairs

    # Steps.

    def _apply_pairs(self, pairs: Sequence[tuple[Any, Any]], aggregate: bool = True) -> None:
        self.apply_gradients(pairs, experimental_aggregate_gradients=aggregate)

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(
        self, grads_and_vars: Any, name: str | None = None, experimental_aggregate_gradients: bool = True
    ) -> Any:
        """Take one step; gradients are clipped here, as from TF 2.4 on (before, `minimize` and `fit` did).

        New variables get their slots now. A variable whose gradient is None gets no slots and does not change.

        Args:
          grads_and_vars: (gradient, variable) pairs.
          name: inside a `tf.function` the name of the operation of the result, and always that of the step in traces of
            TensorFlow's profiler; the optimizer's name by default.
          experimental_aggregate_gradients: whether replicas of a `tf.distribute.Strategy` sum up their gradients.

        Returns:
          `iterations` after the step: eagerly, after the updates, the variable; inside a `tf.function` a tensor that
          comes after the updates (graph mode's operation is its `.op`), which the function may return.

        Raises:
          GradientsError (a TypeError): malformed pairs, or a variable twice.
          NoGradientsError (a ValueError): no gradients.
          UnsupportedError (a ValueError): in a TF1 graph, or `IndexedSlices` of a variable with a constraint.
          MismatchError, HyperparameterError: as `optim.Optimizer.apply_gradients`.
          If it raises one of these, no variable changes.
        """
        check_not_tf1()
        if replicas.needed():
            replicas.check("apply_gradients")
        label = self.name if name is None else checked_name("name", name)
        pairs = check_pairs(grads_and_vars)
        if pairs and all(gradient is None for gradient, _ in pairs):
            names = ", ".join(plain_name(variable) for _, variable in pairs[:5])
            raise NoGradientsError(f"No gradients provided for any variable: {names}. Does the loss depend on them?")
        pairs = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        with tf.profiler.experimental.Trace(label):
            if pairs:
                self._apply(pairs, experimental_aggregate_gradients)
        return self.iterations if tf.executing_eagerly() else tf.identity(self.iterations.read_value(), name=label)

    def _apply(self, pairs: list[tuple[Any, Any]], aggregate: bool) -> None:
        if not replicas.needed():  # the slots exist when the hooks are called, as in OptimizerV2
            with tf.init_scope():
                self._create_all_weights([variable for _, variable in pairs])
        if aggregate:
            pairs = self._aggregate_gradients(self._transform_unaggregated_gradients(pairs))
        pairs = list(self._transform_gradients(pairs))
        if replicas.needed():
            replicas.step(
                pairs,
                aggregate=False,
                build=lambda: self._create_all_weights([variable for _, variable in pairs]),
                anchor=self._modern.iterations,
                one=self._step_by,
            )
        else:
            self._step_by(pairs)

    def _step_by(self, pairs: list[tuple[Any, Any]]) -> None:
        if not _extension.is_extended(type(self)):
            self._step(pairs)
            return
        variables = [variable for _, variable in pairs]
        state = self._prepare(variables)
        with _extension.undone_on_error([*variables, *self.weights]):
            _extension.step(self, pairs, state)
            _extension.finish(self._modern, self._rule_hypers)

    def _prepare(self, var_list: Sequence[Any]) -> Any:
        """Return the coefficients of a step by (device, dtype) of the variables, for `apply_state`."""
        state: dict[tuple[str, tf.DType], dict[str, Any]] = {}
        for variable in var_list:
            for device in getattr(variable, "_devices", None) or [variable.device]:
                key = (device, variable.dtype.base_dtype)
                if key not in state:
                    state[key] = {}
                    self._prepare_local(*key, state)
        return state

    def _prepare_local(self, var_device: str, var_dtype: Any, apply_state: Any) -> None:
        """Put the coefficients of one device and dtype into `apply_state`; subclasses extend it."""
        if self._modern._learning_rate is not None:
            apply_state[(var_device, var_dtype)]["lr_t"] = tf.identity(self._decayed_lr(var_dtype))

    def _fallback_apply_state(self, var_device: str, var_dtype: Any) -> Any:
        """Return the coefficients of one device and dtype, if the caller passed no `apply_state`."""
        state: Any = {(var_device, var_dtype): {}}
        self._prepare_local(var_device, var_dtype, state)
        return state[(var_device, var_dtype)]

    def _rule_hypers(self, apply_state: Any = None, variable: Any = None) -> dict[str, Any]:
        """Return the hyperparameters that the rule of a built-in class reads, with the learning rate of
        `apply_state`."""
        dtype = tf.float32 if variable is None else variable.dtype.base_dtype
        values = None if variable is None else (apply_state or {}).get((variable.device, dtype))
        rate = values["lr_t"] if values else self._decayed_lr(dtype)
        names = _hypers.declared(type(self))
        return {**{name: self._get_hyper(name, tf.float64) for name in names}, "learning_rate": rate}

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        """Update a variable and its slots; a subclass has its own method, or extends that of a built-in class."""
        _extension.apply_dense(self._modern, self._rule_hypers(apply_state, var), grad, var)

    def _resource_apply_sparse_duplicate_indices(self, grad: Any, var: Any, indices: Any, **kwargs: Any) -> Any:
        """Apply slices whose indices may repeat: sum slices of the same row, then call `_resource_apply_sparse`."""
        values, unique = _extension.summed(grad, indices)
        return self._resource_apply_sparse(values, var, unique, **kwargs)

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any, apply_state: Any = None) -> Any:
        """Update rows of a variable and of its slots. grad: (n, ...), the slices. indices: (n,), each row once."""
        slices = tf.IndexedSlices(grad, indices)
        _extension.apply_sparse(self._modern, self._rule_hypers(apply_state, var), slices, var, self._kept_rows)

    def _resource_scatter_add(self, x: Any, i: Any, v: Any) -> Any:
        """Add slices to rows of a variable; return it as a tensor."""
        return x.scatter_add(tf.IndexedSlices(v, i)).read_value()

    def _resource_scatter_update(self, x: Any, i: Any, v: Any) -> Any:
        """Replace rows of a variable by slices; return it as a tensor."""
        return x.scatter_update(tf.IndexedSlices(v, i)).read_value()

    # Config.

    def get_config(self) -> dict[str, Any]:
        """Return the name and the clipping of gradients; a subclass adds its hyperparameters."""
        clips = ("clipnorm", "clipvalue", "global_clipnorm")
        config = {name: getattr(self, name) for name in clips if getattr(self, name) is not None}
        if self._clip.clip_order != "value_first":
            config["clip_order"] = self._clip.clip_order
        return {"name": self.name, **config}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Any:
        """Return an optimizer with this configuration and no state; `config` is not changed.

        Args:
          config: the result of `get_config`; `lr` is `learning_rate`.
          custom_objects: by name: the class of a custom learning-rate schedule, or the object (a function, for example)
            for a hyperparameter whose value in the config is that name.
        """
        arguments = dict(config)
        custom = custom_objects or {}
        if "lr" in arguments:
            arguments["learning_rate"] = arguments.pop("lr")
        rate = arguments.get("learning_rate")
        if isinstance(rate, Mapping):
            known = custom.get(str(rate.get("class_name")))
            arguments["learning_rate"] = (
                known.from_config(dict(rate["config"])) if known else schedules.from_config(rate)
            )
        for key, value in arguments.items():
            if key != "name" and isinstance(value, str) and value in custom:
                arguments[key] = custom[value]
        return cls(**arguments)


def checked_name(argument: str, name: Any) -> str:
    if isinstance(name, str) and NAME.fullmatch(name):
        return name
    raise HyperparameterError(f"{argument} must be a non-empty string that can name a scope, got {name!r}")
