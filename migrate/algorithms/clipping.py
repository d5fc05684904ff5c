"""Limits of gradients in a config, which releases applied to one norm or many, in two orders, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from migrate import generations
from migrate.algorithms.arguments import Arguments
from migrate.algorithms.spec import number
from migrate.evidence import FILE, HINT, SET, confirming
from migrate.releases.versions import YES, Versions
from optim.errors import UnsupportedError

LIMITS = ("clipnorm", "global_clipnorm", "clipvalue")
"""In the order in which they win where a class takes only one."""


def put_in(config: Mapping[str, Any], generation: str, versions: Versions, out: Arguments) -> None:
    """The limits of gradients, as the release applied them."""
    limits = {k: number(config, k) for k in LIMITS if config.get(k) is not None and config[k] is not False}
    _check_above_zero(limits, generation, versions, out)
    limits = {k: v for k, v in limits.items() if not v <= 0}  # NaN is refused as out of range
    version = versions.keras_number
    if generation in generations.NEW and len(limits) > 1:
        first, *others = limits
        out.warnings.append(
            f"{first} and {', '.join(others)} are set: this generation applied {first} alone, and so is carried"
        )
        limits = {first: limits[first]}
    if generation == "optimizer_v2" and not _always_clips(versions):
        _may_be_idle(limits, out)
    _check_known(limits, generation, version, out)
    if len(limits) > 1:
        _clip_order(generation, version, versions.tensorflow or versions.tensorflow_after, out)
    if "clipnorm" in limits and _goes_for_all(limits, generation, versions, out):
        limit = limits.pop("clipnorm")
        limits.setdefault("global_clipnorm", limit)
        out.warnings.append(
            "clipnorm limited the norm over all gradients in this generation: carried as global_clipnorm"
        )
    out.values.update(limits)


def as_dtensor(config: Mapping[str, Any], sure: str, out: Arguments) -> dict[str, Any]:
    """The DTensor optimizers of 2.9 took options for clipping and averaging and did nothing about them. Those of a
    strategy did, and keep averages: where these are set and the source has none, it is DTensor's.

    Args:
      sure: whether they are DTensor's, of `Versions.dtensor`.
    """
    idle = [key for key in (*LIMITS, "use_ema") if config.get(key)]
    if sure != YES and idle and "use_ema" not in idle:
        for key in idle:
            out.doubt(
                key,
                f"{key} is set, and nothing says whether it acted: DTensor's optimizers of TF 2.9 ignored it, and"
                " those under a tf.distribute strategy did not",
                confirm=f"{confirming(key, config[key])} or {confirming(key, None)}",
            )
        return dict(config)
    if idle:
        out.warnings.append(f"{', '.join(idle)}: left out, as DTensor's optimizers of this generation ignored them")
    return {key: value for key, value in config.items() if key not in idle}


def _check_known(limits: Mapping[str, float], generation: str, version: tuple[int, ...] | None, out: Arguments) -> None:
    """`global_clipnorm` came with TF 2.4 (`optimizer_v2.py`): no release before wrote it, or acted on it."""
    before = generation in generations.NATIVE or (version is not None and version < (2, 4))
    limit, told = limits.get("global_clipnorm"), out.origins.get("global_clipnorm")
    is_said = told is None or told.kind in (FILE, HINT)
    if limit is not None and before and is_said and generation not in generations.NEW:
        out.doubt(
            "global_clipnorm",
            "global_clipnorm is set, which no release of that generation has: TF 2.4 brought it",
            confirm=f"{confirming('global_clipnorm', limit)} or {confirming('global_clipnorm', None)}",
        )


def _check_above_zero(limits: Mapping[str, float], generation: str, versions: Versions, out: Arguments) -> None:
    """Refuse a limit of 0 where it is one: OptimizerV2 makes gradients zero with it (run with TF 1.15 to 2.6), and so
    do the ops, and tf.keras from TF 1.10 on (run with 1.9 to 1.13); other generations take it for none. These also
    take one below zero for none, which OptimizerV2 refuses (`optimizer_v2.py` 2.0 to 2.15).

    Raises:
      UnsupportedError: naming it, unless a person said it of the next steps.
    """
    acts = generation in ("optimizer_v2", "tf1") or (
        generation == "optimizer_v1" and not is_of_all(generation, versions)
    )
    for key, value in limits.items():
        told = out.origins.get(key)
        if value <= 0 and acts and (told is None or told.kind != SET):
            zero = "with which this generation makes every gradient zero, and optim has no such limit"
            raise UnsupportedError(
                f"{key} is {value:g} in the optimizer's config,"
                f" {'which this generation does not take for none' if value else zero};"
                f" to go on without one, say {confirming(key, None)}"
            )


def _always_clips(versions: Versions) -> bool:
    """Whether `fit` of a release clips, and, where nothing tells the release, whatever else took the steps."""
    tensorflow, keras = versions.tensorflow_number, versions.keras_number
    if versions.graph_mode or versions.tensorflow_after:
        return True
    if tensorflow:
        return tensorflow[:2] not in ((2, 0), (2, 1))
    return keras is not None and keras not in ((2, 2, 4), (2, 3, 0))


def _may_be_idle(limits: Mapping[str, float], out: Arguments) -> None:
    """Before TF 2.4 `apply_gradients` did not clip, and `fit` called it in TF 1.15 with eager execution, 2.0 and 2.1
    (run in each); releases with `global_clipnorm` do."""
    if "global_clipnorm" in limits:
        return
    for key, value in limits.items():
        out.doubt(
            key,
            f"{key} is set, and nothing says whether it acted: before TF 2.4 apply_gradients in a loop of one's own"
            " did not clip, and in TF 2.0 and 2.1 fit did not",
            confirm=f"{confirming(key, value)} or {confirming(key, None)}",
        )


def _clip_order(generation: str, version: tuple[int, ...] | None, tensorflow: str, out: Arguments) -> None:
    """Norm, then value, before TF 2.4. TF 2.3 and 2.4 both call their Keras 2.4.0, so that alone decides nothing."""
    if generation in generations.NATIVE or (version is not None and version < (2, 4)) or tensorflow == "2.3":
        out.values["clip_order"] = "norm_first"
        return
    out.values["clip_order"] = "value_first"
    if version in (None, (2, 4, 0)) and tensorflow != "2.4":
        said = "does not say its release" if version is None else "is of TF 2.3 or 2.4, which both say 2.4.0"
        out.doubt(
            "clip_order",
            f"clipnorm and clipvalue are both set and the source {said}: TF 2.4 and later clip the value first, as is"
            " carried, earlier ones the norm",
            confirm="--set clip_order=value_first",
        )


def is_of_all(generation: str, versions: Versions) -> bool | None:
    """Whether `clipnorm` limited one norm over all gradients, as in standalone Keras and in tf.keras until TF 1.9, and
    not that of each (`optimizers.py` of TF 1.4 to 1.12); None where nothing tells. TF 1.9 to 1.12 say 2.1.6-tf."""
    if generation != "optimizer_v1":
        return generation in generations.NATIVE
    tensorflow, keras = versions.tensorflow_number, versions.keras_number
    if tensorflow is not None:
        return tensorflow < (1, 10)
    if versions.tensorflow_after:
        return False
    return None if keras is None or keras == (2, 1, 6) else keras < (2, 1, 6)


def _goes_for_all(limits: Mapping[str, float], generation: str, versions: Versions, out: Arguments) -> bool:
    """As `is_of_all`, or as a person says; where nothing tells, each is limited, with a doubt."""
    told, said = is_of_all(generation, versions), out.origins.get("global_clipnorm")
    if told is None and said is not None and said.kind == SET and "global_clipnorm" in limits:
        return True
    if told is None:
        ways = (confirming("clipnorm", limits["clipnorm"]), confirming("global_clipnorm", limits["clipnorm"]))
        out.doubt(
            "clipnorm",
            "clipnorm is set and the release is not known to be before TF 1.10 (one norm over all gradients) or not"
            " (one per variable, as is carried)",
            confirm=" or ".join(ways),
        )
    return bool(told)
