"""The keyword arguments that every optimizer takes, checked once and kept together."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from optim import learning_rate, loss_scaling, master_copies, multipliers, placement
from optim.errors import HyperparameterError
from optim.options import EMAOption, GradientsClipOption, combine
from optim.rule import Rule
from optim.variables import check_patterns

EXECUTORS = ("auto", "local", "portable")


class Options(TypedDict, total=False):
    """Types of the keyword arguments that `Optimizer` explains and every optimizer passes on."""

    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    clip_order: str | None
    use_ema: bool | None
    ema_momentum: float | None
    ema_overwrite_frequency: int | None
    jit_compile: bool | None
    weight_decay: float | None
    weight_decay_exclude: Sequence[str]
    learning_rate_multipliers: Mapping[str, float] | None
    lazy_rows: Sequence[str]
    slot_placement: placement.Placement
    gradient_accumulation_steps: int | None
    loss_scale: float | str | None
    loss_scale_growth_steps: int | None
    master_copies: bool
    executor: str
    lr: Any
    decay: float


@dataclass(frozen=True)
class Settings:
    """All options of one optimizer, in range. Build with `parse`."""

    clip: GradientsClipOption
    ema: EMAOption
    jit_compile: bool | None
    weight_decay: float | None
    weight_decay_exclude: tuple[str, ...]
    learning_rate_multipliers: Mapping[str, float]
    lazy_rows: tuple[str, ...]
    slot_placement: placement.Placement
    gradient_accumulation_steps: int | None
    loss_scale: float | str | None
    loss_scale_growth_steps: int | None
    master_copies: bool
    executor: str
    decay: float

    @property
    def steps(self) -> int:
        """How many gradients make one step."""
        return self.gradient_accumulation_steps or 1

    @property
    def growth_steps(self) -> int:
        """After how many finite steps in a row a dynamic loss scale doubles."""
        return self.loss_scale_growth_steps or loss_scaling.GROWTH_STEPS

    def to_config(self) -> dict[str, Any]:
        """The keyword arguments again, as JSON values."""
        return {
            "clipnorm": self.clip.clipnorm,
            "clipvalue": self.clip.clipvalue,
            "global_clipnorm": self.clip.global_clipnorm,
            "clip_order": self.clip.clip_order,
            "use_ema": self.ema.use_ema,
            "ema_momentum": self.ema.ema_momentum,
            "ema_overwrite_frequency": self.ema.ema_overwrite_frequency,
            "jit_compile": self.jit_compile,
            "weight_decay": self.weight_decay,
            "weight_decay_exclude": list(self.weight_decay_exclude),
            "learning_rate_multipliers": dict(self.learning_rate_multipliers) or None,
            "lazy_rows": list(self.lazy_rows),
            "slot_placement": placement.to_config(self.slot_placement),
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "loss_scale": self.loss_scale,
            "loss_scale_growth_steps": self.loss_scale_growth_steps,
            "master_copies": self.master_copies,
            "executor": self.executor,
            "decay": self.decay,
        }


def parse(gradients_clip_option: Any, ema_option: Any, keywords: Mapping[str, Any]) -> Settings:
    """Check everything. Raises HyperparameterError, which names the argument."""
    clip_names = ("clipnorm", "clipvalue", "global_clipnorm", "clip_order")
    ema_names = ("use_ema", "ema_momentum", "ema_overwrite_frequency")
    return Settings(
        clip=combine(
            GradientsClipOption,
            "gradients_clip_option",
            gradients_clip_option,
            {name: keywords.get(name) for name in clip_names},
        ),
        ema=combine(EMAOption, "ema_option", ema_option, {name: keywords.get(name) for name in ema_names}),
        jit_compile=_flag("jit_compile", keywords.get("jit_compile")),
        weight_decay=_weight_decay(keywords.get("weight_decay")),
        weight_decay_exclude=check_patterns("weight_decay_exclude", keywords.get("weight_decay_exclude", ())),
        learning_rate_multipliers=multipliers.parse(keywords.get("learning_rate_multipliers")),
        lazy_rows=check_patterns("lazy_rows", keywords.get("lazy_rows", ())),
        slot_placement=placement.check(keywords.get("slot_placement", placement.LIKE_VARIABLE)),
        gradient_accumulation_steps=_steps(keywords.get("gradient_accumulation_steps")),
        loss_scale=loss_scaling.parse(keywords.get("loss_scale")),
        loss_scale_growth_steps=loss_scaling.parse_growth_steps(
            keywords.get("loss_scale_growth_steps"), keywords.get("loss_scale")
        ),
        master_copies=master_copies.parse(keywords.get("master_copies", False)),
        executor=_executor(keywords.get("executor", "auto")),
        decay=learning_rate.check_decay(keywords.get("decay", 0.0)),
    )


def _flag(name: str, value: Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise HyperparameterError(f"{name} must be True, False or None, got {value!r}")


def _weight_decay(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (0 <= value < math.inf):
        raise HyperparameterError(f"weight_decay must be finite and >= 0, or None, got {value!r}")
    return float(value)


def check_rule(settings: Settings, rule: Rule | None, name: str) -> None:
    """Refuse options that the rule of class `name` cannot keep; `rule` is None where it has its own `update_step`."""
    if rule is None:
        for option in ("learning_rate_multipliers", "master_copies"):
            if getattr(settings, option):
                raise HyperparameterError(f"{option} would have no effect: {name} has its own update_step")
    elif settings.lazy_rows and not rule.elementwise:
        raise HyperparameterError(f"lazy_rows: a step of {name} cannot leave single rows out")


def excluding(settings: Settings, more: Sequence[str]) -> Settings:
    """The same settings with further names left out of weight decay."""
    new = [pattern for pattern in more if pattern not in settings.weight_decay_exclude]
    return replace(settings, weight_decay_exclude=(*settings.weight_decay_exclude, *new))


def escape(name: str) -> str:
    """A regular expression that matches just this name."""
    return re.escape(name)


def _steps(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise HyperparameterError(f"gradient_accumulation_steps must be an integer >= 1 or None, got {value!r}")
    return value


def _executor(value: Any) -> str:
    if value in EXECUTORS:
        return str(value)
    raise HyperparameterError(f"executor must be one of {EXECUTORS}, got {value!r}")


def full_signature(cls: type, base: type) -> inspect.Signature:
    """Signature of `cls` with `**options` written out as the keyword-only arguments of `base`."""
    own = inspect.signature(cls.__init__)  # type: ignore[misc]
    parameters = [p for p in list(own.parameters.values())[1:] if p.kind is not p.VAR_KEYWORD]
    if len(parameters) == len(own.parameters) - 1:
        return own.replace(parameters=parameters)
    shared = inspect.signature(base.__init__).parameters  # type: ignore[misc]
    names = {p.name for p in parameters}
    return own.replace(parameters=parameters + [shared[n] for n in Options.__annotations__ if n not in names])
