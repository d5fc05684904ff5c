"""Whether a target equals a new migration of its source, so that `resume` can skip it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from migrate.batches import model_target
from migrate.bytes.arrays import LazyArray
from migrate.bytes.checkpoint_paths import find_prefix
from migrate.bytes.object_graph import ObjectGraph
from migrate.claims import remembered, to_remember
from migrate.conversion import convert
from migrate.conversion.partial import Choice
from migrate.evidence.user_input.hints import Hints
from migrate.lists.planning import for_list, plan
from migrate.proof import documents
from migrate.readers import weight_list
from migrate.state import OptimizerState
from optim.bytes.bundle import GRAPH_KEY, BundleReader
from optim.errors import DtoptError
from optim.slot_layout import SAVE_COUNTER_KEY

HINTS = tuple(Hints.__annotations__)
PARTIAL = ("fresh", "grown", "weights_only")
"""Options of `migrate_checkpoint` that select a part of the source."""


def is_whole(source: str, dest: str, options: Mapping[str, Any]) -> bool:
    """Whether `dest` is what migrating the source would write. A strict run requires more than a complete target."""
    hints = Hints(**{key: options[key] for key in HINTS if key in options})  # type: ignore[typeddict-item]
    state = convert.read_part(source, options["to"], Choice.of(*(options.get(key, ()) for key in PARTIAL)), hints)
    if options["to"] == "list":
        return _is_whole_list(dest, for_list(state, options["order"]), options)
    if options["to"] in ("keras", "tf-keras"):
        return _is_whole_model(dest, state, options)
    if options.get("strict") and state.fidelity != "exact":
        return False
    try:
        target = convert.read(dest, format="slots")
        return _has_graph(dest) and set(state.reasons) <= set(target.reasons) and _same_state(target, state)
    except (DtoptError, OSError):
        return False


def _has_graph(dest: str) -> bool:
    """Whether a slot-variable checkpoint has the object graph of its keys and TensorFlow's counter, and names no other
    state.

    Raises:
      DtoptError, OSError: it is damaged, or not dtopt's.
    """
    bundle = BundleReader(find_prefix(dest) or dest)
    if GRAPH_KEY not in bundle or not documents.names_state(dest, bundle.prefix):
        return False
    bundle.load(SAVE_COUNTER_KEY)
    ObjectGraph(bundle)
    return True


def _is_whole_model(dest: str, state: OptimizerState, options: Mapping[str, Any]) -> bool:
    writer = model_target.writer_of("keras" if options["to"] == "keras" else "h5")
    in_target = writer.converted(state)[0]
    if options.get("strict") and in_target.fidelity != "exact":
        return False
    try:
        target = convert.read(dest)
        doubts = remembered(to_remember(in_target.origins))
        same_words = target.source is not None and target.source.doubts == doubts
        same_words = same_words and documents.are_same(dest, writer.described(state))
        return same_words and not any(model_target.differences(state, target, writer))
    except (DtoptError, OSError, ValueError):  # invalid JSON
        return False


def _is_whole_list(dest: str, state: OptimizerState, options: Mapping[str, Any]) -> bool:
    if options.get("strict") and state.fidelity != "exact":
        return False
    expected = plan(state, options["order"]).arrays
    try:
        arrays = [array for _, array in weight_list.read(dest).weights or ()]
        same = [(a.shape, a.dtype) for a in arrays] == [(a.shape, a.dtype) for a in expected]
        return same and all(map(_same_array, arrays, expected))
    except (DtoptError, OSError):
        return False


def _same_state(a: OptimizerState, b: OptimizerState) -> bool:
    return _text_without_values(a) == _text_without_values(b) and all(map(_same_array, _arrays(a), _arrays(b)))


def _text_without_values(state: OptimizerState) -> str:
    arrays = [(a.shape, a.dtype) for a in _arrays(state)]
    variables = [(v.name, v.shape, v.dtype, bool(v.trainable), v.array is not None) for v in state.variables]
    slots = sorted((slot, sorted(owners)) for slot, owners in state.slots.items())
    config = {"name": state.algorithm, **state.hyperparameters}
    scalars = {name: float(value) for name, value in state.scalars.items()}
    parts = [state.algorithm, config, state.iterations, scalars, variables, slots, sorted(state.unmapped), arrays]
    parts += [state.parts.fresh, state.parts.grown]
    return json.dumps(parts, sort_keys=True)


def _arrays(state: OptimizerState) -> list[LazyArray]:
    slots = [state.slots[slot][name] for slot in sorted(state.slots) for name in sorted(state.slots[slot])]
    variables = [v.array for v in state.variables if v.array is not None]
    return [*slots, *variables, *(state.unmapped[name] for name in sorted(state.unmapped))]


def _same_array(a: LazyArray, b: LazyArray) -> bool:
    one, other = np.asarray(a.load()), np.asarray(b.load())
    if one.dtype.hasobject or other.dtype.hasobject:
        return bool(np.array_equal(one, other))
    little = [x.astype(x.dtype.newbyteorder("<"), copy=False) for x in (one, other)]
    return little[0].tobytes() == little[1].tobytes()
