"""OptimizerV2: `tf.keras.optimizers` of TF 2.0 to 2.10, `tf.keras.optimizers.legacy` from 2.11 on.

If releases differ, this follows TF 2.4 to 2.10: gradients are clipped in `apply_gradients`, the value before the norm
(`clip_order="norm_first"` is 2.0 to 2.3), and `get_gradients` returns them unclipped. Formulas, defaults and the order
of `get_weights()` are the same in all of them. The only exception is Ftrl with `l2_shrinkage_regularization_strength`
in TF 2.3 to 2.5: only `optim.Ftrl(learning_rate_in_linear=True)` continues its state.

Hyperparameters are attributes. The value of a number at the time of a step, or of the tracing of a `tf.function`,
counts; set a `tf.Variable` to change it afterwards. `learning_rate` is one already.

Sparse gradients (`IndexedSlices`) move the same rows as in OptimizerV2: with momentum (SGD, RMSprop), Adadelta, Adamax
and Ftrl only the rows that they name; with Nadam these, while both slots decay in all rows; with Adam all rows. That
needs a copy of the variable and of those slots for the time of the step.

Write subclasses as for OptimizerV2, see `Optimizer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import tensorflow as tf

from optim.arguments import LearningRate, Number
from optim.errors import HyperparameterError, MismatchError
from optim.legacy._attributes import Delegated, Fixed, Momentum, none_is_default, zero_is_default
from optim.legacy._built_in import BuiltIn
from optim.legacy._v2_base import Keywords, Optimizer
from optim.optimizers import adadelta, adagrad, adam, adamax, ftrl, nadam, rmsprop, sgd

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["SGD", "Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "Nadam", "Optimizer", "RMSprop"]


class SGD(BuiltIn):
    """Gradient descent. Slot: `momentum`, which includes the learning rate, if there is momentum.

    Args:
      learning_rate: float, tensor, schedule or zero-argument callable. momentum: in [0, 1).
      nesterov: Nesterov's momentum. name: see `apply_gradients`. kwargs: see `Optimizer`.
    """

    momentum = Momentum()
    nesterov = Fixed()
    _slot_names: ClassVar = {"momentum": "m"}
    _config_keys = ("momentum", "nesterov")

    def __init__(
        self,
        learning_rate: LearningRate = 0.01,
        momentum: Number = 0.0,
        nesterov: bool = False,
        name: str = "SGD",
        **kwargs: Unpack[Keywords],
    ):
        super().__init__(sgd.SGD, name, learning_rate, kwargs, momentum=momentum, nesterov=nesterov)
        self._kept_rows = ("m",) if self.get_slot_names() else None

    def _resource_apply_sparse_duplicate_indices(self, grad: Any, var: Any, indices: Any, **kwargs: Any) -> Any:
        """Call a subclass's `_resource_apply_sparse` only if there is momentum, as OptimizerV2 did."""
        if self._kept_rows is not None:
            return super()._resource_apply_sparse_duplicate_indices(grad, var, indices, **kwargs)
        return SGD._resource_apply_sparse(self, grad, var, indices, **kwargs)


class RMSprop(BuiltIn):
    """RMSprop. Slots: `rms`, then `momentum` if there is momentum, then `mg` if centered.

    ε is outside of the root, and with momentum inside, as in the kernel that OptimizerV2 used for it.

    Args:
      learning_rate: float, tensor, schedule or zero-argument callable. rho, momentum: in [0, 1).
      epsilon: >= 0; None and 0 are 1e-7. centered: divide by the standard deviation of gradients.
      name: see `apply_gradients`. kwargs: see `Optimizer`.
    """

    rho = Delegated()
    momentum = Momentum()
    epsilon = Delegated()
    centered = Fixed()
    _slot_names: ClassVar = {"rms": "velocity", "momentum": "momentum", "mg": "average_gradient"}
    _config_keys = ("rho", "momentum", "epsilon", "centered")
    _shorter_list = True

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        rho: Number = 0.9,
        momentum: Number = 0.0,
        epsilon: Number | None = 1e-7,
        centered: bool = False,
        name: str = "RMSprop",
        **kwargs: Unpack[Keywords],
    ):
        arguments = {"rho": rho, "momentum": momentum, "epsilon": zero_is_default(epsilon), "centered": centered}
        has_momentum = not isinstance(momentum, (int, float)) or momentum != 0
        super().__init__(rmsprop.RMSprop, name, learning_rate, kwargs, epsilon_inside=has_momentum, **arguments)
        self._kept_rows = tuple(self._slot_names.values()) if has_momentum else None


class Adagrad(BuiltIn):
    """Adagrad, ε outside of the root. Slot: `accumulator`.

    Args:
      learning_rate: float, tensor, schedule or zero-argument callable.
      initial_accumulator_value: initial value of `accumulator`, >= 0. epsilon: >= 0; None is 1e-7.
      name: see `apply_gradients`. kwargs: see `Optimizer`.
    """

    epsilon = Delegated()
    initial_accumulator_value = Fixed()
    _slot_names: ClassVar = {"accumulator": "accumulator"}
    _config_keys = ("initial_accumulator_value", "epsilon")
    _shorter_list = True

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: Number | None = 1e-7,
        name: str = "Adagrad",
        **kwargs: Unpack[Keywords],
    ):
        arguments = {"initial_accumulator_value": initial_accumulator_value, "epsilon": none_is_default(epsilon)}
        super().__init__(adagrad.Adagrad, name, learning_rate, kwargs, epsilon_inside=False, **arguments)


class Adadelta(BuiltIn):
    """Adadelta. Slots: `accum_grad`, `accum_var`.

    Args:
      learning_rate: float, tensor, schedule or zero-argument callable; 1.0 is the form of the paper.
      rho: in [0, 1]. epsilon: >= 0; None and 0 are 1e-7. name: see `apply_gradients`. kwargs: see `Optimizer`.
    """

    rho = Delegated()
    epsilon = Delegated()
    _slot_names: ClassVar = {"accum_grad": "accumulated_grad", "accum_var": "accumulated_delta_var"}
    _config_keys = ("rho", "epsilon")
    _kept_rows = ("accumulated_grad", "accumulated_delta_var")
    _shorter_list = True

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        rho: Number = 0.95,
        epsilon: Number | None = 1e-7,
        name: str = "Adadelta",
        **kwargs: Unpack[Keywords],
    ):
        super().__init__(adadelta.Adadelta, name, learning_rate, kwargs, rho=rho, epsilon=zero_is_default(epsilon))


class Adam(BuiltIn):
    """Adam or AMSGrad. Slots: `m`, `v`, and `vhat` with `amsgrad`.

    Args:
      learning_rate: float, tensor, schedule or zero-argument callable. beta_1, beta_2: in [0, 1).
      epsilon: >= 0; None and 0 are 1e-7. amsgrad: use the largest v so far.
      name: see `apply_gradients`. kwargs: see `Optimizer`.
    """

    beta_1 = Delegated()
    beta_2 = Delegated()
    epsilon = Delegated()
    amsgrad = Fixed()
    _slot_names: ClassVar = {"m": "m", "v": "v", "vhat": "vhat"}
    _config_keys = ("beta_1", "beta_2", "epsilon", "amsgrad")

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: Number = 0.9,
        beta_2: Number = 0.999,
        epsilon: Number | None = 1e-7,
        amsgrad: bool = False,
        name: str = "Adam",
        **kwargs: Unpack[Keywords],
    ):
        arguments = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": zero_is_default(epsilon), "amsgrad": amsgrad}
        super().__init__(adam.Adam, name, learning_rate, kwargs, **arguments)

    def _prepare_local(self, var_device: str, var_dtype: Any, apply_state: Any) -> None:
        super()._prepare_local(var_device, var_dtype, apply_state)
        values = apply_state[(var_device, var_dtype)]
        values["lr"] = values["lr_t"] * tf.sqrt(1.0 - values["beta_2_power"]) / (1.0 - values["beta_1_power"])

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set the values of `weights`, also from the list of a Keras 2 Adam, whose `vhat` are placeholders."""
        count = len(self._modern._state.tracked)
        if not self.amsgrad and count and len(weights) == 3 * count + 1 != len(self.weights):
            if any(np.shape(peak) != (1,) for peak in weights[2 * count + 1 :]):
                raise MismatchError(
                    f"the list is one of amsgrad=True, whose vhats {self.name} would lose, or of other variables than"
                    f" its {count}"
                )
            weights = list(weights)[: 2 * count + 1]
        super().set_weights(weights)


class Adamax(BuiltIn):
    """Adamax. Slots: `m`, and `v`, the decaying maximum.

    Args:
      learning_rate: float, tensor, schedule or zero-argument callable. beta_1, beta_2: in [0, 1).
      epsilon: >= 0; None and 0 are 1e-7. name: see `apply_gradients`. kwargs: see `Optimizer`.
    """

    beta_1 = Delegated()
    beta_2 = Delegated()
    epsilon = Delegated()
    _slot_names: ClassVar = {"m": "m", "v": "u"}
    _config_keys = ("beta_1", "beta_2", "epsilon")
    _kept_rows = ("m", "u")

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: Number = 0.9,
        beta_2: Number = 0.999,
        epsilon: Number | None = 1e-7,
        name: str = "Adamax",
        **kwargs: Unpack[Keywords],
    ):
        arguments = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": zero_is_default(epsilon)}
        super().__init__(adamax.Adamax, name, learning_rate, kwargs, **arguments)

    def _prepare_local(self, var_device: str, var_dtype: Any, apply_state: Any) -> None:
        super()._prepare_local(var_device, var_dtype, apply_state)
        values = apply_state[(var_device, var_dtype)]
        values["neg_scaled_lr"] = -values["lr_t"] / (1.0 - values["beta_1_power"])


class Nadam(BuiltIn):
    """Nadam. Slots: `m`, `v`; and after `iterations` the scalar `momentum_cache`.

    Args:
      learning_rate: float, tensor or zero-argument callable. beta_1, beta_2: in [0, 1).
      epsilon: >= 0; None and 0 are 1e-7. name: see `apply_gradients`.
      kwargs: see `Optimizer`; and `schedule_decay` (0.004, >= 0), which `decay` means here and in its config: the
        learning rate itself does not decay.
    """

    beta_1 = Delegated()
    beta_2 = Delegated()
    epsilon = Delegated()
    schedule_decay = Delegated()
    _slot_names: ClassVar = {"m": "m", "v": "v"}
    _config_keys = ("beta_1", "beta_2", "epsilon")
    _kept_rows = ()

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: Number = 0.9,
        beta_2: Number = 0.999,
        epsilon: Number | None = 1e-7,
        name: str = "Nadam",
        *,
        schedule_decay: Number | None = None,
        **kwargs: Unpack[Keywords],
    ):
        decay = kwargs.pop("decay", None)
        if None not in (decay, schedule_decay) and decay != schedule_decay:
            raise HyperparameterError(f"decay={decay!r} contradicts schedule_decay={schedule_decay!r}; give one")
        chosen: Any = next((value for value in (schedule_decay, decay) if value is not None), 0.004)
        arguments = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": zero_is_default(epsilon)}
        super().__init__(nadam.Nadam, name, learning_rate, {**kwargs, "decay": chosen}, **arguments)

    @property
    def decay(self) -> Any:
        """The schedule's decay, as in OptimizerV2; the learning rate does not decay."""
        return self.schedule_decay

    @decay.setter
    def decay(self, value: Any) -> None:
        self.schedule_decay = value

    def _serialize_hyperparameter(self, hyperparameter_name: str) -> Any:
        return super()._serialize_hyperparameter(
            "schedule_decay" if hyperparameter_name == "decay" else hyperparameter_name
        )


class Ftrl(BuiltIn):
    """FTRL-Proximal. Slots: `accumulator`, `linear`, listed variable by variable.

    Args:
      learning_rate: float > 0, tensor, schedule or zero-argument callable. learning_rate_power: <= 0.
      initial_accumulator_value, l1_regularization_strength, l2_regularization_strength: >= 0.
      name: see `apply_gradients`. l2_shrinkage_regularization_strength, beta: >= 0. kwargs: see `Optimizer`.
    """

    learning_rate_power = Delegated()
    l1_regularization_strength = Delegated()
    l2_regularization_strength = Delegated()
    l2_shrinkage_regularization_strength = Delegated()
    beta = Delegated()
    initial_accumulator_value = Fixed()
    _slot_names: ClassVar = {"accumulator": "accumulator", "linear": "linear"}
    _config_keys = (
        "learning_rate_power",
        "initial_accumulator_value",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "l2_shrinkage_regularization_strength",
        "beta",
    )
    _kept_rows = ("accumulator", "linear")
    _per_variable = True

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        learning_rate_power: Number = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: Number = 0.0,
        l2_regularization_strength: Number = 0.0,
        name: str = "Ftrl",
        l2_shrinkage_regularization_strength: Number = 0.0,
        beta: Number = 0.0,
        **kwargs: Unpack[Keywords],
    ):
        super().__init__(
            ftrl.Ftrl,
            name,
            learning_rate,
            kwargs,
            learning_rate_power=learning_rate_power,
            initial_accumulator_value=initial_accumulator_value,
            l1_regularization_strength=l1_regularization_strength,
            l2_regularization_strength=l2_regularization_strength,
            l2_shrinkage_regularization_strength=l2_shrinkage_regularization_strength,
            beta=beta,
        )
