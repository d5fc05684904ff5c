"""Gradient clipping, once for whole tensors and for shards.

What differs between the executors is how a norm is gathered and how a tensor is scaled; both pass their own
`Gradients` object. Formulas are those of `tf.clip_by_value`, `tf.clip_by_norm` and `tf.clip_by_global_norm`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Protocol

from optim.options.option_objects import GradientsClipOption
from optim.options.part import Option, Part


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
        return self.option.clipnorm is not None or self.option.global_clipnorm is not None

    def get(self, name: str) -> Any:
        return getattr(self.option, name)

    def change(self, name: str, value: Any) -> None:
        self.option = replace(self.option, **{name: value})


class Gradients(Protocol):
    """All gradients of one step, dense, None left out."""

    def clip_values(self, limit: float) -> Gradients:
        """Each element clipped to [-limit, limit]."""

    def squared_norms(self) -> list[Any]:
        """The sum of squares of each whole gradient, a scalar each."""

    def scale(self, factors: list[Any]) -> Gradients:
        """Each gradient times its scalar factor."""

    def sqrt(self, scalar: Any) -> Any: ...

    def maximum(self, a: Any, b: Any) -> Any: ...


def clip(gradients: Gradients, option: GradientsClipOption) -> Gradients:
    """Gradients clipped as `option` says, in its order."""
    steps = [_clip_values, _clip_norms]
    if option.clip_order == "norm_first":
        steps.reverse()
    for step in steps:
        gradients = step(gradients, option)
    return gradients


def _clip_values(gradients: Gradients, option: GradientsClipOption) -> Gradients:
    return gradients if option.clipvalue is None else gradients.clip_values(option.clipvalue)


def _clip_norms(gradients: Gradients, option: GradientsClipOption) -> Gradients:
    if option.clipnorm is not None:
        norms = [gradients.sqrt(square) for square in gradients.squared_norms()]
        return gradients.scale([_factor(gradients, norm, option.clipnorm) for norm in norms])
    if option.global_clipnorm is not None:
        squares = gradients.squared_norms()
        factor = _factor(gradients, gradients.sqrt(sum(squares)), option.global_clipnorm)
        return gradients.scale([factor] * len(squares))
    return gradients


def _factor(gradients: Gradients, norm: Any, limit: float) -> Any:
    # A norm that is not finite gives NaN, and not 0, which would make finite numbers a step that looks healthy.
    return limit / gradients.maximum(norm, limit) + (norm - norm)
