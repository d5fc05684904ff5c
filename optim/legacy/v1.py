"""`keras.optimizers` of tf.keras 1.x: `lr=`, `get_updates(loss, params)`, weights without names.

Formulas, defaults and the order of `get_weights()` are those of tf.keras 1.12 and 1.13
(`tensorflow/python/keras/optimizers.py`), the last before OptimizerV2. Keras 1 to 2.3 differ in the following, which
you can reproduce:

- their `clipnorm` bounds the joint norm of all gradients: use `global_clipnorm`;
- Keras up to 2.0 has epsilon 1e-8: pass it;
- `set_weights` also accepts the lists of Keras 2.3, which begin with `iterations` everywhere (and Nadam's
  `m_schedule`), and those of Adam before Keras 2.1.3 and tf.keras 1.5, which have no vhats.

Graphs of ops became eager steps: each call of `get_updates` takes one step, eagerly or inside a `tf.function`, and
returns the variables that it wrote. Sparse gradients are made dense, as K.gradients' were, after clipping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

import numpy as np
import tensorflow as tf

from optim.arguments import LearningRate, Number
from optim.executors import portable
from optim.layouts import placement
from optim.legacy import _gradients
from optim.legacy._attributes import Delegated, Fixed, none_is_default
from optim.legacy._base import LegacyOptimizer
from optim.optimizer import Optimizer as ModernOptimizer
from optim.optimizers import adadelta, adagrad, adam, adamax, nadam, rmsprop, sgd
from optim.options.option_objects import GradientsClipOption
from optim.rules.nadam import DECAY_BASE
from optim.state import weights as weights_of_state

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Keywords(TypedDict, total=False):
    """`**kwargs` of every optimizer: `clipnorm`, `clipvalue`, and `global_clipnorm` for the `clipnorm` of Keras."""

    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None


class Optimizer(LegacyOptimizer):
    """Base of all v1 optimizers; use a subclass.

    Args:
      optimizer: of `optim`, which takes the steps.
      decay: the learning rate is divided by 1 + decay · iterations. >= 0.
      keywords: those below, which every subclass takes.
      clipnorm: each gradient is scaled down to at most this norm. > 0. It comes before `clipvalue`.
      clipvalue: each element of a gradient is clipped to [-clipvalue, clipvalue]. > 0.
      global_clipnorm: all gradients are scaled down together to at most this joint norm, as `clipnorm` did in Keras
        itself. > 0, and not with `clipnorm`.

    Raises:
      HyperparameterError (a ValueError): out of range. TypeError: another keyword.
    """

    _slots: ClassVar[tuple[str, ...]] = ()
    """The algorithm's slots, by the names of `optim`, in the order of lists of weights."""
    _lists_iterations: ClassVar[bool] = True
    """Whether `iterations` comes first among the weights."""
    _config_keys: ClassVar[tuple[str, ...]] = ()

    def __init__(self, optimizer: ModernOptimizer, decay: Any, keywords: Keywords):
        unknown = sorted(set(keywords) - set(Keywords.__annotations__))
        if unknown:
            raise TypeError(
                f"{type(self).__name__} got an unexpected keyword argument {unknown[0]!r}; it takes"
                f" {', '.join(Keywords.__annotations__)}"
            )
        super().__init__(optimizer, GradientsClipOption(clip_order="norm_first", **keywords), decay)

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """Return the gradients of `loss` with respect to `params`, clipped.

        Args:
          loss: a callable without arguments that returns the loss; or, inside a `tf.function`, a tensor of it.
          params: list of variables.

        Raises:
          NoGradientsError (a ValueError): a gradient is None.
          UnsupportedError (a ValueError): an eager tensor as loss, for which nothing was recorded.
        """
        return portable.clipped(_gradients.require_all(_gradients.compute(loss, params)), self._clip)

    def get_updates(self, loss: Any, params: Any) -> list[Any]:
        """Take one step on `loss`.

        Args:
          loss, params: as for `get_gradients`.

        Returns:
          The variables that the step wrote: `iterations`, the slots, `params`. (Graph mode gave ops that would.)

        Raises:
          As `get_gradients` and `optim.Optimizer.apply_gradients`; then no variable is changed.
        """
        variables = tf.nest.flatten(params)
        self._step(list(zip(self.get_gradients(loss, variables), variables, strict=True)))
        return self._updated(variables)

    @property
    def weights(self) -> list[tf.Variable]:
        """State in the order of tf.keras 1.13, see the class; empty before the first step."""
        if not self._modern.built:
            return []
        return [self.iterations, *self._slot_weights()] if self._lists_iterations else self._slot_weights()

    def _slot_weights(self) -> list[tf.Variable]:
        """All of the first slot, then all of the second, and so on."""
        state = self._modern._state
        return [state.slots.get(name, tracked) for name in self._slots for tracked in state.tracked]

    def _other_lists(self) -> list[list[tf.Variable]]:
        """Return which weights the lists of other releases contain."""
        return [[self.iterations, *self._slot_weights()]]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set the values of `weights`; the module's docstring describes the accepted lists.

        Call it only after a step (before, the optimizer has no weights), or after `_create_all_weights(params)`.

        Raises:
          MismatchError (a ValueError): number or shapes of the arrays do not fit. Then nothing was set.
        """
        chosen = self.weights
        if self._modern.built:
            chosen = next((v for v in [chosen, *self._other_lists()] if len(v) == len(weights)), chosen)
        weights_of_state.write(chosen, weights, type(self).__name__)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON values, under their old names."""
        known = self._modern.get_config()
        clips = {name: getattr(self, name) for name in Keywords.__annotations__ if getattr(self, name) is not None}
        return {"lr": known["learning_rate"], **{key: known[key] for key in self._config_keys}, **clips} | (
            {"decay": self.decay} if "decay" in self._config_keys else {}
        )

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Optimizer:
        """Return an optimizer with this configuration and no state; `learning_rate`, as Keras 2.3 writes it, is
        `lr`."""
        arguments = dict(config)
        if "learning_rate" in arguments:
            arguments["lr"] = arguments.pop("learning_rate")
        return cls(**arguments)


class SGD(Optimizer):
    """Gradient descent with momentum. Weights: iterations, all moments (even if `momentum` is 0).

    Args:
      lr: float >= 0. momentum: in [0, 1). decay: float >= 0, see `decay`. nesterov: Nesterov's momentum.
      kwargs: see `Optimizer`.
    """

    momentum = Delegated()
    nesterov = Fixed()
    _slots = ("m",)
    _config_keys = ("momentum", "decay", "nesterov")

    def __init__(
        self,
        lr: LearningRate = 0.01,
        momentum: Number = 0.0,
        decay: float = 0.0,
        nesterov: bool = False,
        **kwargs: Unpack[Keywords],
    ):
        super().__init__(sgd.SGD(lr, momentum, nesterov, momentum_slot=True), decay, kwargs)


class RMSprop(Optimizer):
    """RMSprop, ε outside of the root. Weights: all accumulators; iterations are not among them.

    Args:
      lr: float >= 0. rho: in [0, 1). epsilon: >= 0, None is 1e-7. decay: float >= 0. kwargs: see `Optimizer`.
    """

    rho = Delegated()
    epsilon = Delegated()
    _slots = ("velocity",)
    _lists_iterations = False
    _config_keys = ("rho", "decay", "epsilon")

    def __init__(
        self,
        lr: LearningRate = 0.001,
        rho: Number = 0.9,
        epsilon: Number | None = None,
        decay: float = 0.0,
        **kwargs: Unpack[Keywords],
    ):
        modern = rmsprop.RMSprop(lr, rho, epsilon=none_is_default(epsilon), epsilon_inside=False)
        super().__init__(modern, decay, kwargs)


class Adagrad(Optimizer):
    """Adagrad, ε outside of the root, accumulators from 0. Weights: all accumulators, without iterations.

    Args:
      lr: float >= 0. epsilon: >= 0, None is 1e-7. decay: float >= 0. kwargs: see `Optimizer`.
    """

    epsilon = Delegated()
    _slots = ("accumulator",)
    _lists_iterations = False
    _config_keys = ("decay", "epsilon")

    def __init__(
        self,
        lr: LearningRate = 0.01,
        epsilon: Number | None = None,
        decay: float = 0.0,
        **kwargs: Unpack[Keywords],
    ):
        super().__init__(adagrad.Adagrad(lr, 0.0, none_is_default(epsilon), epsilon_inside=False), decay, kwargs)


class Adadelta(Optimizer):
    """Adadelta. Weights: all accumulators, then all delta accumulators; iterations are not among them.

    Args:
      lr: float >= 0; best left at its default. rho: in [0, 1]. epsilon: >= 0, None is 1e-7. decay: float >= 0,
        the learning rate is divided by 1 + decay · iterations. kwargs: see `Optimizer`.
    """

    rho = Delegated()
    epsilon = Delegated()
    _slots = ("accumulated_grad", "accumulated_delta_var")
    _lists_iterations = False
    _config_keys = ("rho", "decay", "epsilon")

    def __init__(
        self,
        lr: LearningRate = 1.0,
        rho: Number = 0.95,
        epsilon: Number | None = None,
        decay: float = 0.0,
        **kwargs: Unpack[Keywords],
    ):
        super().__init__(adadelta.Adadelta(lr, rho, none_is_default(epsilon)), decay, kwargs)


class Adam(Optimizer):
    """Adam or AMSGrad. Weights: iterations, all ms, all vs, all vhats; without `amsgrad` each vhat is a lone zero.

    Args:
      lr: float >= 0. beta_1, beta_2: in [0, 1). epsilon: >= 0, None is 1e-7. decay: float >= 0.
      amsgrad: use the largest v so far. kwargs: see `Optimizer`.
    """

    beta_1 = Delegated()
    beta_2 = Delegated()
    epsilon = Delegated()
    amsgrad = Fixed()
    _slots = ("m", "v")
    _config_keys = ("beta_1", "beta_2", "decay", "epsilon", "amsgrad")

    def __init__(
        self,
        lr: LearningRate = 0.001,
        beta_1: Number = 0.9,
        beta_2: Number = 0.999,
        epsilon: Number | None = None,
        decay: float = 0.0,
        amsgrad: bool = False,
        **kwargs: Unpack[Keywords],
    ):
        super().__init__(adam.Adam(lr, beta_1, beta_2, none_is_default(epsilon), amsgrad), decay, kwargs)
        self._placeholders: list[tf.Variable] = []

    def _slot_weights(self) -> list[tf.Variable]:
        state = self._modern._state
        if self.amsgrad:
            return super()._slot_weights() + [state.slots.get("vhat", tracked) for tracked in state.tracked]
        for tracked in list(state.tracked)[len(self._placeholders) :]:
            with tf.init_scope():
                zero = placement.new_variable(np.zeros(1), tracked.variable.dtype, "vhat_placeholder", None)
            self._placeholders.append(zero)
        return super()._slot_weights() + self._placeholders

    def _other_lists(self) -> list[list[tf.Variable]]:
        return [] if self.amsgrad else [[self.iterations, *super()._slot_weights()]]


class Adamax(Optimizer):
    """Adamax. Weights: iterations, all ms, all us.

    Args:
      lr: float >= 0. beta_1, beta_2: in [0, 1). epsilon: >= 0, None is 1e-7. decay: float >= 0.
      kwargs: see `Optimizer`.
    """

    beta_1 = Delegated()
    beta_2 = Delegated()
    epsilon = Delegated()
    _slots = ("m", "u")
    _config_keys = ("beta_1", "beta_2", "decay", "epsilon")

    def __init__(
        self,
        lr: LearningRate = 0.002,
        beta_1: Number = 0.9,
        beta_2: Number = 0.999,
        epsilon: Number | None = None,
        decay: float = 0.0,
        **kwargs: Unpack[Keywords],
    ):
        super().__init__(adamax.Adamax(lr, beta_1, beta_2, none_is_default(epsilon)), decay, kwargs)


class Nadam(Optimizer):
    """Nadam with the paper's schedule. Weights: iterations, all ms, all vs.

    The product of the schedule's values so far (`m_schedule`) is not among them: the originals started it again at 1.
    Here `set_weights` computes it from iterations, beta_1 and schedule_decay. The result is right if those two never
    changed.

    Args:
      lr: float >= 0. beta_1, beta_2: in [0, 1). epsilon: >= 0, None is 1e-7. schedule_decay: >= 0.
      kwargs: see `Optimizer`.
    """

    beta_1 = Delegated()
    beta_2 = Delegated()
    epsilon = Delegated()
    schedule_decay = Delegated()
    _slots = ("m", "v")
    _config_keys = ("beta_1", "beta_2", "epsilon", "schedule_decay")

    def __init__(
        self,
        lr: LearningRate = 0.002,
        beta_1: Number = 0.9,
        beta_2: Number = 0.999,
        epsilon: Number | None = None,
        schedule_decay: Number | None = 0.004,
        **kwargs: Unpack[Keywords],
    ):
        modern = nadam.Nadam(lr, beta_1, beta_2, none_is_default(epsilon), schedule_decay=schedule_decay)
        super().__init__(modern, 0.0, kwargs)

    def _other_lists(self) -> list[list[tf.Variable]]:
        return [[self.iterations, self._modern._state.scalars["u_product"], *self._slot_weights()]]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set the values of `weights`; compute the product of momenta again if the list lacks it."""
        super().set_weights(weights)
        if 0 < len(weights) == len(self.weights):
            steps = np.arange(1, int(placement.to_host(self.iterations)) + 1)
            known = self._modern.get_config()
            schedule = known["beta_1"] * (1.0 - 0.5 * DECAY_BASE ** (known["schedule_decay"] * steps))
            weights_of_state.write([self._modern._state.scalars["u_product"]], [np.prod(schedule)], "Nadam")
