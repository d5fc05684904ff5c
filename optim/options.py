"""Options that every optimizer takes: clipping and averaging, as keywords, option objects or mappings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from optim.errors import HyperparameterError

CLIP_ORDERS = ("value_first", "norm_first")

_Option = TypeVar("_Option", bound="GradientsClipOption | EMAOption")


def _positive_or_none(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0 or math.isinf(value):
        raise HyperparameterError(f"{name} must be a positive, finite number or None, got {value!r}")


class _Given:
    """Remembers which fields the caller of the constructor gave, be it with their defaults. Base of the options."""

    _given: frozenset[str]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = super().__new__(cls)
        names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        object.__setattr__(self, "_given", frozenset({*names[: len(args)], *kwargs}))
        return self


@dataclass(frozen=True)
class GradientsClipOption(_Given):
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
            _positive_or_none(name, getattr(self, name))
        if self.clipnorm is not None and self.global_clipnorm is not None:
            raise HyperparameterError(
                f"clipnorm ({self.clipnorm}) and global_clipnorm ({self.global_clipnorm}) exclude each other; give one"
            )
        if self.clip_order not in CLIP_ORDERS:
            raise HyperparameterError(f"clip_order must be one of {CLIP_ORDERS}, got {self.clip_order!r}")

    @property
    def active(self) -> bool:
        return not (self.clipnorm is None and self.clipvalue is None and self.global_clipnorm is None)


@dataclass(frozen=True)
class EMAOption(_Given):
    """Exponential moving average of the variables.

    Attributes:
      use_ema: keep, for each variable p, `average ← ema_momentum·average + (1 − ema_momentum)·p` after every step. The
        average starts as the value that the variable has when the optimizer is built.
      ema_momentum: in [0, 1].
      ema_overwrite_frequency: every so many steps the variables are overwritten by their averages; None leaves it to
        `finalize_variable_values`. >= 1.

    Raises:
      HyperparameterError: out of range.
    """

    use_ema: bool = False
    ema_momentum: float = 0.99
    ema_overwrite_frequency: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.use_ema, bool):
            raise HyperparameterError(f"use_ema must be True or False, got {self.use_ema!r}")
        momentum = self.ema_momentum
        if isinstance(momentum, bool) or not isinstance(momentum, (int, float)) or not 0 <= momentum <= 1:
            raise HyperparameterError(f"ema_momentum must lie in [0, 1], got {momentum!r}")
        every = self.ema_overwrite_frequency
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise HyperparameterError(f"ema_overwrite_frequency must be an integer >= 1 or None, got {every!r}")


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
        given: dict[str, Any] = {}
    elif isinstance(option, kind):
        given = {n: getattr(option, n) for n in names if n in option._given and getattr(option, n) is not None}
    elif isinstance(option, Mapping):
        unknown = sorted(str(k) for k in option if k not in names)
        if unknown:
            raise HyperparameterError(f"{argument} has no {', '.join(unknown)}; it knows {', '.join(names)}")
        given = {k: v for k, v in option.items() if v is not None}
    else:
        raise HyperparameterError(
            f"{argument} must be None, optim.{kind.__name__} or a mapping with its keys, got {option!r}"
        )
    for name, value in keywords.items():
        if value is None:
            continue
        if name in given and given[name] != value:
            raise HyperparameterError(f"{name}={value!r} contradicts {argument}, which says {given[name]!r}")
        given[name] = value
    return replace(kind(), **given)
