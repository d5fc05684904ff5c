"""Options that every optimizer takes: clipping and averaging, as keywords, option objects or mappings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from optim.arguments import CLIP_ORDERS, count
from optim.errors import HyperparameterError
from optim.hyperparameters import to_number
from optim.options import exclusive

if TYPE_CHECKING:
    from typing_extensions import Self

EMA_STARTS = ("initial", "first_step")

_Object = TypeVar("_Object")
_Option = TypeVar("_Option", bound="GradientsClipOption | EMAOption")


def _positive_or_none(name: str, value: Any) -> float | None:
    if value is None:
        return None
    number = to_number(name, value)
    if number is None or not 0 < number < math.inf:
        raise HyperparameterError(f"{name} must be a positive, finite number or None, got {value!r}")
    return number


class _Explicit:
    """Remembers which fields the caller of the constructor gave, be it with their defaults. Base of the options."""

    _explicit_fields: frozenset[str]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        object.__setattr__(self, "_explicit_fields", frozenset({*names[: len(args)], *kwargs}))
        return self


@dataclass(frozen=True)
class GradientsClipOption(_Explicit):
    """How gradients are clipped before they are used.

    Attributes:
      clipnorm: each gradient is scaled down so that its own norm is at most this. > 0.
      clipvalue: each element is clipped to [-clipvalue, clipvalue]. > 0.
      global_clipnorm: all gradients are scaled down together so that their joint norm is at most this. > 0.
      clip_order: what happens first where `clipvalue` meets one of the norms: `"value_first"` as in OptimizerV2 from
        TF 2.4 on, or `"norm_first"` as in Keras up to 2.3 and OptimizerV2 up to TF 2.3.

    Raises:
      HyperparameterError: out of range, or both norms at once.
    """

    clipnorm: float | None = None
    clipvalue: float | None = None
    global_clipnorm: float | None = None
    clip_order: str = "value_first"

    def __post_init__(self) -> None:
        for name in ("clipnorm", "clipvalue", "global_clipnorm"):
            object.__setattr__(self, name, _positive_or_none(name, getattr(self, name)))
        exclusive.check(clipnorm=self.clipnorm, global_clipnorm=self.global_clipnorm)
        if self.clip_order not in CLIP_ORDERS:
            raise HyperparameterError(f"clip_order must be one of {CLIP_ORDERS}, got {self.clip_order!r}")

    @property
    def active(self) -> bool:
        """Whether anything is clipped."""
        return not (self.clipnorm is None and self.clipvalue is None and self.global_clipnorm is None)

    @property
    def norm(self) -> tuple[float, bool] | None:
        """The limit of norms, and whether that is of the joint one; None if norms are not limited."""
        limit = self.global_clipnorm if self.clipnorm is None else self.clipnorm
        return None if limit is None else (limit, self.clipnorm is None)

    @property
    def needs_clipped_norms(self) -> bool:
        """Whether norms are those of elements that are clipped already."""
        return self.norm is not None and self.clipvalue is not None and self.clip_order == "value_first"


@dataclass(frozen=True)
class EMAOption(_Explicit):
    """Exponential moving average of the variables.

    Attributes:
      use_ema: keep, for each variable p, `average ← ema_momentum·average + (1 − ema_momentum)·p` after every step.
      ema_momentum: in [0, 1].
      ema_overwrite_frequency: every so many steps the variables are overwritten by their averages; None leaves it to
        `finalize_variable_values`. >= 1.
      ema_start: `"initial"`: the average starts as the value that the variable has when the optimizer is built, as in
        Keras 2.9 and tf_keras. `"first_step"`: as its value after the first step, as in Keras 3.

    Raises:
      HyperparameterError: out of range.
    """

    use_ema: bool = False
    ema_momentum: float = 0.99
    ema_overwrite_frequency: int | None = None
    ema_start: str = "initial"

    def __post_init__(self) -> None:
        if not isinstance(self.use_ema, (bool, np.bool_)):
            raise HyperparameterError(f"use_ema must be True or False, got {self.use_ema!r}")
        object.__setattr__(self, "use_ema", bool(self.use_ema))
        momentum = to_number("ema_momentum", self.ema_momentum)
        if momentum is None or not 0 <= momentum <= 1:
            raise HyperparameterError(f"ema_momentum must be in [0, 1], got {self.ema_momentum!r}")
        object.__setattr__(self, "ema_momentum", momentum)
        if self.ema_overwrite_frequency is not None:
            every = count("ema_overwrite_frequency", self.ema_overwrite_frequency)
            object.__setattr__(self, "ema_overwrite_frequency", every)
        if self.ema_start not in EMA_STARTS:
            raise HyperparameterError(f"ema_start must be one of {EMA_STARTS}, got {self.ema_start!r}")


def _fields_of(kind: Any, argument: str, option: Any) -> Mapping[str, Any]:
    """A mapping with fields of `kind`. Raises HyperparameterError: something else."""
    if not isinstance(option, Mapping):
        raise HyperparameterError(
            f"{argument} must be None, optim.{kind.__name__} or a mapping with its keys, got {option!r}"
        )
    names = [f.name for f in fields(kind)]
    unknown = sorted(str(k) for k in option if k not in names)
    if unknown:
        raise HyperparameterError(f"{argument} has no {', '.join(unknown)}; it knows {', '.join(names)}")
    return option


def explicit_fields(option: Any) -> frozenset[str]:
    """The fields that the caller gave an option object, or a mapping with its fields."""
    if option is None:
        return frozenset()
    return (
        option._explicit_fields
        if isinstance(option, _Explicit)
        else frozenset(k for k in option if option[k] is not None)
    )


def from_mapping(kind: Callable[..., _Object], argument: str, option: Any) -> _Object | None:
    """An option object as it is, or out of a mapping with some of its fields; None for None.

    Raises:
      HyperparameterError: another kind of object, an unknown key, or a field that is out of range.
    """
    if option is None or type(option) is kind:
        return option
    return kind(**_fields_of(kind, argument, option))


def combine(kind: type[_Option], argument: str, option: Any, keywords: Mapping[str, Any]) -> _Option:
    """Merge an option object (or mapping) with the keywords of the same names.

    Args:
      kind: the option's class.
      argument: name of the argument that `option` came from, for messages.
      option: None, an instance of `kind`, or a mapping with some of its fields. What it was given counts, also where
        that is the default; None counts as not given, here as in `keywords`.
      keywords: the optimizer's keywords.

    Raises:
      HyperparameterError: another kind of object, an unknown key, or two different values for one field.
    """
    names = [f.name for f in fields(kind)]
    if option is None:
        values: dict[str, Any] = {}
    elif isinstance(option, kind):
        values = {
            n: getattr(option, n) for n in names if n in option._explicit_fields and getattr(option, n) is not None
        }
    else:
        values = {k: v for k, v in _fields_of(kind, argument, option).items() if v is not None}
    for name, value in keywords.items():
        if value is None:
            continue
        if name in values and values[name] != value:
            raise HyperparameterError(f"{name}={value!r} contradicts {argument}, which has {values[name]!r}")
        values[name] = value
    return replace(kind(), **values)
