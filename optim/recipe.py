"""`Optimizer` if Keras runs on JAX or PyTorch: the checked arguments of an optimizer, without state.

`optim.for_keras` makes an optimizer that steps from it. There the classes of `optim/optimizers` are subclasses of it,
and with TensorFlow they are subclasses of `optim.optimizer.Optimizer`; both have the same arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from optim import algorithm, configs
from optim.arguments import LearningRate
from optim.errors import UnsupportedError
from optim.hyperparameters import Values
from optim.options import settings
from optim.options.option_objects import EMAOption, GradientsClipOption
from optim.rule import Rule, hyperparameters

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class Variables(list[Any]):
    """The model variables of one optimizer, in build order."""

    unwrap = staticmethod(lambda variable: variable)


class State:
    """The counterpart of `optim.state.state.State` for the options, with numbers in place of variables."""

    given_mesh = None

    def __init__(self) -> None:
        self.tracked = Variables()
        self.scalars: dict[str, Any] = {}

    def new_scalar(self, key: str, value: Any, dtype: Any, name: str) -> None:
        self.scalars[key] = value

    def remove_scalar(self, key: str) -> None:
        self.scalars.pop(key, None)


class Optimizer:
    """Base of all optimizers if Keras runs on JAX or PyTorch; `optim.for_keras` makes one that steps.

    Args: see `optim.optimizer.Optimizer`; `mesh` is TensorFlow's.

    Raises:
      HyperparameterError (a ValueError): out of range, contradictory, or not a number.
      UnsupportedError: `mesh` is given.
    """

    def __init__(
        self,
        name: str | None = None,
        gradients_clip_option: GradientsClipOption | Mapping[str, Any] | None = None,
        ema_option: EMAOption | Mapping[str, Any] | None = None,
        mesh: Any = None,
        *,
        learning_rate: LearningRate | None = None,
        rule: Rule | None = None,
        **options: Unpack[settings.Options],
    ):
        self._state = self._begin(name or type(self).__name__, mesh)
        self._hyper = self.__dict__.get("_hyper") or Values({} if rule is None else hyperparameters(type(rule)), {})
        part = algorithm.of(self, rule, self._hyper.current, Optimizer)
        shared = {
            "gradients_clip_option": gradients_clip_option,
            "ema_option": ema_option,
            "learning_rate": learning_rate,
        }
        explicit = self.__dict__.pop("_explicit", None)
        self._settings = settings.Settings(options, shared, part, self._state, explicit)  # type: ignore[arg-type]
        self._algorithm = self._settings.algorithm()

    def _begin(self, name: str, mesh: Any) -> State:
        """See `optim.optimizer.Optimizer`."""
        if mesh is not None:
            raise UnsupportedError(
                "mesh= is for TensorFlow's DTensor; leave it out. On JAX, slots follow keras.distribution"
            )
        self.name = name
        return State()

    __signature__ = settings.with_options(inspect.signature(__init__))

    _written_out = staticmethod(settings.with_options)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Write `**options` out in the signature of a subclass, for readers and for tools."""
        super().__init_subclass__(**kwargs)
        cls.__signature__ = cls._written_out(inspect.signature(cls.__init__))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        raise AttributeError(
            f"{type(self).__name__} has no {name!r} here, because Keras runs on another backend than TensorFlow."
            " optim.for_keras(optimizer) gives an optimizer that steps; to step TensorFlow's variables, import"
            " tensorflow before optim is used"
        )

    def _get_rate(self) -> Any:
        return self._settings.rate.source

    def _set_rate(self, value: Any) -> None:
        self._settings.rate.replace(value)

    learning_rate = lr = property(_get_rate, _set_rate)
    _learning_rate = property(attrgetter("_settings.rate.source"))
    _rule = property(attrgetter("_algorithm.rule"))

    def update_step(self, gradient: Any, variable: Any) -> None:
        """See `optim.optimizer.Optimizer`. Raises UnsupportedError."""
        raise UnsupportedError("update_step is for TensorFlow; call apply on what optim.for_keras gives")

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """See `optim.optimizer.Optimizer.exclude_from_weight_decay`."""
        self._settings.weight_decay.exclude_from_weight_decay(var_list, var_names)

    def get_config(self) -> dict[str, Any]:
        """See `optim.optimizer.Optimizer.get_config`."""
        self._algorithm.check_has_config()
        return configs.to_config(self.name, self._hyper, self._settings, self._state)  # type: ignore[arg-type]

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """See `optim.optimizer.Optimizer.from_config`."""
        return configs.from_config(cls, config)


settings.add_attributes(Optimizer)
