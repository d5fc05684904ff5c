"""The keyword arguments that every optimizer takes, checked once and kept together."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from optim import learning_rate, placement
from optim.errors import HyperparameterError
from optim.options import EMAOption, GradientsClipOption, combine

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
    lazy_rows: Sequence[str]
    slot_placement: placement.Placement
    gradient_accumulation_steps: int | None
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
    lazy_rows: tuple[str, ...]
    slot_placement: placement.Placement
    gradient_accumulation_steps: int | None
    executor: str
    decay: float

    @property
    def steps(self) -> int:
        """How many gradients make one step."""
        return self.gradient_accumulation_steps or 1

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
            "lazy_rows": list(self.lazy_rows),
            "slot_placement": placement.to_config(self.slot_placement),
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
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
        weight_decay_exclude=patterns("weight_decay_exclude", keywords.get("weight_decay_exclude", ())),
        lazy_rows=patterns("lazy_rows", keywords.get("lazy_rows", ())),
        slot_placement=placement.check(keywords.get("slot_placement", placement.LIKE_VARIABLE)),
        gradient_accumulation_steps=_steps(keywords.get("gradient_accumulation_steps")),
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


def patterns(argument: str, values: Any) -> tuple[str, ...]:
    """Regular expressions of variable names, checked. Raises HyperparameterError."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise HyperparameterError(f"{argument} must be a list of regular expressions, got {values!r}")
    for value in values:
        try:
            re.compile(value)
        except (re.error, TypeError) as error:
            raise HyperparameterError(f"{argument}: {value!r} is no regular expression: {error}") from error
    return tuple(values)


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
