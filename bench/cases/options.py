"""What a step does in addition to the optimizer's rule: the options of `dtopt bench step` that cost time."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from bench.errors import OptionError

CLIPS = {"value": "clipvalue", "norm": "clipnorm", "global_norm": "global_clipnorm"}
"""Kinds of `--clip` and their names in Keras."""

PLACEMENTS = ("like_variable", "zero1")
DTYPES = ("float32", "bfloat16")
CACHES = ("warm", "cold")
WAYS = ("eager", "function", "fit")


@dataclass(frozen=True)
class Options:
    """Attributes:
    clip: "value=LIMIT", "norm=LIMIT" or "global_norm=LIMIT", or None. Gradients are in [-0.05, 0.05).
    ema: momentum of a moving average of the parameters, or None.
    accumulate: gradients per step; the step uses their mean.
    weight_decay: p ← p · (1 − weight_decay · learning_rate) before the step; None for the optimizer's own default.
    placement: "like_variable", or "zero1" for slots sharded over the axes on which a variable is replicated.
    dtype: of parameters and gradients, "float32" or "bfloat16".
    sparse_rows: number of distinct rows in gradients of embedding tables; None for dense ones.
    lazy_rows: leave rows without a gradient, and their slots, unchanged.
    cache: "warm" steps find in the cache what the last step left there; "cold" clears it before each timed step.
    in_situ: also time a small forward and backward pass with the step.
    where: how a step is called: "eager", in one tf.function ("function"), or by Keras' "fit"; None: the usual way of
      each peer.

    Raises:
      OptionError: out of range.
    """

    clip: str | None = None
    ema: float | None = None
    accumulate: int = 1
    weight_decay: float | None = None
    placement: str = "like_variable"
    dtype: str = "float32"
    sparse_rows: int | None = None
    lazy_rows: bool = False
    cache: str = "warm"
    in_situ: bool = False
    where: str | None = None

    def __post_init__(self) -> None:
        if self.clip is not None:
            kind, limit = clip_of(self.clip)
            object.__setattr__(self, "clip", f"{kind}={limit:g}")
        for name, value, allowed in (
            ("slot-placement", self.placement, PLACEMENTS),
            ("dtype", self.dtype, DTYPES),
            ("cache", self.cache, CACHES),
        ):
            if value not in allowed:
                raise OptionError(f"--{name} is one of {', '.join(allowed)}, not {value!r}")
        if self.where is not None and self.where not in WAYS:
            raise OptionError(f"--in is one of {', '.join(WAYS)}, not {self.where!r}")
        _in_range("ema-momentum", self.ema, 0.0, 1.0)
        _in_range("weight-decay", self.weight_decay, 0.0, inf)
        _in_range("gradient-accumulation-steps", self.accumulate, 1, 1000)
        _in_range("sparse-rows", self.sparse_rows, 1, 2**31)
        if self.lazy_rows and self.sparse_rows is None:
            raise OptionError("--lazy-rows needs --sparse-rows: with dense gradients every row has one")
        if self.in_situ and (self.sparse_rows is not None or self.accumulate > 1):
            raise OptionError("--in-situ has dense gradients and one of them per step: leave the other options out")

    @property
    def keras(self) -> dict[str, Any]:
        """Return the options that are set, as keyword arguments of Keras' optimizers and `optim`'s."""
        chosen: dict[str, Any] = {}
        if self.clip is not None:
            kind, limit = clip_of(self.clip)
            chosen[CLIPS[kind]] = limit
        if self.ema is not None:
            chosen |= {"use_ema": True, "ema_momentum": self.ema}
        if self.accumulate > 1:
            chosen["gradient_accumulation_steps"] = self.accumulate
        if self.weight_decay is not None:
            chosen["weight_decay"] = self.weight_decay
        return chosen

    def words(self) -> list[str]:
        """Return the words of the command line for the options that differ from the defaults."""
        kind, limit = clip_of(self.clip) if self.clip is not None else ("value", None)
        values = {
            f"--{CLIPS[kind].replace('_', '-')}": None if limit is None else f"{limit:g}",
            "--ema-momentum": self.ema,
            "--gradient-accumulation-steps": self.accumulate if self.accumulate > 1 else None,
            "--weight-decay": self.weight_decay,
            "--slot-placement": self.placement if self.placement != "like_variable" else None,
            "--dtype": self.dtype if self.dtype != "float32" else None,
            "--sparse-rows": self.sparse_rows,
            "--cache": self.cache if self.cache != "warm" else None,
            "--in": self.where,
        }
        flags = {"--use-ema": self.ema is not None, "--lazy-rows": self.lazy_rows, "--in-situ": self.in_situ}
        pairs = [[name, str(value)] for name, value in values.items() if value is not None]
        return [*(word for pair in pairs for word in pair), *(name for name, on in flags.items() if on)]


def clip_of(text: str) -> tuple[str, float]:
    """Parse `norm=1` as ("norm", 1.0). Raises: OptionError."""
    kind, _, number = text.partition("=")
    try:
        limit = float(number)
    except ValueError:
        limit = -1.0
    if kind not in CLIPS or not 0 < limit < inf:
        raise OptionError(f"cannot clip by {text!r}: --clipvalue, --clipnorm, --global-clipnorm take a limit above 0")
    return kind, limit


def _in_range(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not (low <= value <= high and value < inf):
        raise OptionError(f"--{name} must be between {low:g} and {high:g}, not {value:g}")
