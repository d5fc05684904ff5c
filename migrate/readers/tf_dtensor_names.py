"""Checkpoints of `dtensor.name_based_save`: no object graph, each tensor under its variable's name.

DTensor variables are called `name:0@id`; slots of the DTensor optimizers of TF 2.9-2.12 `Adam/m/name`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from migrate.bytes.arrays import LazyArray
from migrate.bytes.checkpoint_paths import require_prefix
from migrate.errors import AmbiguousError, DamagedFileError, UnknownFormatError
from migrate.readers.bundle_arrays import keys_of, lazy
from migrate.releases.recognition import SLOTS_NAMED_BEFORE_VARIABLES
from migrate.releases.versions import YES, Versions
from migrate.state import Stored, StoredVariable
from optim.bytes.bundle import GRAPH_KEY, BundleReader

NAME = "tf_dtensor_names"
_DECORATION = re.compile(r"(:\d+)?(@\d+)?$")
_COUNTERS = ("iteration", "iterations", "_iterations")


def sniff(path: str) -> bool:
    """Whether `path` is a bundle with DTensor's names and without object graph."""
    keys = keys_of(path)
    return keys is not None and GRAPH_KEY not in keys and any(re.search(r":\d+(@\d+)?$", key) for key in keys)


def read(path: str) -> Stored:
    """Return the content of a name-based DTensor checkpoint. Tensors stay in the file until they are used.

    Raises:
      UnknownFormatError: another format. AmbiguousError: two tensors have one name.
      DamagedFileError: truncated or altered.
    """
    prefix = require_prefix(path)
    bundle = BundleReader(prefix)
    if GRAPH_KEY in bundle:
        raise UnknownFormatError(f"{prefix} holds an object graph, so it is no name-based checkpoint")
    bundle.check_sizes()
    arrays: dict[str, LazyArray] = {}
    for key in bundle:
        name = _DECORATION.sub("", key)
        if name in arrays:
            raise AmbiguousError(f"{prefix} holds two tensors named {name!r}: {arrays[name].stored_as!r} and {key!r}")
        arrays[name] = lazy(bundle, key)
    slots, owned, optimizer = _slots(arrays, prefix)
    used = {a.stored_as for per in slots.values() for a in per.values()}
    scalars = {name: a for name, a in arrays.items() if a.stored_as not in used and _is_scalar(name, a, owned)}
    scalars = {("_iterations" if name in _COUNTERS else name): a for name, a in scalars.items()}
    rest = [n for n, a in arrays.items() if a.stored_as not in used | {s.stored_as for s in scalars.values()}]
    variables = sorted(rest, key=lambda n: (n not in owned, owned.get(n, 0)))
    return Stored(
        format=NAME,
        generation=SLOTS_NAMED_BEFORE_VARIABLES,
        evidence=(
            f"{prefix}.index has no object graph, and names such as {min(used or bundle, default='')!r}",
            "DTensor's optimizers of TF 2.9-2.12 name a slot OPTIMIZER/SLOT/VARIABLE",
        ),
        optimizer_config=None,
        variables=tuple(
            StoredVariable(n, arrays[n], arrays[n].shape, arrays[n].dtype, True if n in owned else None)
            for n in variables
        ),
        slots=slots,
        scalars=scalars,
        optimizer_name=optimizer,
        versions=Versions(dtensor=YES),
        matched={f"{slot}/{name}": "name" for slot, owners in slots.items() for name in owners},
        warnings=()
        if slots
        else ("the checkpoint holds no slots: no name in it has the form OPTIMIZER/SLOT/VARIABLE",),
    )


def _slots(
    arrays: dict[str, LazyArray], prefix: str
) -> tuple[dict[str, dict[str, LazyArray]], dict[str, int], str | None]:
    """Return slots by name and variable, the place of each variable in the optimizer's order, and the source of the
    order.

    Raises:
      AmbiguousError: two optimizers have slots.
    """
    slots: dict[str, dict[str, LazyArray]] = {}
    order: dict[str, int] = {}
    scopes: set[str] = set()
    for name, array in arrays.items():
        optimizer, slot, variable = _name_parts(name)
        if variable in arrays:
            scopes.add(f"{optimizer}/{slot}")
            slots.setdefault(slot, {})[variable] = array
            number = re.search(r"@(\d+)$", array.stored_as)
            place = int(number.group(1)) if number else len(order)
            order[variable] = min(place, order.get(variable, place))
    _check_owned(arrays, scopes)
    called = sorted({scope.split("/")[0] for scope in scopes})
    if len(called) > 1:
        raise AmbiguousError(
            f"{prefix} holds slots of {len(called)} optimizers, {', '.join(called)}, and names alone do not show"
            " whose counter and learning rate the others are: save each optimizer in its own checkpoint"
        )
    return slots, order, called[0] if called else None


def _name_parts(name: str) -> list[str]:
    parts = name.split("/", 2)
    return parts if len(parts) == 3 else ["", "", ""]


def _check_owned(arrays: Mapping[str, LazyArray], scopes: Collection[str]) -> None:
    """Refuse arrays named like slots of a variable that is missing."""
    for name in arrays:
        optimizer, slot, variable = _name_parts(name)
        if f"{optimizer}/{slot}" in scopes and variable not in arrays:
            raise DamagedFileError(f"{name!r} is called as a slot of {variable!r}, which is not there; save both")
        inner = next((scope for scope in scopes if f"/{scope}/" in name), None)
        if inner is not None:
            raise DamagedFileError(f"{name!r} is called as a slot of {inner!r} and something before it; save again")


def _is_scalar(name: str, array: LazyArray, owned: dict[str, int]) -> bool:
    return array.shape == () and name not in owned
