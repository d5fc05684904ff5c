"""Read the gradient limits of a config. Releases applied them to one norm or many, in two orders, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from migrate.algorithms.arguments import Arguments
from migrate.algorithms.spec import Releases, number
from migrate.claims import FILE, HINT, SET, confirming
from migrate.facts import clipping as facts
from optim.errors import UnsupportedError

LIMITS = ("clipnorm", "global_clipnorm", "clipvalue")
"""The limits, by precedence: the first one wins if a class takes only one."""


def put_in(config: Mapping[str, Any], releases: Releases, out: Arguments) -> None:
    """Add the gradient limits to the arguments, as the release applied them."""
    limits = {k: number(config, k) for k in LIMITS if config.get(k) is not None and config[k] is not False}
    _check_above_zero(limits, releases, out)
    if "global_clipnorm" in limits:
        releases = [r for r in releases if facts.GLOBAL.way(r) == facts.HAS] or releases
    limits = {k: v for k, v in limits.items() if not v <= 0}  # NaN is refused as out of range
    if len(limits) > 1 and facts.TOGETHER.of(releases) == facts.ONE:
        first, *others = limits
        out.warnings.append(
            f"{first} and {', '.join(others)} are set: this generation applied only {first}, and so does the target"
        )
        limits = {first: limits[first]}
    if facts.IN_FIT.of(releases) != facts.CLIPS:
        _may_be_idle(limits, out)
    _check_known(limits, releases, out)
    if len(limits) > 1:
        _clip_order(releases, out)
    if "clipnorm" in limits and _goes_for_all(limits, releases, out):
        limit = limits.pop("clipnorm")
        limits.setdefault("global_clipnorm", limit)
        out.warnings.append(
            "clipnorm limited the norm over all gradients in this generation: migrated as global_clipnorm"
        )
    out.values.update(limits)


def as_dtensor(config: Mapping[str, Any], is_sure: bool, out: Arguments) -> dict[str, Any]:
    """Return the config as a DTensor optimizer of 2.9 uses it: it accepts clipping and averaging and ignores both.

    Optimizers under a distribution strategy apply them, and keep averages. A config that sets averages in a source
    without averages is therefore DTensor's.

    Args:
      is_sure: whether the config is certainly DTensor's, and not possibly a strategy's.
    """
    idle = [key for key in (*LIMITS, "use_ema") if config.get(key)]
    if not is_sure and idle and "use_ema" not in idle:
        for key in idle:
            out.doubt(
                key,
                f"{key} is set, but the source does not show whether it acted: DTensor's optimizers of TF 2.9"
                " ignored it, those under a tf.distribute strategy did not",
                confirm=f"{confirming(key, config[key])} or {confirming(key, None)}",
            )
        return dict(config)
    if idle:
        out.warnings.append(f"{', '.join(idle)}: removed, because DTensor's optimizers of this generation ignored them")
    return {key: value for key, value in config.items() if key not in idle}


def _check_known(limits: Mapping[str, float], releases: Releases, out: Arguments) -> None:
    """Warn about a `global_clipnorm` that no release of a source can have written."""
    limit, origin = limits.get("global_clipnorm"), out.origins.get("global_clipnorm")
    is_stated = origin is None or origin.kind in (FILE, HINT)
    if limit is not None and is_stated and facts.GLOBAL.of(releases) == facts.LACKS:
        out.doubt(
            "global_clipnorm",
            "global_clipnorm is set, but this generation does not have it: it is new in TF 2.4",
            confirm=f"{confirming('global_clipnorm', limit)} or {confirming('global_clipnorm', None)}",
        )


def _check_above_zero(limits: Mapping[str, float], releases: Releases, out: Arguments) -> None:
    """Refuse a limit of 0 or less if it may act. OptimizerV2 refuses limits below 0 (`optimizer_v2.py` 2.0 to 2.15).

    Raises:
      UnsupportedError: names the limit, unless the user set it for the next steps.
    """
    acts = facts.ZERO.may_be(facts.ZEROES, releases)
    for key, value in limits.items():
        origin = out.origins.get(key)
        if value <= 0 and acts and (origin is None or origin.kind != SET):
            zero = "with which this generation makes every gradient zero; optim cannot do that"
            raise UnsupportedError(
                f"{key} is {value:g} in the optimizer's config,"
                f" {'which this generation does not treat as no limit' if value else zero}. To continue without"
                f" a limit, use {confirming(key, None)}"
            )


def _may_be_idle(limits: Mapping[str, float], out: Arguments) -> None:
    """Warn about limits that `fit` or `apply_gradients` may have ignored. Releases with `global_clipnorm` never do."""
    if "global_clipnorm" in limits:
        return
    for key, value in limits.items():
        out.doubt(
            key,
            f"{key} is set, but the source does not show whether it acted: before TF 2.4 apply_gradients in a"
            " custom loop did not clip, and in TF 2.0 and 2.1 fit did not",
            confirm=f"{confirming(key, value)} or {confirming(key, None)}",
        )


def _clip_order(releases: Releases, out: Arguments) -> None:
    out.values["clip_order"] = facts.ORDER.assumed(releases) or facts.VALUE_FIRST
    out.doubt_fact(facts.ORDER, releases, "clipnorm and clipvalue are both set")


def _goes_for_all(limits: Mapping[str, float], releases: Releases, out: Arguments) -> bool:
    """Return whether `clipnorm` limited one norm over all gradients, as the release did it or as the user sets it."""
    answer, origin = facts.NORM.of(releases), out.origins.get("global_clipnorm")
    if answer is None and origin is not None and origin.kind == SET and "global_clipnorm" in limits:
        return True
    out.doubt_fact(facts.NORM, releases, "clipnorm is set", limits["clipnorm"])
    return answer == facts.ALL
