"""Read checkpoints of tf.train.Saver, which identify a tensor by its variable's name alone: `net/w`, `net/w/Adam_1`.

- `tf1`: optimizers of tf.train. Slots are named VARIABLE/OPTIMIZER, the second VARIABLE/OPTIMIZER_1
  (`training/slot_creator.py`); their order depends on the optimizer, see `algorithms.tf_train`.
- `optimizer_v2`: tf.keras 1.14 and 1.15 in graph mode, `training/OPTIMIZER/VARIABLE/SLOT`, `training/OPTIMIZER/iter`.
- `keras2.3`: `training/Adam/m_0_1`, the m of variable 0, under any name of that variable.
- `keras2`, `optimizer_v1`: `training/Adam/Variable_3` or `training/Variable_3`, in order of creation.
- `keras1`: everything is named `Variable_3`, see `graphs.keras1`.

`savers` has a file for each, with both kinds of Keras 2 in one; `savers.optimizers` chooses one of several optimizers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from migrate.algorithms import clipping
from migrate.bytes.arrays import LazyArray
from migrate.bytes.checkpoint_paths import require_prefix
from migrate.bytes.messages import some
from migrate.errors import DamagedFileError, UnknownFormatError
from migrate.facts.clipping import ALL, NORM
from migrate.generations import traits
from migrate.graphs import keras1, kernels, native_keras, optimizer_v2, plain_ops, saver, scopes, tf_train
from migrate.graphs.keras1 import Keras1Optimizer
from migrate.graphs.nodes import VARIABLES, Nodes
from migrate.graphs.plain_ops import Plain
from migrate.graphs.saver import SaverGraph
from migrate.graphs.writers import writers
from migrate.readers.bundle_arrays import doubts, keys_of, lazy, not_numbers
from migrate.readers.savers import keras as saver_keras
from migrate.readers.savers import optimizer_v2 as saver_v2
from migrate.readers.savers import optimizers as saver_optimizers
from migrate.readers.savers import plain_ops as saver_plain
from migrate.readers.savers import tf_train as saver_train
from migrate.readers.savers.parts import Parts, give_values, in_order, stored_variable
from migrate.releases.narrowing import candidates
from migrate.releases.recognition import NOTHING_NAMED
from migrate.releases.versions import Versions
from migrate.state import (
    CHANGED,
    CLIPPING,
    GATHERED,
    GLOBAL_STEP,
    LOST,
    NO_KERNEL,
    OPTIMIZER,
    OTHERS_GRAPH,
    UPDATES,
    Effects,
    Stored,
)
from optim.bytes.bundle import GRAPH_KEY, BundleReader, is_numeric
from optim.errors import HyperparameterError, UnsupportedError
from optim.slot_layout import METADATA_KEY

NAME = "tf1_saver"
TREES = "_serialized"
ROOT_COUNTER = "iterations"


def sniff(path: str) -> bool:
    """Whether `path` is a bundle without object graph."""
    keys = keys_of(path)
    return keys is not None and GRAPH_KEY not in keys and METADATA_KEY not in keys


def read(path: str, optimizer_path: str | None = None) -> Stored:
    """Return the content of a Saver checkpoint. Tensors stay in the file until they are used.

    Args:
      optimizer_path: which optimizer, by the scope of its step counter (Keras) or of its updates (tf.train).

    Raises:
      UnknownFormatError: another format. DamagedFileError: truncated or altered.
      AmbiguousError: several optimizers and no path. HyperparameterError: no optimizer of that path.
      UnsupportedError: meaningless names of Keras 1, without a graph that explains them.
    """
    prefix = require_prefix(path)
    bundle = BundleReader(prefix)
    if GRAPH_KEY in bundle:
        raise UnknownFormatError(f"{prefix} holds an object graph, so it was not written by tf.train.Saver")
    return read_bundle(bundle, NAME, saver.read(prefix), f"{prefix}.meta", optimizer_path)


def read_bundle(
    bundle: BundleReader, format_name: str, beside: SaverGraph | None, graph_file: str, optimizer_path: str | None
) -> Stored:
    """Do the same as `read` for an open bundle and its graph; also for a SavedModel of TensorFlow 1."""
    bundle.check_sizes()
    _check_trained(bundle)
    prefix = bundle.prefix
    everything = {key: lazy(bundle, key) for key, entry in bundle.items() if is_numeric(entry.dtype)}
    graph, strange = _own_graph(beside, graph_file, everything)
    _check_whole(bundle, graph, graph_file)
    everything, evidence = _named_arrays(bundle, everything, graph, graph_file)
    choice = _choose_optimizer(everything, graph, optimizer_path, prefix)
    arrays = {key: array for key, array in everything.items() if key not in choice.foreign}
    arrays = _with_counter(arrays, graph, choice.scopes)
    counter = next(iter(_counters(arrays)), None)
    arrays = saver_keras.counted_globally(arrays, counter, graph)
    plain = saver_plain.find(arrays, graph) if counter is None and choice.keras1 is None else None
    if len(choice.names) > 1:
        evidence.append(f"it holds {len(choice.names)} optimizers: {', '.join(choice.names)}")
    if choice.keras1 is not None:
        stored = _of_keras1(arrays, choice.keras1, graph)
    elif counter is None and len(scopes := saver_v2.counting_in_global_step(arrays)) == 1:
        stored = saver_v2.stored(arrays, f"{scopes[0]}/iter", graph)
    elif counter is None and graph is not None and plain is not None:
        stored = saver_plain.stored(arrays, graph, plain)
    elif counter is None:
        stored = saver_train.stored(arrays, graph)
        stored = replace(stored, slots=saver_train.numbered_anew(stored.slots)) if choice.chosen is not None else stored
    elif counter.endswith("/iter"):
        stored = saver_v2.stored(arrays, counter, graph)
    else:
        stored = saver_keras.stored(arrays, counter, graph, prefix)
    details = _program(graph, choice.scopes, stored, arrays, plain) if traits(stored.generation).has_slot_table else {}
    if graph is not None and graph.nodes is not None and traits(stored.generation).is_native:
        details = _native_keras_optimizer(graph, graph.nodes, stored, choice)
    outside = details.pop("outside", {})
    versions = Versions(tensorflow=graph.version if graph is not None else "")
    return Stored(
        format_name,
        stored.generation,
        (*evidence, stored.why),
        None,
        tuple(replace(v, trainable=False) if v.name in choice.untrained else v for v in stored.variables),
        slots=stored.slots,
        scalars=stored.scalars,
        weights=stored.weights,
        versions=versions,
        warnings=(*stored.warnings, *choice.warnings, *not_numbers(bundle), *_some_calls(graph)),
        doubts=doubts(bundle),
        matched={f"{slot}/{owner}": "name" for slot, per in stored.slots.items() for owner in per},
        unmapped={**stored.unmapped, **{key: everything[key] for key in sorted(choice.foreign)}},
        optimizers=choice.names,
        layers=stored.layers,
        effects=Effects.of({**outside, **_changed_settings(arrays, graph), **choice.outside, **strange}),
        **details,
    )


def _native_keras_optimizer(
    graph: SaverGraph, nodes: Nodes, stored: Parts, choice: saver_optimizers.Choice
) -> dict[str, Any]:
    trained = [v.name for v in stored.variables if v.trainable is not False]
    slots = [key for key, _ in stored.weights or ()]
    settings = {key: array.stored_as for key, array in stored.scalars.items()}
    versions = Versions(tensorflow=graph.version)
    limit = NORM.of(candidates(stored.generation or "", versions)) == ALL
    updates = native_keras.describe(nodes, settings, trained, slots, others=choice.foreign, is_of_all=limit)
    first = choice.keras1
    class_name, config = ("", {}) if first is None else (first.class_name, first.config)
    return {
        "graph_config": {"class_name": class_name or updates.class_name, "config": {**config, **updates.config}},
        "outside": updates.outside,
        "constrained": dict.fromkeys(updates.constrained, ""),
    }


def _named_arrays(
    bundle: BundleReader, arrays: dict[str, LazyArray], graph: SaverGraph | None, graph_file: str
) -> tuple[dict[str, LazyArray], list[str]]:
    evidence = [
        f"{bundle.prefix}.index has no object graph: tensors have names of variables, as tf.train.Saver keys them"
    ]
    if graph is None:
        return saver_train.out_of_scope(arrays), evidence
    evidence.append(f"{graph_file} is its graph, of TensorFlow {graph.version or '?'}")
    if not _is_of_keras(arrays, graph):
        give_values(arrays, graph)
    arrays, renamed = _arrays_by_variable(_wholes(bundle, arrays, graph.renamed), graph)
    return arrays, [*evidence, *renamed]


def _some_calls(graph: SaverGraph | None) -> Iterator[str]:
    for condition in graph.conditions if graph is not None and not graph.doubt else ():
        yield f"the graph updates variables only at calls chosen by {condition!r}: count them in the new program too"


def _with_counter(
    arrays: dict[str, LazyArray], graph: SaverGraph | None, updates: Collection[str]
) -> dict[str, LazyArray]:
    counter = scopes.counter(graph.nodes, updates) if updates and graph is not None and graph.nodes is not None else ""
    if not counter or graph is None or graph.nodes is None:
        return arrays
    graph.nodes.counter = counter
    return {GLOBAL_STEP if key == counter and GLOBAL_STEP not in arrays else key: a for key, a in arrays.items()}


SETTINGS = ("rho", "momentum", "beta_1", "beta_2", "decay", "schedule_decay")
"""Settings in variables that programs hardly ever change during training, unlike a learning rate."""


def _changed_settings(arrays: Mapping[str, LazyArray], graph: SaverGraph | None) -> dict[str, str]:
    nodes, changes = graph.nodes if graph is not None else None, {}
    for key, array in arrays.items() if nodes is not None else ():
        name = key.rpartition("/")[2]
        first = nodes.first_value(key) if nodes is not None and name in SETTINGS and array.shape == () else None
        if first is not None and array.number() != first:
            changes[name] = f"{key!r} is {array.number():.9g} in the checkpoint and began as {first:.9g} in its graph"
    return changes


def _check_trained(bundle: BundleReader) -> None:
    """Refuse boosted trees: `NAME_stamp` and `NAME_serialized` are a whole ensemble (ops/boosted_trees_ops.py 1.15)."""
    trees = [key for key, _ in bundle.items() if key.endswith(TREES) and f"{key.removesuffix(TREES)}_stamp" in bundle]
    if trees and not any(entry.dtype.startswith(("float", "bfloat")) for _, entry in bundle.items()):
        raise UnsupportedError(
            f"{bundle.prefix} holds an ensemble of trees ({trees[0]!r}), as BoostedTreesClassifier and -Regressor do:"
            " boosted trees have no optimizer state: keep using that TensorFlow, or retrain with another library"
        )


def _wholes(bundle: BundleReader, arrays: Mapping[str, LazyArray], renamed: Mapping[str, str]) -> dict[str, LazyArray]:
    """Rename the arrays without parts and scopes, and join slots whose parts have separate keys."""
    keys: dict[str, list[str]] = {}
    for key in arrays:
        keys.setdefault(renamed.get(key, key), []).append(key)
    for whole, parts in keys.items():
        if len(parts) > 1:
            bundle.join(parts, whole)
    return {whole: arrays[parts[0]] if len(parts) == 1 else lazy(bundle, whole) for whole, parts in keys.items()}


def _arrays_by_variable(arrays: Mapping[str, LazyArray], graph: SaverGraph) -> tuple[dict[str, LazyArray], list[str]]:
    saved_as = {key: variable for key, variable in graph.saved_as.items() if key in arrays}
    by_variable = {saved_as.get(key, key): array for key, array in arrays.items()}
    if not saved_as or len(by_variable) != len(arrays):
        return dict(arrays), []
    key, variable = next(iter(saved_as.items()))
    if set(saved_as) == set(saved_as.values()):
        return by_variable, [
            f"the graph shows a swapping_saver: {variable!r} is saved as {key!r} and the other way round: put back"
        ]
    return by_variable, [f"the graph shows that its Saver had custom names: {key!r} is the variable {variable!r}"]


def _program(
    graph: SaverGraph | None,
    scopes: Collection[str],
    stored: Parts,
    arrays: Mapping[str, LazyArray],
    plain: Plain | None,
) -> dict[str, Any]:
    """Read an optimizer of tf.train, or an OptimizerV2, from the graph.

    Args:
      scopes: of the updates of the chosen one of several tf.train optimizers. plain: the custom optimizer of plain
        ops.
    """
    if graph is None or graph.nodes is None:
        return {"graph_seen": False}
    try:
        if traits(stored.generation).has_configs:
            details = optimizer_v2.describe(graph.nodes, graph.updates, stored.scope)
        elif plain is not None:
            details = plain.trained
        elif set(plain_ops.BERTS_SLOTS.values()) <= stored.slots.keys():
            details = plain_ops.of_bert(graph.nodes, list(stored.slots[plain_ops.BERTS_SLOTS["m"]]))
        else:
            details = tf_train.describe(graph.nodes, graph.updates, scopes)
    except (LookupError, ValueError):  # an op lacks inputs: the graph is damaged
        return {"graph_seen": False}
    # If it shows all changes of gradients, there is no other limit on them.
    is_known = details.class_name is not None and details.outside.keys().isdisjoint({OPTIMIZER, CHANGED, CLIPPING})
    followed = details.seen or is_known
    config = {**(dict.fromkeys(clipping.LIMITS) if followed else {}), **details.config}
    return {
        "graph_config": {"class_name": details.class_name or "", "config": config}
        if details.class_name or config
        else None,
        "graph_seen": details.seen,
        "constrained": dict.fromkeys(details.constrained, ""),
        "sparse": None if details.sparse is None else frozenset(graph.parts.get(name, name) for name in details.sparse),
        "outside": {
            **details.outside,
            **(
                {}
                if details.class_name or details.outside
                else _without_kernels(stored, graph, details.sparse or (), scopes)
            ),
            **({UPDATES: graph.doubt} if graph.doubt else {}),
            **_lost(stored, graph, scopes),
            **_gathered(details.gathered, graph, arrays),
        },
    }


def _without_kernels(
    stored: Parts, graph: SaverGraph, sparse: Collection[str], scopes: Collection[str]
) -> dict[str, str]:
    """Warn if the graph trains, but not by a class of tf.train: custom slots may have the same names. Tables (`sparse`)
    are updated without kernels."""
    if graph.nodes is None or (graph.updates and traits(stored.generation).has_configs):
        return {}
    trained = {variable.name for variable in stored.variables if variable.trainable}
    updated = {variable for scope in scopes or graph.updates for variable in graph.updates[scope]}
    plain_variables = (updated or trained).difference(sparse)
    moved = next(((op, variable) for op, variable in writers(graph.nodes) if variable in plain_variables), None)
    text = "in the graph, and is no kernel of tf.train's optimizers: it is a custom rule"
    return {} if moved is None else {NO_KERNEL: f"{moved[0]!r} updates {moved[1]!r} {text}"}


def _lost(stored: Parts, graph: SaverGraph, scopes: Collection[str]) -> dict[str, str]:
    """Warn if the graph updates variables without slots in the checkpoint, although others have slots."""
    owned = {owner for per in stored.slots.values() for owner in per}
    names_ = {variable.name for variable in stored.variables}
    updated = {graph.parts.get(v, v) for scope in scopes or graph.updates for v in graph.updates.get(scope, ())}
    lost = sorted((updated & names_) - owned) if owned else []
    return (
        {LOST: f"{some(lost)}: trained in the graph, but without the slots that others have: these are lost"}
        if lost
        else {}
    )


def _gathered(names: Collection[str], graph: SaverGraph, arrays: Mapping[str, LazyArray]) -> dict[str, str]:
    """Warn if variables hold gradients that the next step would use."""
    wholes = (graph.parts.get(name, name) for name in sorted(names))
    left = next((name for name in wholes if name in arrays and np.any(arrays[name].load())), None)
    text = "holds gradients, which are not migrated: the next step uses them unless the program clears them before"
    return {} if left is None else {GATHERED: f"{left!r} {text}"}


def _own_graph(
    graph: SaverGraph | None, graph_file: str, arrays: Mapping[str, LazyArray]
) -> tuple[SaverGraph | None, dict[str, str]]:
    """Return the checkpoint's graph if it is whole and has the checkpoint's variables, else None and a warning."""
    if graph is None or graph.nodes is None:
        return graph, {}
    known = {name for name in graph.nodes.by_name if graph.nodes.op(name) in VARIABLES}
    known |= {name.rpartition("/part_")[0] for name in known if "/part_" in name} | graph.renamed.keys()
    lacking = [name for name in arrays if name not in known and name not in graph.saved_as]
    shapes = {key: graph.nodes.shape(name) for key, name in graph.saved_as.items() if key in arrays}
    others = [key for key, shape in shapes.items() if shape not in (None, arrays[key].shape)]
    if graph.cut:
        text = f"{graph_file} {graph.cut}: it is not as TensorFlow wrote it"
    elif lacking or others:
        has = f"has no variable {lacking[0]!r}" if lacking else f"gives what is saved as {others[0]!r} another shape"
        text = f"{graph_file} {has}: it is another program's, or the checkpoint is altered"
    else:
        return graph, {}
    away = ", or move the graph away if it is another's" if graph_file.endswith(".meta") else ""
    return None, {OTHERS_GRAPH: f"{text}; copy both again{away}"}


def _check_whole(bundle: BundleReader, graph: SaverGraph | None, graph_file: str) -> None:
    lacking = sorted(graph.keys - bundle.keys()) if graph is not None else []
    if lacking:
        raise DamagedFileError(
            f"{graph_file} shows that its Saver wrote {some([repr(key) for key in lacking], 1)}, which the checkpoint"
            " does not hold: slots are lost, or the graph is another program's; copy both again"
        )


def _choose_optimizer(
    arrays: Mapping[str, LazyArray], graph: SaverGraph | None, path: str | None, prefix: str
) -> saver_optimizers.Choice:
    counters = _counters(arrays)
    uncounted = saver_v2.counting_in_global_step(arrays)
    if not counters and _is_of_keras1(arrays, graph):
        return saver_optimizers.of_keras1(arrays, graph, path, prefix)
    if not counters and len(uncounted) < 2:
        return saver_optimizers.of_train(arrays, graph, path, prefix)
    if counters == [ROOT_COUNTER]:
        if f"{ROOT_COUNTER}_1" in arrays:
            raise UnsupportedError(
                f"{prefix} holds the settings of several optimizers of Keras 2.0 ({ROOT_COUNTER}, {ROOT_COUNTER}_1),"
                " whose slots have no names; migrate the .h5 of model.save, which holds one optimizer"
            )
        if path is not None:
            raise HyperparameterError(f"{prefix} holds one optimizer, which has no name; leave out --optimizer")
        return saver_optimizers.Choice()
    slots = [key for key in arrays if saver_keras.is_slot(key)]
    scopes = [*(key.rpartition("/")[0] for key in counters), *uncounted]
    compiled = {key.rpartition("/")[0] for key in slots}
    if len(scopes) == 1 and len(compiled) > 1:
        return saver_optimizers.of_compiles(slots, scopes[0], graph, path, prefix)
    return saver_optimizers.of_keras(arrays, scopes, slots, graph, path, prefix)


def _is_of_keras(arrays: Mapping[str, LazyArray], graph: SaverGraph) -> bool:
    """Whether there is an optimizer of Keras, whose settings are variables with known names."""
    return bool(_counters(arrays) or saver_v2.counting_in_global_step(arrays) or _is_of_keras1(arrays, graph))


def _is_of_keras1(arrays: Mapping[str, LazyArray], graph: SaverGraph | None) -> bool:
    """Whether unnamed scalars are settings of Keras 1, not a tf.train program's own, such as its step or rate."""
    if not keras1.is_keras1(arrays):
        return False
    if graph is not None and graph.nodes is not None and graph.updates:
        return bool(keras1.find(arrays, graph.nodes)[0])
    return not any(saver_train.owner_of(key, arrays)[1] in kernels.CALLED for key in arrays)


def _counters(arrays: Mapping[str, LazyArray]) -> list[str]:
    """Keys of Keras optimizers' step counters, which are next to other hyperparameters. Empty for tf.train."""
    beside = ("learning_rate", "lr", "decay")
    return [
        key
        for key, array in arrays.items()
        if key.rpartition("/")[2] in ("iter", "iterations")
        and array.shape == ()
        and any(f"{key.rpartition('/')[0]}/{name}".lstrip("/") in arrays for name in beside)
    ]


def _of_keras1(arrays: Mapping[str, LazyArray], optimizer: Keras1Optimizer, graph: SaverGraph | None) -> Parts:
    """Name Keras 1's unnamed variables by their use in the graph."""
    others = in_order([key for key in arrays if key not in (*optimizer.state, *optimizer.trained)], graph)
    variables = [stored_variable(name, arrays[name], True) for name in optimizer.trained]
    variables += [stored_variable(name, arrays[name], False) for name in others]
    return Parts(
        NOTHING_NAMED,
        f"variables are unnamed, as in Keras 1; updates in the graph read the same variables as {optimizer.class_name},"
        " and show which slots belong to which variable",
        tuple(variables),
        {},
        {name: arrays[key] for name, key in optimizer.scalars.items()},
        tuple((key, arrays[key]) for key in optimizer.slots),
    )
