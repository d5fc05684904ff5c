"""From the config of any generation to the class and keyword arguments of `optim` that continue the same
training.

What every algorithm shares is here: learning rate and its decay, clipping, averaging, weight decay. What one
algorithm alone has is in `algorithms/`. Rules by release: TF 1.4 - 2.21 and Keras 1.2.2 - 3.15, each run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from migrate import generations
from migrate.algorithms.spec import Algorithm, number
from migrate.errors import MissingHintError
from optim.errors import UnsupportedError

SCHEDULES = (
    "ExponentialDecay",
    "PiecewiseConstantDecay",
    "PolynomialDecay",
    "InverseTimeDecay",
    "CosineDecay",
    "CosineDecayRestarts",
)
NO_EFFECT = {"name", "iterations", "jit_compile", "is_legacy_optimizer", "loss_scale_factor", "foreach", "fused"}
"""Config keys that change nothing about how state is used."""
LAZY_ROWS = "lazy_rows"
"""A key of `optim`'s own that --optimizer-config may have, where a source cannot know it."""
SHARED = {
    "learning_rate",
    "lr",
    "decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
    "weight_decay",
    "gradient_accumulation_steps",
}


@dataclass
class Arguments:
    """Keyword arguments of an `optim` class, and what a person should know about how they were found."""

    values: dict[str, Any] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    """Why they are not certain to be exact; empty if they are."""
    warnings: list[str] = field(default_factory=list)


def completed(config: Mapping[str, Any], algorithm: Algorithm, generation: str) -> tuple[dict[str, Any], list[str]]:
    """A config with `lr` renamed and the generation's constructor defaults put in, and the names of those."""
    full = {key: value for key, value in config.items() if key != "lr"}
    if "lr" in config:
        full.setdefault("learning_rate", config["lr"])
    defaults = algorithm.defaults(generation)
    added = [key for key in defaults if key not in full]
    full = {**{key: defaults[key] for key in added}, **full}
    if generation == "keras2" and "epsilon" not in full and any(s.nonnegative for s in algorithm.slots):
        raise MissingHintError(
            'the optimizer config gives no "epsilon", and its default changed from 1e-8 to 1e-7 in Keras'
            " 2.1.3;"
            ' write "epsilon" into --optimizer-config'
        )
    return full, added


def arguments(
    config: Mapping[str, Any],
    scalars: Mapping[str, float],
    algorithm: Algorithm,
    generation: str,
    versions: Mapping[str, str],
    dtypes: Collection[str],
) -> Arguments:
    """Keyword arguments for `optim`'s class of this algorithm.

    Args:
      config: as `completed` returns it.
      scalars: hyperparameters that the source keeps as variables; they are newer than the config and win.
      versions: of the software that wrote the source, as far as known; `keras` decides about clipping.
      dtypes: of the slots, or of the trained variables where there are none.
    """
    out = Arguments()
    current = _with_scalars(config, scalars, algorithm, out)
    out.values["name"] = str(config.get("name") or algorithm.name)
    out.values["learning_rate"] = _learning_rate(current)
    out.values.update(algorithm.arguments(current, generation))
    more, reasons = algorithm.by_release(current, generation, versions)
    out.values.update(more)
    out.reasons += reasons
    if not algorithm.time_decay:
        pass
    elif generation in generations.NATIVE or generation == "optimizer_v2":
        decay = current.get("decay")
        if decay:
            out.values["decay"] = number(current, "decay")
    elif current.get("decay"):
        out.warnings.append("decay is set, and this generation has no such option: left out, as it had no effect")
    if generation == "experimental" and versions.get("dtensor"):
        current = _as_dtensor(current, out)
    _clipping(current, generation, versions, out)
    if generation in generations.NEW:
        _averaging(current, out)
    if generation == "keras3":
        _accumulation(current, generations.version_tuple(versions.get("keras")), out)
    if set(dtypes) == {"float32"}:
        out.values.update({key: float(np.float32(out.values[key])) for key in algorithm.rounded})
    _say_what_is_left(current, algorithm, generation, out)
    return out


def _with_scalars(
    config: Mapping[str, Any], scalars: Mapping[str, float], algorithm: Algorithm, out: Arguments
) -> dict[str, Any]:
    current = dict(config)
    for key in ("learning_rate", "decay", *algorithm.scalars):
        if key not in scalars or (key == "learning_rate" and isinstance(config.get(key), Mapping)):
            continue
        stored, said = scalars[key], config.get(key)
        if isinstance(said, (int, float)) and abs(stored - number({key: said + 0}, key)) > 1e-6 * abs(stored):
            out.warnings.append(
                f"{key}: the checkpoint holds {stored:.9g}, newer than {said:.9g} in the config, and is used"
            )
        current[key] = stored
    return current


def _learning_rate(config: Mapping[str, Any]) -> Any:
    """A float, or the JSON of a stock schedule without `module` and `registered_name`."""
    value = config["learning_rate"]
    if not isinstance(value, Mapping):
        return number(config, "learning_rate")
    name = str(value.get("class_name", "")).rsplit(">", 1)[-1]
    if name not in SCHEDULES or not isinstance(value.get("config"), Mapping):
        raise UnsupportedError(
            f"the learning rate is the schedule {name or value!r}, which is not one of"
            f" {', '.join(SCHEDULES)}; give a"
            ' number or one of these in --optimizer-config, {"class_name": ..., "config":'
            ' {"learning_rate": ...}}'
        )
    return {"class_name": name, "config": dict(value["config"])}


def _as_dtensor(config: dict[str, Any], out: Arguments) -> dict[str, Any]:
    """The DTensor optimizers of 2.9 took options for clipping and averaging and did nothing about them."""
    idle = [key for key in ("clipnorm", "clipvalue", "global_clipnorm", "use_ema") if config.get(key)]
    if idle:
        out.warnings.append(f"{', '.join(idle)}: left out, as DTensor's optimizers of this generation ignored them")
    return {key: value for key, value in config.items() if key not in idle}


def _clipping(config: Mapping[str, Any], generation: str, versions: Mapping[str, str], out: Arguments) -> None:
    limits = {k: number(config, k) for k in ("clipnorm", "global_clipnorm", "clipvalue") if config.get(k)}
    limits = {k: v for k, v in limits.items() if v > 0}
    version = generations.version_tuple(versions.get("keras"))
    if generation in generations.NEW and len(limits) > 1:
        first, *others = limits
        out.warnings.append(
            f"{first} and {', '.join(others)} are set: this generation applied {first} alone, and so is carried"
        )
        limits = {first: limits[first]}
    if len(limits) > 1:
        _clip_order(generation, version, versions.get("tensorflow", ""), out)
    if "clipnorm" in limits and _norm_is_global(generation, version, out):
        limits["global_clipnorm"] = limits.pop("clipnorm")
        out.warnings.append(
            "clipnorm limited the norm over all gradients in this generation: carried as global_clipnorm"
        )
    out.values.update(limits)


def _clip_order(generation: str, version: tuple[int, ...] | None, tensorflow: str, out: Arguments) -> None:
    """Norm, then value, before TF 2.4. TF 2.3 and 2.4 both call their Keras 2.4.0, so that alone decides nothing."""
    if generation in generations.NATIVE or (version is not None and version < (2, 4)) or tensorflow == "2.3":
        out.values["clip_order"] = "norm_first"
        return
    out.values["clip_order"] = "value_first"
    if version is None or (version == (2, 4, 0) and tensorflow != "2.4"):
        said = "does not say its release" if version is None else "is of TF 2.3 or 2.4, which both say 2.4.0"
        out.reasons.append(
            f"clipnorm and clipvalue are both set and the source {said}: TF 2.4 and later clip the value first, as is"
            " carried, earlier ones the norm"
        )


def _norm_is_global(generation: str, version: tuple[int, ...] | None, out: Arguments) -> bool:
    """Standalone Keras and tf.keras 1.4 took one norm over all gradients, tf.keras 1.12 (2.1.6-tf) not."""
    if generation in ("keras1", "keras2", "keras2.3"):
        return True
    if generation != "optimizer_v1" or (version is not None and version >= (2, 1, 6)):
        return False
    if version is not None and version <= (2, 0, 8):
        return True
    out.reasons.append(
        "clipnorm is set and the release is not known to be before TF 1.5 (one norm over all gradients) or"
        " after 1.11"
        " (one per variable, as is carried)"
    )
    return False


def _averaging(config: Mapping[str, Any], out: Arguments) -> None:
    """EMA and weight decay, which 2.9 and later have."""
    if config.get("use_ema"):
        out.values["use_ema"] = True
        if config.get("ema_momentum") is not None:
            out.values["ema_momentum"] = number(config, "ema_momentum")
        if config.get("ema_overwrite_frequency") is not None:
            out.values["ema_overwrite_frequency"] = _whole(config, "ema_overwrite_frequency")
    if config.get("weight_decay"):
        out.values["weight_decay"] = number(config, "weight_decay")
        out.warnings.append(
            "weight_decay: variables given to exclude_from_weight_decay are not recorded; exclude them again"
        )


def _whole(config: Mapping[str, Any], key: str) -> int:
    value = number(config, key)
    if not value.is_integer():
        raise UnsupportedError(f"the optimizer's config has {key} = {value!r}, which is no whole number")
    return int(value)


def _accumulation(config: Mapping[str, Any], version: tuple[int, ...] | None, out: Arguments) -> None:
    """Keras 3.5 and later clip the mean and count real steps, as `optim` does; schedules and averages go by batches."""
    if not config.get("gradient_accumulation_steps"):
        return
    steps = _whole(config, "gradient_accumulation_steps")
    if steps <= 1:
        return
    problem = None
    if version is not None and version < (3, 5):
        problem = "Keras before 3.5 counts every batch as a step and clips each gradient alone"
    elif isinstance(config.get("learning_rate"), Mapping):
        problem = "Keras 3 evaluates a learning rate schedule per batch then, and optim per step"
    elif config.get("use_ema"):
        problem = "Keras 3 takes its moving averages per batch then, and optim per step"
    if problem is not None:
        raise UnsupportedError(
            f"gradient_accumulation_steps is {steps}: {problem}. Save right after an update, with"
            " gradient_accumulation_steps=None"
        )
    out.values["gradient_accumulation_steps"] = steps
    if version is None:
        out.reasons.append(
            "gradient_accumulation_steps is set and the source does not say its release: Keras before 3.5 counts every"
            " batch as a step, later ones as is carried"
        )


def _say_what_is_left(config: Mapping[str, Any], algorithm: Algorithm, generation: str, out: Arguments) -> None:
    known = SHARED | NO_EFFECT | set(algorithm.defaults(generation)) | set(algorithm.scalars) | {"epsilon", LAZY_ROWS}
    left = {key: value for key, value in config.items() if key not in known and value not in (None, False, 0, 0.0)}
    if left:
        out.reasons.append(f"the config has options that {algorithm.name} does not carry: {', '.join(map(str, left))}")
