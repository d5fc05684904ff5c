"""Read Saver checkpoints of OptimizerV2 in graph mode: `matching.by_name` reads slot and variable from names."""

from __future__ import annotations

import re
from collections.abc import Mapping

from migrate.bytes.arrays import LazyArray
from migrate.graphs.saver import SaverGraph
from migrate.readers.savers.parts import Parts, in_order, variables_of
from migrate.releases.recognition import COUNTER_NAMED_ITER
from migrate.state import GLOBAL_STEP


def stored(arrays: Mapping[str, LazyArray], counter: str, graph: SaverGraph | None) -> Parts:
    """Return slots in the order of the optimizer's list, its counter, and the variables."""
    scope = counter.removesuffix("iter")
    arrays = _in_scope(arrays, scope)
    names = [key for key in arrays if not key.startswith(scope)]
    scalars = {n: arrays[n] for n in names if arrays[n].shape == () and n == GLOBAL_STEP}
    variables = in_order([n for n in names if n not in scalars], graph)
    if counter not in arrays:
        scalars = {"iter": scalars[GLOBAL_STEP]}
    place = {f"{scope}{name}": i for i, name in enumerate(variables)}
    slots = sorted((k for k in arrays if k.startswith(scope)), key=lambda k: place.get(k.rpartition("/")[0], -1))
    weights = tuple((key, arrays[key]) for key in slots)
    return Parts(
        COUNTER_NAMED_ITER,
        f"the step counter is called {counter!r}, as OptimizerV2 does in graph mode"
        if counter in arrays
        else "an OptimizerV2 in graph mode that counts in global_step, as in an Estimator",
        variables_of(arrays, variables, graph),
        {},
        scalars,
        weights,
        scope=scope.removesuffix("/"),
    )


def _in_scope(arrays: Mapping[str, LazyArray], scope: str) -> dict[str, LazyArray]:
    """Add slots of layers that became trainable later and were compiled with the same optimizer. They are named
    `training_2/Adam/dense/kernel/m`, and the counter `training/Adam/iter`."""
    called = scope.removesuffix("/").rpartition("/")[2]
    renamed: dict[str, LazyArray] = {}
    for key, array in arrays.items():
        again = re.fullmatch(rf"training(?:_\d+)?/{re.escape(called)}/(.+)/(\w+)", key)
        owner = arrays.get(again.group(1)) if again is not None else None
        late = owner is not None and owner.shape == array.shape
        renamed[f"{scope}{again.group(1)}/{again.group(2)}" if again is not None and late else key] = array
    return renamed if len(renamed) == len(arrays) else dict(arrays)


def counting_in_global_step(arrays: Mapping[str, LazyArray]) -> list[str]:
    """Scopes of OptimizerV2 in an Estimator, which makes it count in `global_step`."""
    if GLOBAL_STEP not in arrays:
        return []
    candidates = [key.rpartition("/")[0] for key in arrays if key.endswith("/decay") and arrays[key].shape == ()]
    return [scope for scope in candidates if f"{scope}/iter" not in arrays]  # a schedule is no variable, a rate is
