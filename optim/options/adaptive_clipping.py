"""Adaptive gradient clipping: the gradient of each unit is at most a share of the unit's weights, by their norms.

    limit = clipping · max(‖p‖, eps)        g ← g · limit / max(‖g‖, limit)

Norms are those of units. A unit is what one output of a layer depends on: a vector or a number as a whole; along the
first dim for variables of rank 2 and 3; along all dims but the last from rank 4 on. So dense kernels (in, out) and
convolutions (height, width, in, out) of Keras are clipped by output.

Brock, De, Smith & Simonyan, "High-Performance Large-Scale Image Recognition Without Normalization" (2021,
arXiv:2102.06171), equation 3. Arguments and units as `optax.adaptive_grad_clip` 0.2, but for matrices of one row, which
are a vector there. It acts after the other ways of clipping, on what weight decay left of the variable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from optim.arguments import patterns
from optim.errors import HyperparameterError
from optim.hyperparameters import to_number
from optim.options.base import Option, Part
from optim.options.option_objects import from_mapping
from optim.options.rule_wrapper import RuleWrapper
from optim.rule import Arrays, Rule, Scalars
from optim.summed_gradients import summed


@dataclass(frozen=True)
class AdaptiveGradClip:
    """How the gradients of units are clipped.

    Attributes:
      clipping: the largest norm of a unit's gradient, as a share of the norm of its weights. > 0.
      eps: smaller norms of weights count as this, so that zeros can start to move. > 0.
      exclude: regular expressions; a variable whose name one of them matches (`re.search`) is not clipped. The paper
        excludes the last layer.

    Raises:
      HyperparameterError: out of range.
    """

    clipping: float = 0.01
    eps: float = 1e-3
    exclude: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("clipping", "eps"):
            number = to_number(name, getattr(self, name))
            if number is None or not 0 < number < float("inf"):
                raise HyperparameterError(f"{name} must be a positive, finite number, got {getattr(self, name)!r}")
            object.__setattr__(self, name, number)
        object.__setattr__(self, "exclude", patterns("exclude", self.exclude))


def unit_axes(rank: int) -> tuple[int, ...] | None:
    """The dims along which a unit extends; None for all."""
    if rank < 2:
        return None
    return (0,) if rank < 4 else tuple(range(rank - 1))


@dataclass(frozen=True)
class AdaptiveClipRule(RuleWrapper):
    """A rule of gradients that are clipped by the norms of units."""

    option: AdaptiveGradClip

    @property
    def elementwise(self) -> bool:
        return False

    @property
    def has_constants(self) -> bool:
        return bool(self.option.exclude) or self.rule.has_constants

    def constants(self, shape: Sequence[int], names: Sequence[str]) -> Mapping[str, float]:
        excluded = any(re.search(pattern, name) for pattern in self.option.exclude for name in names)
        return {**self.rule.constants(shape, names), "clip_excluded": float(excluded)}

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        one = xp.ones_like(step)
        return {
            **self.rule.coefficients(xp, hyper, step),
            "clip_share": self.option.clipping * one,
            "clip_eps": self.option.eps * one,
            "clip_excluded": hyper.get("clip_excluded", 0.0) * one,
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        axes = unit_axes(len(variable.shape))
        weights, norm = (
            xp.sqrt(xp.reduce_sum(xp.square(x), axis=axes, keepdims=True)) for x in (variable, summed(gradient))
        )
        least = c["clip_eps"] * xp.ones_like(weights)
        limit = xp.maximum(c["clip_share"] * xp.maximum(weights, least), c["clip_excluded"] * norm)
        # A norm that is not finite gives NaN, as in `optim.options.clipping`.
        factor = limit / xp.maximum(norm, limit) + (norm - norm)
        return self.rule.update(xp, variable, gradient * factor, slots, c)


class AdaptiveClipping(Part):
    """Whether the gradients of units are clipped, and how."""

    options: ClassVar = {
        "adaptive_grad_clip": Option(
            None,
            "`AdaptiveGradClip(clipping=0.01, eps=0.001, exclude=())`, its `clipping`, or a mapping with its fields:"
            " scales the gradient of each unit down to at most this share of its weights, by their norms (Brock et al.,"
            " 2021)",
        ),
    }

    def __init__(self, value: Any):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        mapping = {"clipping": value} if is_number else value
        self.adaptive_grad_clip = from_mapping(AdaptiveGradClip, "adaptive_grad_clip", mapping)

    def config(self) -> dict[str, Any]:
        option = self.adaptive_grad_clip
        return {"adaptive_grad_clip": None if option is None else {**asdict(option), "exclude": list(option.exclude)}}

    def wrap(self, rule: Rule) -> Rule:
        """The rule of the optimizer out of that of its class."""
        return rule if self.adaptive_grad_clip is None else AdaptiveClipRule(rule, self.adaptive_grad_clip)
