"""Read Saver checkpoints of tf.train's optimizers: slots are named after their variable and their optimizer."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from migrate.bytes.arrays import LazyArray
from migrate.errors import DamagedFileError
from migrate.graphs import kernels, scopes
from migrate.graphs.saver import SaverGraph
from migrate.readers.savers.parts import Parts, in_order, variables_of
from migrate.releases.recognition import SLOTS_NAMED_AFTER_CLASSES
from migrate.state import GLOBAL_STEP
from optim.errors import UnsupportedError

AVERAGES = "ExponentialMovingAverage"
_FACTORS = ("adafactor_vr", "adafactor_vc")
"""Suffixes of Grover's Adafactor (`lm/optimization_adafactor.py`): of a matrix, of rows and of columns."""
_COUNTED = re.compile(r"(.+?)_([1-9]\d*)")


def stored(arrays: Mapping[str, LazyArray], graph: SaverGraph | None) -> Parts:
    """Name slots by the part after their variable's name; the config shows which optimizer's they are."""
    owners = {key: owner_of(key, arrays) for key in arrays}
    variables = set(graph.trainable or ()) if graph is not None else set()
    variables |= {owner for owner, _ in owners.values() if owner is not None}
    inside = {key: parts for key, parts in owners.items() if parts[0] is not None and key not in variables}
    slots: dict[str, dict[str, LazyArray]] = {}
    averages = {key: arrays[key] for key, (_, suffix) in inside.items() if suffix == AVERAGES}
    for key, (owner, suffix) in inside.items():
        if key not in averages:
            slots.setdefault(suffix, {})[owner or ""] = arrays[key]
    rest = {key: array for key, array in arrays.items() if key not in inside}
    _check_owned(rest.keys() - variables, slots, arrays)
    scalars = {key: array for key, array in rest.items() if _is_scalar(key, array)}
    names = in_order([key for key in rest if key not in scalars], graph)
    shown = next((f"{owner}/{suffix}" for suffix, per in slots.items() for owner in per), None)
    warnings: tuple[str, ...] = ()
    if averages:
        warnings = (f"{len(averages)} moving averages ({next(iter(averages))}, ...) are no slots: unmapped",)
    return Parts(
        SLOTS_NAMED_AFTER_CLASSES,
        f"slots are called as those of tf.train optimizers, {shown!r}" if shown else "it holds no slots",
        variables_of(arrays, names, graph),
        slots,
        scalars,
        warnings=warnings,
        unmapped=averages,
    )


def out_of_scope(arrays: Mapping[str, LazyArray]) -> dict[str, LazyArray]:
    """Rename slots of `minimize` in a variable scope, `train/net/w/Adam`, as without one."""
    called = {f"{name}{number}" for name in kernels.CALLED for number in ("", "_1", "_2")}
    plain = scopes.without_graph({key: array.shape for key, array in arrays.items()}, called)
    return {plain.get(key, key): array for key, array in arrays.items()}


def numbered_anew(slots: Mapping[str, Mapping[str, LazyArray]]) -> dict[str, dict[str, LazyArray]]:
    """Rename the slots of one of several optimizers as if it were the only one: `w/Adam_2` and `w/Adam_3` are the third
    and fourth slot of `w`, and the chosen optimizer's first two."""
    renumbered: dict[str, dict[str, LazyArray]] = {}
    owned: dict[tuple[str, str], list[tuple[int, LazyArray]]] = {}
    for suffix, per in slots.items():
        base, number = match.groups() if (match := _COUNTED.fullmatch(suffix)) else (suffix, None)
        for owner, array in per.items():
            owned.setdefault((owner, base), []).append((int(number or 0), array))
    for (owner, base), arrays in owned.items():
        for i, (_, array) in enumerate(sorted(arrays, key=lambda pair: pair[0])):
            renumbered.setdefault(f"{base}_{i}" if i else base, {})[owner] = array
    return renumbered


def owner_of(key: str, arrays: Mapping[str, LazyArray]) -> tuple[str | None, str]:
    """The variable whose name `key` begins with, the longest one of that shape, and the rest of the key."""
    parts = key.split("/")
    for end in range(len(parts) - 1, 0, -1):
        owner = "/".join(parts[:end])
        if owner in arrays and arrays[owner].shape == arrays[key].shape:
            return owner, "/".join(parts[end:])
    return None, ""


def _check_owned(keys: Iterable[str], slots: Collection[str], arrays: Mapping[str, LazyArray]) -> None:
    """Refuse arrays named like slots of a variable that is missing, or slots of a class that gives them another shape
    than their variable."""
    for key in sorted(keys):
        suffix = next((suffix for suffix in (*slots, *_FACTORS) if key.endswith(f"/{suffix}")), None)
        owner = key.removesuffix(f"/{suffix}")
        if suffix is not None and owner not in arrays:
            raise DamagedFileError(f"{key!r} is called as a slot of {owner!r}, which is not there; save both")
        if suffix is not None:
            raise UnsupportedError(
                f"{key!r} is called as a slot of {owner!r}, and its shape is {arrays[key].shape} and not"
                f" {arrays[owner].shape}: no optimizer of tf.train keeps such slots; Adafactor of Tensor2Tensor and"
                " of Grover and ShampooOptimizer of tf.contrib.opt do, whose rules are not known here:"
                " tf.train.load_checkpoint still reads the weights, so that you can restart the optimizer. With"
                " another optimizer the checkpoint is damaged: copy it again"
            )


def _is_scalar(key: str, array: LazyArray) -> bool:
    counts = key == GLOBAL_STEP or not array.dtype.startswith(("float", "bfloat", "complex"))  # tflearn's is a float
    return array.shape == () and (counts or re.search(r"(^|/)beta[12]_power(_\d+)?$", key) is not None)
