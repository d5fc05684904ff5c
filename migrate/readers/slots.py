"""Read the slot-variable layout, docs/formats/slot-variables.md, which dtopt itself writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from migrate.bytes import checkpoint_paths
from migrate.bytes.arrays import LazyArray
from migrate.claims import UNINTERPRETED, Origin
from migrate.errors import DamagedFileError
from migrate.readers import slot_dtypes, slot_groups
from migrate.readers.bundle_arrays import lazy
from migrate.state import OptimizerState, Parts, Stored, StoredVariable
from optim import slot_layout
from optim.bytes import files, urls
from optim.bytes.bundle import BundleReader
from optim.errors import CheckpointError

NAME = "slots"


def sniff(path: str) -> bool:
    """Whether `path` is a folder (or a prefix in one) with a state of this layout in it."""
    try:
        return slot_layout.METADATA_KEY in BundleReader(_prefix(path))
    except CheckpointError:
        return False


def _opened(path: str) -> tuple[BundleReader, slot_layout.Metadata]:
    bundle = BundleReader(_prefix(path))
    if slot_layout.METADATA_KEY not in bundle:
        raise CheckpointError(f"{path} is a TensorFlow checkpoint, but not of the slot-variable layout")
    bundle.check_sizes()
    try:
        text = bundle.load_bytes(slot_layout.METADATA_KEY).decode()
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"{path}: its metadata is not UTF-8; migrate or save it again") from error
    metadata = slot_layout.Metadata.from_json(text, path)
    metadata.compare_keys({key: entry.shape for key, entry in bundle.items()}, path)
    return bundle, metadata


def _prefix(path: str) -> str:
    if urls.is_url(path):
        return checkpoint_paths.find_prefix(path) or path
    if files.is_folder(path):
        return slot_layout.current_prefix(path)
    return path.removesuffix(".index")


def groups(path: str) -> tuple[list[str], tuple[StoredVariable, ...]]:
    """Return the paths of the groups of an `optim.Groups`, and the variables of all; of another state nothing.

    Raises:
      CheckpointError: as `read`.
    """
    bundle, metadata = _opened(path)
    return slot_groups.paths(metadata, path), tuple(_variable(bundle, v, path) for v in metadata.variables)


def read(path: str, optimizer_path: str | None = None) -> OptimizerState:
    """Return the state of a slot-variable checkpoint; arrays stay in the file until they are used.

    Args:
      path: the folder, or the prefix of a state in it. optimizer_path: which group, of an `optim.Groups`.

    Raises:
      AmbiguousError, HyperparameterError: as `slot_groups.choose`.
      CheckpointError: not this layout, or its tensors are not those in its metadata.
      DamagedFileError: truncated or altered.
    """
    bundle, metadata = _opened(path)
    alone = slot_groups.doubts(metadata)
    metadata, prefix = slot_groups.choose(metadata, optimizer_path, path)
    variables = tuple(_variable(bundle, v, path) for v in metadata.variables)
    slots = {
        slot: {name: lazy(bundle, slot_layout.slot_key(slot, name)) for name in owners}
        for slot, owners in metadata.slots.items()
    }
    config, origins = metadata.config, (*_origins(metadata), *alone)
    if (few_bits := config.get(slot_dtypes.OPTION)) is not None:
        slots, config = slot_dtypes.in_float32(slots), slot_dtypes.without(config)
        origins += (slot_dtypes.doubt(str(few_bits), slots),)
        metadata = replace(metadata, config=config)
    scalars = _scalars(bundle, prefix)
    iterations = scalars.pop(slot_layout.ITERATIONS)
    scalars.pop(slot_layout.LEARNING_RATE, None)
    return OptimizerState(
        algorithm=metadata.class_name,
        hyperparameters=config,
        iterations=int(iterations),
        iterations_source=slot_layout.scalar_key(slot_layout.ITERATIONS),
        slots=slots,
        variables=variables,
        scalars=scalars,
        unmapped=_tensors_below(bundle, "unmapped/"),
        matched={f"{slot}/{name}": "name" for slot, owners in slots.items() for name in owners},
        source=_source(metadata, variables, path),
        origins=origins,
        parts=Parts(
            tuple(v.name for v in metadata.variables if v.fresh == slot_layout.WHOLE),
            tuple(v.name for v in metadata.variables if v.fresh == slot_layout.ADDED),
        ),
    )


def _origins(metadata: slot_layout.Metadata) -> tuple[Origin, ...]:
    """Values that were uncertain in the migration stay uncertain."""
    reasons = metadata.provenance.get("reasons")
    texts = [str(reason) for reason in reasons] if isinstance(reasons, list) else []
    return tuple(Origin("migrated state", None, UNINTERPRETED, doubt=text) for text in texts)


def _variable(bundle: BundleReader, entry: slot_layout.VariableEntry, path: str) -> StoredVariable:
    array = lazy(bundle, slot_layout.variable_key(entry.name)) if entry.stored else None
    if array is not None and array.dtype != entry.dtype:
        raise CheckpointError(f"{path} is damaged: {entry.name} is {array.dtype}, its table has {entry.dtype}")
    return StoredVariable(entry.name, array, entry.shape, entry.dtype, entry.trainable)


def _tensors_below(bundle: BundleReader, prefix: str) -> dict[str, LazyArray]:
    return {
        slot_layout.unescape(key[len(prefix) :].removesuffix(slot_layout.VALUE_SUFFIX)): lazy(bundle, key)
        for key in bundle
        if key.startswith(prefix) and key.endswith(slot_layout.VALUE_SUFFIX)
    }


def _scalars(bundle: BundleReader, prefix: str = "") -> dict[str, float]:
    """Those of the optimizer; with a prefix those of one group, under their own names, and those of all groups."""
    below = _tensors_below(bundle, "optimizer/")
    scalars = {name: _number(a) for name, a in below.items() if not a.stored_as.startswith("optimizer/slots/")}
    if not prefix:
        return scalars
    shared = {name: value for name, value in scalars.items() if not name.startswith("group_")}
    return shared | {n.removeprefix(prefix): value for n, value in scalars.items() if n.startswith(prefix)}


def _number(array: LazyArray) -> float:
    if array.shape != ():
        raise CheckpointError(f"{array.stored_as} has shape {list(array.shape)}; the layout has only scalars there")
    return array.load()[()].item()


def _source(metadata: slot_layout.Metadata, variables: tuple[StoredVariable, ...], path: str) -> Stored:
    generation, tied = map(metadata.provenance.get, ("generation", slot_layout.CONSTRAINTS))
    return Stored(
        format=NAME,
        generation=generation if isinstance(generation, str) else None,
        evidence=(f"{path} has the format {slot_layout.FORMAT}, version {slot_layout.VERSION}",),
        optimizer_config={"class_name": metadata.class_name, "config": dict(metadata.config)},
        variables=variables,
        loss_scaling=_scaling(metadata.provenance.get(slot_layout.LOSS_SCALE)),
        constrained={str(name): str(tie) for name, tie in tied.items()} if isinstance(tied, dict) else {},
    )


def _scaling(noted: Any) -> tuple[int | None, float | None] | None:
    """`[steps until a loss scale grows, the scale]`, each a number or None; None if it is something else."""
    if not isinstance(noted, list) or len(noted) != 2:
        return None
    is_known = all(part is None or (isinstance(part, (int, float)) and not isinstance(part, bool)) for part in noted)
    return (noted[0], noted[1]) if is_known else None
