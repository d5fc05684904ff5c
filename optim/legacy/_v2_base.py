"""`Optimizer`, the base of `optim.legacy.v2`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypedDict

import tensorflow as tf

from optim.errors import HyperparameterError, NoGradientsError, UnsupportedError
from optim.legacy import _gradients, _weights
from optim.legacy._base import LegacyOptimizer
from optim.optimizer import Optimizer as ModernOptimizer
from optim.options import GradientsClipOption
from optim.variables import check_pairs, plain_name

NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")
"""What TensorFlow takes as the name of a scope."""


class Keywords(TypedDict, total=False):
    """`**kwargs` of every optimizer, explained by `Optimizer`."""

    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    clip_order: str
    lr: Any
    decay: float


class Optimizer(LegacyOptimizer):
    """Base of all v2 optimizers; use a subclass.

    Args (of every subclass, as `**kwargs`):
      clipnorm: each gradient is scaled down to at most this norm. > 0.
      clipvalue: each element of a gradient is clipped to [-clipvalue, clipvalue]. > 0.
      global_clipnorm: all gradients are scaled down together to at most this joint norm. > 0, not with `clipnorm`.
      clip_order: `"value_first"` as TF 2.4 and later, `"norm_first"` as TF 2.0 to 2.3, where value meets norm.
      lr: old name of `learning_rate`; given both, `lr` counts, as in OptimizerV2.
      decay: the learning rate is divided by 1 + decay · iterations. >= 0.

    Raises:
      HyperparameterError (a ValueError): out of range, or a malformed name. TypeError: another keyword.
    """

    _slot_names: ClassVar[Mapping[str, str]] = {}
    """Slots by the names of OptimizerV2, with those of `optim`."""
    _per_variable: ClassVar[bool] = False
    """Whether weights go variable by variable (Ftrl), and not slot by slot."""
    _config_keys: ClassVar[tuple[str, ...]] = ()
    _shorter_list: ClassVar[bool] = False
    """Whether a list without iterations, as the v1 optimizer of that name has it, is understood."""

    def __init__(
        self, kind: type[ModernOptimizer], name: Any, learning_rate: Any, keywords: Keywords, **arguments: Any
    ):
        unknown = sorted(set(keywords) - set(Keywords.__annotations__))
        if unknown:
            raise TypeError(
                f"{type(self).__name__} got an unexpected keyword argument {unknown[0]!r}; it takes"
                f" {', '.join(Keywords.__annotations__)}"
            )
        given = dict(keywords)
        rate = self._pick_rate(learning_rate, given.pop("lr", None))
        decay = given.pop("decay", 0.0)
        made = kind(learning_rate=rate, name=_checked("name", name), **arguments)
        super().__init__(made, GradientsClipOption(**given), decay)  # type: ignore[arg-type]
        self._order: list[tuple[str, int]] = []
        self._added: list[str] = []

    def _pick_rate(self, rate: Any, lr: Any) -> Any:
        if lr is None:
            return rate
        warnings.warn("lr is the old name of learning_rate, which it overrides here", DeprecationWarning, 4)
        return lr

    @property
    def name(self) -> str:
        return self._optimizer.name

    # Steps.

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """Gradients of `loss` with respect to `params`, before clipping, as from TF 2.4 on.

        Args:
          loss: a callable without arguments that gives the loss; or, inside a `tf.function`, a tensor of it.
          params: list of variables.

        Raises:
          NoGradientsError (a ValueError): a gradient is None.
          UnsupportedError (a ValueError): an eager tensor as loss, of which nothing is recorded.
        """
        return _gradients.require_all(_gradients.compute(loss, params))

    def get_updates(self, loss: Any, params: Any) -> list[Any]:
        """Take one step on `loss`, arguments and errors as of `get_gradients`.

        Returns:
          The variables that the step wrote: `iterations`, the slots, `params`. (Graph mode gave an op that would.)
        """
        variables = tf.nest.flatten(params)
        self.apply_gradients(list(zip(self.get_gradients(loss, variables), variables, strict=True)))
        return self._updated(variables)

    def minimize(self, loss: Any, var_list: Any, grad_loss: Any = None, name: str | None = None) -> Any:
        """Compute gradients of `loss` and apply them.

        Args:
          loss: a callable without arguments that gives the value to minimize; or, inside a `tf.function`, a tensor.
          var_list: variables, or a callable that gives them, asked after `loss` was called.
          grad_loss: what the gradient of `loss` is taken to be, shaped like it; ones by default.
          name: see `apply_gradients`.

        Returns, raises: as `apply_gradients`; and UnsupportedError (a ValueError) for an eager tensor as loss.
        """
        return self.apply_gradients(_gradients.compute(loss, var_list, grad_loss), name=name)

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(
        self, grads_and_vars: Any, name: str | None = None, experimental_aggregate_gradients: bool = True
    ) -> Any:
        """Take one step; gradients are clipped here, as from TF 2.4 on (before, `minimize` and `fit` did).

        Variables that are new get their slots now; one whose gradient is None gets none and stays as it is.

        Args:
          grads_and_vars: (gradient, variable) pairs.
          name: inside a `tf.function` the name of the operation behind the result, and always that of the step in
            traces of TensorFlow's profiler; the optimizer's name by default.
          experimental_aggregate_gradients: whether replicas of a `tf.distribute.Strategy` sum up their gradients.
            Without a strategy there is nothing to sum, and both values mean the same; under one it raises, since a
            mesh of DTensors takes its place here.

        Returns:
          `iterations` after the step: eagerly, where the updates are done, the variable; inside a `tf.function` a
          tensor that comes after the updates (graph mode's operation is its `.op`), which the function may return.

        Raises:
          GradientsError (a TypeError): malformed pairs, or a variable twice.
          NoGradientsError (a ValueError): no gradients.
          UnsupportedError (a ValueError): under a `tf.distribute.Strategy`, or `IndexedSlices` of a variable with a
            constraint. MismatchError, HyperparameterError: as `optim.Optimizer.apply_gradients`.
          No variable is changed when any of these is raised.
        """
        if tf.distribute.has_strategy():
            raise UnsupportedError(
                f"experimental_aggregate_gradients={experimental_aggregate_gradients}: gradients of replicas of a"
                " tf.distribute.Strategy are not aggregated here; put the variables on a DTensor mesh instead"
            )
        label = self.name if name is None else _checked("name", name)
        pairs = check_pairs(grads_and_vars)
        if pairs and all(gradient is None for gradient, _ in pairs):
            names = ", ".join(plain_name(variable) for _, variable in pairs[:5])
            raise NoGradientsError(f"No gradients provided for any variable: {names}. Does the loss depend on them?")
        pairs = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        with tf.profiler.experimental.Trace(label):
            if pairs:
                self._create_all_weights([variable for _, variable in pairs])
                clipped = _gradients.clipped([gradient for gradient, _ in pairs], self._clip)
                self._step(list(zip(clipped, [variable for _, variable in pairs], strict=True)))
        return self.iterations if tf.executing_eagerly() else tf.identity(self.iterations.read_value(), name=label)

    # Slots and weights.

    def _create_all_weights(self, var_list: Sequence[Any]) -> None:
        """Make the slots of variables that have none; they come after those that there are, in the order given."""
        state = self._optimizer._state
        known = len(state.tracked)
        super()._create_all_weights(var_list)
        self._iterations_exist = True
        new, slots = range(known, len(state.tracked)), list(self._slot_names.values())
        order = [(s, i) for i in new for s in slots] if self._per_variable else [(s, i) for s in slots for i in new]
        self._order += [(s, i) for s, i in order if state.slots.find(s, state.tracked.at(i)) is not None]

    def __dir__(self) -> list[str]:
        # TensorFlow's checkpoints look for get_slot_names in dir(), and would try to save each slot a second time.
        return [name for name in super().__dir__() if name != "get_slot_names"]

    def get_slot_names(self) -> list[str]:
        """Names of the slots: those of the algorithm, then those that were added."""
        rule = self._optimizer._rule
        assert rule is not None
        used = [slot.name for slot in rule.slots]
        return [old for old, new in self._slot_names.items() if new in used] + self._added

    def get_slot(self, var: Any, slot_name: str) -> tf.Variable:
        """One slot of a variable. Raises UnknownVariableError (a KeyError)."""
        state = self._optimizer._state
        return state.slots.get(self._inner_name(slot_name), state.tracked[var])

    def _inner_name(self, slot_name: str) -> str:
        return self._slot_names.get(slot_name) or f"added_{slot_name}"

    def add_slot(self, var: Any, slot_name: str, initializer: Any = "zeros", shape: Any = None) -> tf.Variable:
        """Add a slot to a variable, and to the end of `weights`; one that is there already is returned as it is.

        Args:
          var: a variable; it gets the algorithm's slots, too.
          slot_name: name of the slot; one of the algorithm's is filled by `initializer` if `var` is new.
          initializer: `"zeros"`, `"ones"`, a callable `(shape, dtype=...) -> tensor`, or the initial value itself.
          shape: another shape than that of `var`; the slot is then replicated on its mesh.

        Raises:
          HyperparameterError: an unknown initializer. UnsupportedError: another shape for a slot of the algorithm.
        """
        state = self._optimizer._state
        is_new = var not in state.tracked
        self._create_all_weights([var])
        item, inner = state.tracked[var], self._inner_name(slot_name)
        found = state.slots.find(inner, item)
        dims = item.variable.shape.as_list() if shape is None else tf.TensorShape(shape).as_list()
        if found is None:
            value = _initial(initializer, dims, item.variable.dtype)
            found = self._optimizer.add_variable_from_reference(var, inner, dims, value)
            self._added += [slot_name] if slot_name not in self._added else []
            self._order.append((inner, item.index))
        elif found.shape.as_list() != dims:
            raise UnsupportedError(f"slot {slot_name!r} of {item} has shape {found.shape}, it cannot have {dims}")
        elif is_new:
            with tf.init_scope():
                value = tf.convert_to_tensor(_initial(initializer, dims, found.dtype), found.dtype)
                _weights.write([found], [tf.broadcast_to(value, dims).numpy()], self.name)
        return found

    def add_weight(
        self,
        name: str,
        shape: Any,
        dtype: Any = None,
        initializer: Any = "zeros",
        trainable: bool | None = None,
        synchronization: Any = tf.VariableSynchronization.AUTO,
        aggregation: Any = tf.VariableAggregation.NONE,
    ) -> tf.Variable:
        """Create a variable of the whole optimizer, replicated on the mesh if there is one; it is not in `weights`.

        Args:
          name: its name, and its key in checkpoints. shape: sequence of ints. dtype: float32 by default.
          initializer: as of `add_slot`.
          trainable, synchronization, aggregation: other than the defaults these raise: an optimizer's weights are not
            trained here, and replicas of a `tf.distribute.Strategy` do not exist.
        """
        plain = synchronization == tf.VariableSynchronization.AUTO and aggregation == tf.VariableAggregation.NONE
        if trainable or not plain:
            raise UnsupportedError(
                f"weight {name!r}: trainable, synchronization and aggregation have no effect here (no part of an"
                " optimizer is trained, a DTensor has one value on all devices); leave them out"
            )
        kind = tf.as_dtype(dtype or tf.float32)
        dims = tf.TensorShape(shape).as_list()
        value = tf.broadcast_to(tf.convert_to_tensor(_initial(initializer, dims, kind), kind), dims)
        return self._optimizer.add_variable(dims, kind, lambda shape, dtype: value, name)

    @property
    def weights(self) -> list[tf.Variable]:
        """State in the order of its creation: iterations (Nadam: and momentum_cache), then slot by slot."""
        state = self._optimizer._state
        rule = self._optimizer._rule
        assert rule is not None
        scalars = [state.scalars[name] for name in rule.scalars] if self._optimizer.built else []
        slots = [state.slots.get(slot, state.tracked.at(index)) for slot, index in self._order]
        return [*([self._optimizer.iterations] if self._iterations_exist else []), *scalars, *slots]

    def variables(self) -> list[tf.Variable]:
        """The same as `weights`."""
        return self.weights

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set the values of `weights`, in its order.

        RMSprop, Adagrad and Adadelta take the list of their v1 namesake, too, which lacks iterations, and set them to
        0, as OptimizerV2 did; Adam takes its namesake's placeholders of vhat.

        Raises:
          MismatchError (a ValueError): number or shapes of the arrays do not fit. Then nothing was set.
        """
        given = list(weights)
        if self._shorter_list and len(self.weights) == len(given) + 1:
            given = [0, *given]
        _weights.write(self.weights, given, self.name)

    # Config.

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments as JSON values."""
        known = self._optimizer.get_config()
        clips = ("clipnorm", "clipvalue", "global_clipnorm")
        config = {name: getattr(self, name) for name in clips if getattr(self, name) is not None}
        if self._clip.clip_order != "value_first":
            config["clip_order"] = self._clip.clip_order
        own = {key: known[key] for key in self._config_keys}
        return {"name": self.name, "learning_rate": known["learning_rate"], "decay": self.decay, **own, **config}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Optimizer:
        """An optimizer with this configuration and no state; `config` is not changed.

        Args:
          config: what `get_config` gave; `lr` is `learning_rate`.
          custom_objects: by name: the class of a learning-rate schedule that is not a stock one, or what stands for a
            hyperparameter that is given by that name (a function, for example).
        """
        arguments = dict(config)
        custom = custom_objects or {}
        if "lr" in arguments:
            arguments["learning_rate"] = arguments.pop("lr")
        rate = arguments.get("learning_rate")
        if isinstance(rate, Mapping) and rate.get("class_name") in custom:
            arguments["learning_rate"] = custom[rate["class_name"]].from_config(dict(rate["config"]))
        for key, value in arguments.items():
            if key != "name" and isinstance(value, str) and value in custom:
                arguments[key] = custom[value]
        return cls(**arguments)


def _checked(argument: str, name: Any) -> str:
    if isinstance(name, str) and NAME.fullmatch(name):
        return name
    raise HyperparameterError(f"{argument} must be a non-empty string that can name a scope, got {name!r}")


def _initial(initializer: Any, dims: Sequence[int], dtype: Any) -> Any:
    """What an `initializer` argument says."""
    if isinstance(initializer, str):
        known = {"zeros": tf.zeros, "ones": tf.ones}
        if initializer.lower() not in known:
            raise HyperparameterError(f"initializer must be a callable, a value or one of {list(known)}")
        return known[initializer.lower()](dims, dtype)
    return initializer(dims, dtype=dtype) if callable(initializer) else initializer
