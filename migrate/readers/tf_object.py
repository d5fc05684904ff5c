"""TF2 object-based checkpoints: `tf.train.Checkpoint`, `model.save_weights("w")`, DTensorCheckpoint.

The object graph shows what each tensor is; keys are never parsed. Slots are attached differently by generation:

- `optimizer_v2`: the optimizer's `slot_variables` table (variable, slot, slot variable).
- `experimental` (2.9, 2.10 and DTensor), `optimizer` (2.11+), `keras3`: lists of the optimizer, one per slot
  (`_momentums`, `_accumulated_grads`, ...), the i-th for the i-th variable.
"""

from __future__ import annotations

from collections.abc import Sequence

from migrate.bytes.checkpoint_paths import require_prefix
from migrate.bytes.object_graph import ObjectGraph
from migrate.errors import UnknownFormatError
from migrate.generations import traits
from migrate.matching.slot_owners import Owner
from migrate.readers import branches
from migrate.readers.bundle_arrays import doubts, keys_of, not_numbers
from migrate.readers.objects import optimizers as object_optimizers
from migrate.readers.objects import slots as object_slots
from migrate.readers.objects import variables as object_variables
from migrate.readers.objects import writers as object_writers
from migrate.readers.objects.optimizers import GraphOptimizer
from migrate.readers.objects.slots import OptimizerContents
from migrate.state import Effects, Stored
from optim.bytes.bundle import GRAPH_KEY, BundleReader
from optim.errors import UnsupportedError
from optim.slot_layout import METADATA_KEY

NAME = "tf_object"


def sniff(path: str) -> bool:
    """Whether `path` is a TF2 object-based checkpoint, even if damaged, and not one of dtopt's own."""
    keys = keys_of(path)
    return keys is not None and GRAPH_KEY in keys and METADATA_KEY not in keys


def read(path: str, optimizer_path: str | None = None) -> Stored:
    """Return the content of a checkpoint. Tensors stay in the file until they are used.

    Args:
      path: prefix, `.index` file, or folder with a file `checkpoint`.
      optimizer_path: the names that lead to the optimizer from the root of the object graph, joined by dots.

    Raises:
      UnknownFormatError: no object-based checkpoint.
      AmbiguousError: more than one optimizer and no path, or slots that fit more than one variable.
      HyperparameterError: no optimizer at that path. UnsupportedError: an optimizer of Sonnet.
      DamagedFileError, ContradictionError: truncated or altered.
    """
    prefix = require_prefix(path)
    return read_bundle(BundleReader(prefix), NAME, optimizer_path)


def read_bundle(bundle: BundleReader, format_name: str, optimizer_path: str | None = None) -> Stored:
    """Do the same as `read` for an open bundle."""
    graph = graph_of(bundle)
    return stored(bundle, graph, object_optimizers.find(graph), format_name, optimizer_path)


def graph_of(bundle: BundleReader) -> ObjectGraph:
    """The objects of a bundle, checked. Raises like `read`."""
    if GRAPH_KEY not in bundle:
        raise UnknownFormatError(
            f"{bundle.prefix} has no object graph: it was written by tf.train.Saver or by name, not by"
            " tf.train.Checkpoint"
        )
    bundle.check_sizes()
    graph = ObjectGraph(bundle)
    object_variables.check_names(graph, bundle.prefix)
    return graph


def stored(
    bundle: BundleReader,
    graph: ObjectGraph,
    every: Sequence[GraphOptimizer],
    format_name: str,
    optimizer_path: str | None,
) -> Stored:
    """Return the content of a bundle with known objects and optimizers, also of the variables of a SavedModel."""
    optimizer = object_optimizers.choose(every, optimizer_path, bundle.prefix)
    owners = object_variables.owners(graph, bundle, every)
    evidence = f"{bundle.prefix}.index holds an object graph ({len(graph)} objects)"
    if optimizer is None:
        return _variables_alone(graph, bundle, owners, evidence, format_name)
    generation, why = object_writers.generation(graph, optimizer.node)
    contents = object_slots.find(graph, bundle, optimizer, generation, owners)
    paths = [optimizer.name for optimizer in every]
    foreign = object_variables.trained_by(graph, owners, [other for other in every if other is not optimizer])
    variables = contents.alone or object_variables.stored(
        graph, bundle, owners, contents.trained(owners, generation), foreign
    )
    unmapped = contents.unplaced(owners)
    scales = optimizer.wrappers or "loss_scale" in graph.children[optimizer.node]  # within it, in TF 2.11 to 2.13
    return Stored(
        format=format_name,
        generation=generation,
        evidence=(
            evidence,
            f"optimizer at {optimizer.name}: {why}",
            *([f"it holds {len(every)} optimizers: {object_optimizers.listed(paths)}"] if len(every) > 1 else []),
            *object_writers.naming(graph, optimizer.node),
            *contents.evidence,
        ),
        optimizer_config=None,
        variables=variables,
        nameless=contents.nameless,
        twins=contents.twins,
        slots=contents.slots,
        scalars=contents.scalars,
        weights=contents.weights,
        versions=object_writers.release(graph, optimizer.node, generation, bundle.shards),
        warnings=(*_no_slots(contents, generation), *not_numbers(bundle)),
        doubts=doubts(bundle),
        matched=contents.matched,
        unmapped=unmapped,
        effects=Effects.of(
            {
                **({} if scales else branches.on_condition(object_writers.called(graph, optimizer.node))),
                **object_variables.gathering(owners, variables, unmapped, every),
            }
        ),
        optimizers=tuple(paths),
        optimizer_name=object_writers.name(graph, optimizer.node),
    )


def _variables_alone(
    graph: ObjectGraph, bundle: BundleReader, owners: Sequence[Owner], evidence: str, format_name: str
) -> Stored:
    if not owners:
        raise UnsupportedError(
            f"{bundle.prefix} holds neither variables nor the state of an optimizer: a"
            " tf.train.Checkpoint(optimizer=...) without its model saves no slots of tf.train's optimizers; migrate one"
            " that has the model"
        )
    another = object_optimizers.of_sonnet(graph)
    if another:
        raise UnsupportedError(
            f"{bundle.prefix}: {another}, whose rule is not known here; tf.train.load_checkpoint reads its slots and"
            " the weights, so that you can restart the optimizer"
        )
    return Stored(
        format=format_name,
        generation=None,
        evidence=(evidence,),
        optimizer_config=None,
        variables=object_variables.stored(graph, bundle, owners),
        warnings=("the checkpoint holds no optimizer, only variables", *not_numbers(bundle)),
        unmapped=object_slots.OptimizerContents(graph, bundle).unplaced(owners),
    )


def _no_slots(contents: OptimizerContents, generation: str) -> list[str]:
    if contents.slots or contents.weights is not None:
        return []
    if traits(generation).has_slot_table:
        return [
            "the optimizer has no slots here: OptimizerV2 and tf.train save them only together with their variables,"
            " so a tf.train.Checkpoint(optimizer=...) without the model lost them; or it needs no slots, as plain SGD"
        ]
    return ["the optimizer has no slots here: it needs no slots, as plain SGD, or took no step yet"]
