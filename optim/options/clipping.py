"""Gradient clipping, once for whole tensors and for shards.

What differs between the executors is how a norm is gathered and how a tensor is scaled; both pass their own
`Gradients` object. Formulas are those of `tf.clip_by_value`, `tf.clip_by_norm` and `tf.clip_by_global_norm`.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from optim.options.base import Option, Part
from optim.options.option_objects import GradientsClipOption

if TYPE_CHECKING:
    from typing_extensions import Self


class Clipping(Part):
    """How the gradients of every step are clipped."""

    options: ClassVar = {
        "clipnorm": Option(None, "each gradient is scaled down to at most this norm, > 0; None leaves it as it is"),
        "clipvalue": Option(
            None,
            "each element of a gradient is clipped to [-clipvalue, clipvalue], > 0; None leaves it as it is",
        ),
        "global_clipnorm": Option(
            None,
            "all gradients are scaled down together to at most this joint norm, > 0; None leaves them",
        ),
        "clip_order": Option(None, '`"value_first"` (the default) or `"norm_first"`, where `clipvalue` meets a norm'),
    }

    def __init__(self, option: GradientsClipOption):
        self.option = option

    @property
    def has_norms(self) -> bool:
        return self.option.norm is not None

    def get(self, name: str) -> Any:
        return getattr(self.option, name)

    def change(self, name: str, value: Any) -> None:
        self.option = replace(self.option, **{name: value})


class Clippable(Protocol):
    """All gradients of one step, dense, None left out."""

    def clip_values(self, limit: float) -> Self:
        """Each element clipped to [-limit, limit]."""

    def clip_norms(self, limit: float, is_joint: bool) -> Self:
        """Each gradient scaled down to at most this norm, or all to at most this joint norm: mostly `by_norms`."""


class Gradients(Clippable, Protocol):
    """Those whose norms are known here."""

    def squared_norms(self) -> list[Any]:
        """The sum of squares of each whole gradient, a scalar each."""

    def scale(self, factors: list[Any]) -> Self:
        """Each gradient times its scalar factor."""

    def sqrt(self, scalar: Any) -> Any: ...

    def maximum(self, a: Any, b: Any) -> Any: ...


ClippableT = TypeVar("ClippableT", bound=Clippable)
GradientsT = TypeVar("GradientsT", bound=Gradients)


def clip(gradients: ClippableT, option: GradientsClipOption) -> ClippableT:
    """Return the gradients clipped by `option`, in its order."""
    if option.clip_order == "norm_first":
        return _clip_values(_clip_norms(gradients, option), option)
    return _clip_norms(_clip_values(gradients, option), option)


def _clip_values(gradients: ClippableT, option: GradientsClipOption) -> ClippableT:
    return gradients if option.clipvalue is None else gradients.clip_values(option.clipvalue)


def _clip_norms(gradients: ClippableT, option: GradientsClipOption) -> ClippableT:
    return gradients if option.norm is None else gradients.clip_norms(*option.norm)


def by_norms(gradients: GradientsT, limit: float, is_joint: bool) -> GradientsT:
    """Gradients scaled by factors that are made of their norms here."""
    squares = gradients.squared_norms()
    if not is_joint:
        return gradients.scale([_factor(gradients, square, limit) for square in squares])
    # Not `sum`: from Python 3.12 on it adds floats up in another way than tensors, and than a GPU does.
    factor = _factor(gradients, functools.reduce(operator.add, squares), limit)
    return gradients.scale([factor] * len(squares))


def _factor(gradients: Gradients, square: Any, limit: float) -> Any:
    # A norm that is not finite gives NaN, and not 0, which would make finite numbers a step that looks healthy.
    norm = gradients.sqrt(square)
    return limit / gradients.maximum(norm, limit) + (norm - norm)
