"""Keys and metadata of the slot-variable layout, docs/formats/slot-variables.md; independent of numpy and TensorFlow.

`optim.checkpoints.saving` and `migrate` both use this module, so the layout has one definition.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from optim.errors import CheckpointError

FORMAT = "dtopt slot variables"
VERSION = 1
VALUE_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
METADATA_KEY = "metadata/.ATTRIBUTES/py_state"
SAVE_COUNTER_KEY = "save_counter/.ATTRIBUTES/VARIABLE_VALUE"
POINTER_NAME = "checkpoint"
STATE_PREFIX = "state-"
AVERAGE = "average"
ACCUMULATED_GRADIENT = "accumulated_gradient"
GATHERED = "gathered"
MASTER = "master"
SCALE = "_scale"
"""What the name of a slot of 8-bit codes ends in, in that of the slot with the scale of each of their blocks."""
ITERATIONS = "iterations"
LEARNING_RATE = "learning_rate"
ACCUMULATED_STEPS = "accumulated_steps"
LOSS_SCALE = "loss_scale"
FINITE_STEPS = "finite_steps"
CONSTRAINTS = "constraints"
"""In the provenance: variable -> the constraint that the source applies to it after each step, in words."""
GROUPS_CLASS = "Groups"
GROUPS = "groups"
"""In the provenance of `Groups`: variable -> the number of its group."""
SCALAR_DTYPES = {ITERATIONS: "int64", ACCUMULATED_STEPS: "int64", LOSS_SCALE: "float32", FINITE_STEPS: "int64"}
"""Dtype of counters and of scalars of options; others are float64."""
GATHERED_DTYPE = "int64"
"""Dtype of GATHERED's flag for each variable, a scalar."""
SLICED = frozenset({"bool", "int8", "uint8", "int16", "int32", "int64", "bfloat16", "float32", "float64"})
SLICED |= {"complex64", "complex128"}
"""Dtypes of which TensorFlow reads tensors in slices (2.21, tensorflow/core/util/tensor_bundle, GetSliceValue)."""
WHOLE, ADDED = "whole", "added"
"""The part of a live variable that starts fresh: all of it, or the part beyond the shape in the file."""


def escape(name: str) -> str:
    """Return one node name as TensorFlow writes it into a key, for example `dense/kernel` -> `dense.Skernel`."""
    return name.replace(".", "..").replace("/", ".S")


def unescape(part: str) -> str:
    """Return the name of one part of a key, the inverse of `escape` and of TensorFlow's."""
    return ".".join(piece.replace(".S", "/") for piece in part.split(".."))


def scalar_dtype(name: str) -> str:
    """Return the dtype of a scalar of the optimizer."""
    return SCALAR_DTYPES.get(name, "float64")


def is_ours(name: str) -> bool:
    """Whether a name is a state, the file that names it, or a remainder of an interrupted save by this program or
    TensorFlow."""
    return name == POINTER_NAME or name.startswith((STATE_PREFIX, f".{POINTER_NAME}-"))


def group_key(number: int, scalar: str) -> str:
    """What a scalar of one group of `Groups` is called."""
    return f"group_{number}_{scalar}"


def rates_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The learning rates in the config of an optimizer, by the names of the scalars that keep them."""
    groups = config.get(GROUPS)
    if groups is None:
        return {LEARNING_RATE: config.get(LEARNING_RATE)}
    return {group_key(i, LEARNING_RATE): of["config"].get(LEARNING_RATE) for i, (_, of) in enumerate(groups)}


def scalar_key(name: str) -> str:
    return f"optimizer/{escape(name)}{VALUE_SUFFIX}"


def slot_key(slot: str, variable: str) -> str:
    return f"optimizer/slots/{escape(slot)}/{escape(variable)}{VALUE_SUFFIX}"


def variable_key(variable: str) -> str:
    return f"variables/{escape(variable)}{VALUE_SUFFIX}"


def unmapped_key(name: str) -> str:
    return f"unmapped/{escape(name)}{VALUE_SUFFIX}"


def scale_of(slot: str) -> str:
    """The slot with the scales of a slot of 8-bit codes."""
    return slot + SCALE


def is_grown(stored: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a shape equals another one except for a single dim that is larger."""
    if len(stored) != len(shape):
        return False
    larger = [b > a for a, b in zip(stored, shape, strict=True)]
    return sum(larger) == 1 and all(b >= a for a, b in zip(stored, shape, strict=True))


@dataclass(frozen=True)
class VariableEntry:
    """A model variable: `dtype` is TensorFlow's name for it, `"float32"`, `"bfloat16"`, ...

    `stored` is False if the file contains only its slots: a migrated `get_weights()` list has no model in it. `fresh`
    is empty, WHOLE (the file has neither value nor slots of it), or ADDED (the live one may be larger).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool = True
    stored: bool = True
    fresh: str = ""

    def to_json(self) -> dict[str, Any]:
        document = {**asdict(self), "shape": list(self.shape)}
        return document if self.fresh else {key: value for key, value in document.items() if key != "fresh"}

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a live variable of this shape can load what the file contains of this one."""
        return shape == self.shape or self.fresh == WHOLE or (self.fresh == ADDED and is_grown(self.shape, shape))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> VariableEntry:
        shape = tuple(operator.index(n) for n in document["shape"])
        fresh = document.get("fresh", "")
        entry = cls(document["name"], shape, document["dtype"], document["trainable"], document["stored"], fresh)
        if not all(isinstance(x, str) for x in (entry.name, entry.dtype)):
            raise TypeError(f"name and dtype are {entry.name!r} and {entry.dtype!r}")
        if not all(isinstance(x, bool) for x in (entry.trainable, entry.stored)):
            raise TypeError(f"{entry.name!r} is trainable: {entry.trainable!r}, stored: {entry.stored!r}")
        if entry.fresh not in ("", WHOLE, ADDED) or (entry.stored and entry.fresh == WHOLE):
            raise TypeError(f"{entry.name!r} is fresh: {entry.fresh!r}, stored: {entry.stored!r}")
        return entry


@dataclass(frozen=True)
class Metadata:
    """The JSON document of a slot-variable checkpoint."""

    class_name: str
    config: Mapping[str, Any]
    variables: tuple[VariableEntry, ...]
    slots: Mapping[str, tuple[str, ...]]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(
            {
                "format": FORMAT,
                "version": VERSION,
                "optimizer": {"class_name": self.class_name, "config": dict(self.config)},
                "variables": [v.to_json() for v in self.variables],
                "slots": {slot: list(names) for slot, names in self.slots.items()},
                "provenance": dict(self.provenance),
            },
            sort_keys=True,
            allow_nan=False,
        )

    @classmethod
    def from_json(cls, text: str, where: str) -> Metadata:
        """Parse and check; `where` names the file in errors. Raises CheckpointError."""
        try:
            document = json.loads(text)
            if document["format"] != FORMAT:
                raise CheckpointError(f"{where} is not a slot-variable checkpoint: format {document['format']!r}")
            if document["version"] != VERSION:
                raise CheckpointError(
                    f"{where} is version {document['version']!r} of the slot-variable layout, this dtopt reads"
                    f" version {VERSION}; upgrade dtopt"
                )
            variables = tuple(VariableEntry.from_json(v) for v in document["variables"])
            slots = {str(slot): tuple(map(str, names)) for slot, names in document["slots"].items()}
            optimizer = document["optimizer"]
            metadata = cls(
                str(optimizer["class_name"]),
                dict(optimizer["config"]),
                variables,
                slots,
                document["provenance"],
            )
        except CheckpointError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{where}: its metadata is damaged ({error!r}); save or migrate it again") from error
        metadata.check(where)
        return metadata

    def check(self, where: str) -> None:
        """Check that names are unique, and that every slot belongs to a variable of the table."""
        names = [v.name for v in self.variables]
        if len(set(names)) != len(names) or not all(names):
            raise CheckpointError(f"{where}: its metadata names a variable twice, or not at all")
        known = {v.name for v in self.variables if v.fresh != WHOLE}
        for slot, owners in self.slots.items():
            unknown = [name for name in owners if name not in known]
            if unknown or len(set(owners)) != len(owners):
                raise CheckpointError(f"{where}: its metadata lists slot {slot!r} wrongly ({unknown[:3]})")

    def expected_keys(self) -> dict[str, tuple[int, ...] | None]:
        """Return every tensor key of the metadata, with its shape, or None if any shape is allowed."""
        keys: dict[str, tuple[int, ...] | None] = {scalar_key(ITERATIONS): ()}
        for v in self.variables:
            if v.stored:
                keys[variable_key(v.name)] = v.shape
        for slot, owners in self.slots.items():
            for name in owners:
                keys[slot_key(slot, name)] = None
        return keys

    def compare_keys(self, present: Mapping[str, Sequence[int]], where: str) -> None:
        """Refuse a file whose tensors differ from those of the metadata.

        Args:
          present: shape by key of every tensor in the file.
        """
        expected = self.expected_keys()
        missing = sorted(k for k in expected if k not in present)
        misshapen = sorted(
            f"{k} is {tuple(present[k])}, not {shape}"
            for k, shape in expected.items()
            if shape is not None and k in present and tuple(present[k]) != shape
        )
        extra = sorted(k for k in present if k.startswith(("optimizer/slots/", "variables/")) and k not in expected)
        if missing or misshapen or extra:
            problems = [*(f"missing {k}" for k in missing), *misshapen, *(f"unlisted {k}" for k in extra)]
            shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
            raise CheckpointError(f"{where} is damaged: its tensors differ from its own table: {shown}")


def pointer_text(state_name: str) -> str:
    """Return the content of the file `checkpoint`, TensorFlow's CheckpointState in protobuf text form."""
    return f'model_checkpoint_path: "{state_name}"\nall_model_checkpoint_paths: "{state_name}"\n'


def current_prefix(folder: str) -> str:
    """Return the prefix of the current state of a checkpoint folder. Raises CheckpointError if it is missing."""
    pointer = os.path.join(folder, POINTER_NAME)
    try:
        with open(pointer, encoding="utf-8") as file:
            first = file.readline().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{folder} is not a slot-variable checkpoint: no readable file {POINTER_NAME!r} in it;"
            " write one with optim.save_checkpoint or `dtopt migrate checkpoint`"
        ) from error
    label, _, value = first.partition(":")
    name = value.strip().strip('"')
    if label != "model_checkpoint_path" or not name or os.path.basename(name) != name or "\0" in name:
        raise CheckpointError(f"{pointer} does not name a state in its folder: {first[:80]!r}")
    return os.path.join(folder, name)
