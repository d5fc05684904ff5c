"""`Optimizer`: the API that Keras 2.9 documented for DTensor optimizers, with any layout or without one.

The class is a facade: it makes the parts and delegates to them. Algorithms are in `optim/rules`, options in
`optim/options`, the order of a step in `optim/step`, the ways to run it in `optim/executors`, state in `optim/state`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim import algorithm, configs
from optim.arguments import LearningRate
from optim.hyperparameters import Values
from optim.options import rate, settings
from optim.options.averages import Averages
from optim.options.loss_scale import LossScale
from optim.options.master_copies import MasterCopies
from optim.options.option_objects import EMAOption, GradientsClipOption
from optim.options.rate import Rate
from optim.options.weight_decay import WeightDecay
from optim.rule import Rule, hyperparameters
from optim.state import copies, object_graph
from optim.state.state import State
from optim.state.tracked import unwrap
from optim.step import reports
from optim.step.building import Builder, begin
from optim.step.execution import Execution
from optim.step.stepping import Stepper, check_not_tf1, not_converted

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _of(part: str, method: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[Any, _P], _R]:
    """Return a method of the optimizer that calls a method of its attribute `part`."""
    find = attrgetter(part)

    @wraps(method)
    def passed_on(self: Any, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return method(find(self), *args, **kwargs)

    return passed_on


class Optimizer(tf.Module):
    __doc__ = f"""Base of all optimizers; subclass it with `build` and `update_step` for a custom algorithm.

    `copy.deepcopy` and `pickle` copy an optimizer, its state and its variables, if they are on no mesh. Several
    threads may step one optimizer eagerly, one after the other.

    Args:
      name: prefix of the names of slot variables.
      gradients_clip_option, ema_option: `GradientsClipOption`, `EMAOption`, or mappings with their fields.
      mesh: the DTensor mesh of all variables. None finds it from them; they may be on several, or on no mesh.
      learning_rate: number >= 0, scalar tensor, schedule of Keras 3, tf_keras or `optim.schedules`, or callable.
      rule: the algorithm, with its hyperparameters at their defaults; None if a subclass has its own `update_step`.
        No config contains a rule: to save or copy such an optimizer, make a class of it with `RuleOptimizer`.
{settings.documentation()}

    Each option is also an attribute; setting it takes effect at the next step, or raises UnsupportedError.

    Raises:
      HyperparameterError (a ValueError): out of range, contradictory, or not a number.
      UnsupportedError: inside a TF1 graph.
    """

    _self_setattr_tracking = False  # TensorFlow's switch: state is tracked under chosen names, in State

    def __init__(
        self,
        name: str | None = None,
        gradients_clip_option: GradientsClipOption | Mapping[str, Any] | None = None,
        ema_option: EMAOption | Mapping[str, Any] | None = None,
        mesh: dtensor.Mesh | None = None,
        *,
        learning_rate: LearningRate | None = None,
        rule: Rule | None = None,
        **options: Unpack[settings.Options],
    ):
        super().__init__()
        self._state = self._begin(name or type(self).__name__, mesh)
        self._hyper = self.__dict__.get("_hyper") or Values({} if rule is None else hyperparameters(type(rule)), {})
        part = algorithm.of(self, rule, self._hyper.current, Optimizer)
        kw = {"gradients_clip_option": gradients_clip_option, "ema_option": ema_option, "learning_rate": learning_rate}
        self._settings = settings.Settings(options, kw, part, self._state, self.__dict__.pop("_explicit", None))
        self._algorithm = self._settings.algorithm()
        self._builder = Builder(self._algorithm, self._state, self._settings)
        self._stepper = Stepper(self._algorithm, self._state, self._settings, self.build)

    __signature__ = settings.with_options(inspect.signature(__init__))
    _written_out = staticmethod(settings.with_options)
    _begin = begin

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Write `**options` out in the signature of a subclass, for readers and for tools."""
        super().__init_subclass__(**kwargs)
        cls.__signature__ = cls._written_out(inspect.signature(cls.__init__))

    def __repr__(self) -> str:
        return reports.summary(self, reports.steps_of(self._state), len(self._state.tracked))

    # Numbers of the whole optimizer.

    iterations = _iterations = property(_of("_state", State.get_iterations), _of("_state", State.set_iterations))
    learning_rate = lr = property(_of("_settings.rate", Rate.read), _of("_settings.rate", Rate.replace))
    _learning_rate = property(attrgetter("_settings.rate.source"), _of("_settings.rate", Rate.keep))
    """The rate's variable, schedule or callable, and a function that makes one: for subclasses for Keras 2.9."""
    _build_learning_rate = staticmethod(rate.parse)
    current_loss_scale = property(_of("_settings.loss_scale", LossScale.now))
    loss_scale_factor = property(_of("_settings.loss_scale", LossScale.constant), _of("_settings", settings.set_scale))
    stop_loss_scaling = _of("_settings.loss_scale", LossScale.stop_loss_scaling)

    # Variables.

    variables = property(_of("_state", State.all_variables))
    trainable_variables = property(lambda self: [], doc="None: what an optimizer keeps is not trained.")
    mesh = property(attrgetter("_state.mesh"), doc="The mesh of the counters: the one given, or that of all variables.")
    built = property(attrgetter("_state.built"), _of("_state", State.set_built), doc="Whether `build` was called.")
    _rule = property(attrgetter("_algorithm.rule"))
    slot_names = property(_of("_builder", Builder.slot_names))
    get_slot = _of("_builder", Builder.get_slot)
    add_variable = _of("_state", State.add_variable)
    add_variable_from_reference = _of("_builder", Builder.add_variable_from_reference)
    get_weights = _of("_state", State.get_weights)
    set_weights = _of("_state", State.set_weights)
    save_own_variables = _of("_state", State.save_own_variables)
    load_own_variables = _of("_state", State.load_own_variables)

    def build(self, var_list: Sequence[Any]) -> None:
        """Create the slots of model variables; those of known variables stay unchanged.

        A subclass with its own slots extends this: `super().build(var_list)`, then `add_variable_from_reference` for
        each variable. May be called again with further variables.

        Raises:
          GradientsError: not a variable. MismatchError: a variable is not on the optimizer's mesh.
          HyperparameterError: `learning_rate_multipliers` is ambiguous for a variable.
        """
        check_not_tf1()
        self._builder.build(var_list)
        self._stepper.variables_added()

    @property
    def _index_dict(self) -> dict[int, int]:
        """Position of each variable in build order, by `_var_key`, for subclasses written for Keras 2.9."""
        return {id(item.variable): item.index for item in self._state.tracked}

    def _build_index_dict(self, var_list: Sequence[Any]) -> None:
        self._state.track(var_list)

    _var_key = staticmethod(lambda variable: id(unwrap(variable)))

    # Steps.

    @not_converted
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
    ) -> None:
        """Take one step. If it raises, or you press Ctrl-C, no variable changes.

        Args:
          grads_and_vars: (gradient, variable) pairs. A gradient is a floating tensor of the variable's shape on its
            mesh, in any layout; or `IndexedSlices`; or None, which leaves that variable unchanged. Empty: no step.
          name: ignored; accepted because Keras accepts it.
          skip_gradients_aggregation: True uses gradients unchanged. The default sums them over the replicas of a
            `tf.distribute.Strategy`. experimental_aggregate_gradients: the opposite, of OptimizerV2.

        Raises:
          GradientsError (a TypeError): malformed pairs, or a variable twice.
          NoGradientsError (a ValueError): all gradients are None.
          UnknownVariableError (a KeyError): a variable that the optimizer was not built on.
          MismatchError (a ValueError): shape, dtype or mesh of a gradient do not fit its variable.
          HyperparameterError (a ValueError): the learning rate or a callable hyperparameter is out of range now.
        """
        self._stepper.apply(grads_and_vars, experimental_aggregate_gradients and not skip_gradients_aggregation)

    @not_converted
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Call `apply_gradients` like Keras 3: without `trainable_variables`, gradients are in build order."""
        variables = self._state.tracked.in_build_order(grads) if trainable_variables is None else trainable_variables
        self.apply_gradients(list(zip(grads, variables, strict=True)))

    def minimize(self, loss: Any, var_list: Any, tape: tf.GradientTape | None = None) -> None:
        """Call `compute_gradients`, then `apply_gradients`."""
        self.apply_gradients(self.compute_gradients(loss, var_list, tape))

    compute_gradients = _of("_stepper", Stepper.compute_gradients)
    update_step = _of("_stepper", Stepper.update_step)
    _clip_gradients = _of("_stepper", Stepper.clip_gradients)
    scale_loss = _of("_settings.loss_scale", LossScale.scale_loss)
    finalize_variable_values = _of("_settings.averages", Averages.finalize_variable_values)
    swap_averages = _of("_settings.averages", Averages.swap_averages)
    averages_swapped = _of("_settings.averages", Averages.averages_swapped)
    refresh_master_copies = _of("_settings.masters", MasterCopies.refresh_master_copies)
    exclude_from_weight_decay = _of("_settings.weight_decay", WeightDecay.exclude_from_weight_decay)

    # Copies, checkpoints, configs, reports.

    def __reduce__(self) -> Any:
        config = {**self.get_config(), **self._settings.live()}
        return copies.restore, (type(self), *copies.contents(config, self._state))

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> Any:
        self._stepper.prepare("a checkpoint")
        return super()._trackable_children(save_type, **kwargs)

    def _lookup_dependency(self, name: str, *args: Any, **kwargs: Any) -> Any:
        object_graph.check_is_ours(name)
        return super()._lookup_dependency(name, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON values; `from_config` makes the same optimizer from them.

        Raises UnsupportedError: it was made by `Optimizer(rule=...)`; HyperparameterError: some are symbolic.
        """
        self._algorithm.check_has_config()
        return configs.to_config(self.name, self._hyper, self._settings, self._state)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return an optimizer of this config and no state. Raises HyperparameterError: it does not fit the class.

        `config` may also contain live objects: a mesh, a schedule, a callable. It is not changed.
        """
        return configs.from_config(cls, config)

    memory_report = _of("_state", reports.memory_report)
    executor_report = _of("_stepper.execution", Execution.report)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...


settings.add_attributes(Optimizer)
