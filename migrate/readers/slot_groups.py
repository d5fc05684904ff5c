"""One optimizer out of a slot-variable checkpoint of `optim.Groups`, which holds several."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from migrate.claims import UNINTERPRETED, Origin
from migrate.readers.objects.optimizers import listed, several
from optim.errors import CheckpointError, HyperparameterError
from optim.slot_layout import GROUPS, GROUPS_CLASS, Metadata, group_key

NORM = "norm of all groups"
"""The subject of an origin that only matters if a group is alone."""


def paths(metadata: Metadata, where: str) -> list[str]:
    """Return the paths of the groups; empty for another optimizer than `Groups`.

    Raises:
      CheckpointError: the file does not contain which variables the groups have.
    """
    if metadata.class_name != GROUPS_CLASS:
        return []
    described = metadata.config.get("groups")
    if not isinstance(described, list) or not isinstance(metadata.provenance.get(GROUPS), dict):
        raise CheckpointError(f"{where} does not contain its groups; save it again with optim.save_checkpoint")
    return [group_key(number, "")[:-1] for number in range(len(described))]


def doubts(metadata: Metadata) -> tuple[Origin, ...]:
    """What one group of several does not show: the gradients of the others."""
    limit = metadata.config.get("global_clipnorm")
    if metadata.class_name != GROUPS_CLASS or not limit or len(metadata.config["groups"]) == 1:
        return ()
    text = f"global_clipnorm = {limit:g} limits the norm of the gradients of all groups, and this is one of them"
    return (Origin(NORM, limit, UNINTERPRETED, doubt=text),)


def choose(metadata: Metadata, optimizer_path: str | None, where: str) -> tuple[Metadata, str]:
    """The metadata of the group that `optimizer_path` names, `group_0` for example, and what its scalars begin with.

    Of another optimizer than `Groups` it is the whole. The options of the whole act on each group, and join its config.

    Raises:
      AmbiguousError: there are groups, and no path. HyperparameterError: a path that is not there.
      CheckpointError: the file does not contain which variables the groups have.
    """
    if metadata.class_name != GROUPS_CLASS:
        if optimizer_path is not None:
            raise HyperparameterError(
                f"{where} is a slot-variable checkpoint of dtopt, with one optimizer only; leave out --optimizer"
            )
        return metadata, ""
    known = paths(metadata, where)
    if optimizer_path is None:
        raise several(where, known)
    if optimizer_path not in known:
        raise HyperparameterError(f"{where} holds no optimizer {optimizer_path!r}; --optimizer takes: {listed(known)}")
    number, owners = known.index(optimizer_path), dict(metadata.provenance[GROUPS])
    described = metadata.config["groups"][number][1]
    return _member(metadata, described, {n for n, i in owners.items() if i == number}), f"{optimizer_path}_"


def _member(metadata: Metadata, described: Any, owned: set[str]) -> Metadata:
    shared = {name: value for name, value in metadata.config.items() if name != "groups"}
    slots = {slot: tuple(name for name in names if name in owned) for slot, names in metadata.slots.items()}
    return replace(
        metadata,
        class_name=described["class_name"],
        config={**shared, **described["config"], "mesh": shared.get("mesh")},
        variables=tuple(variable for variable in metadata.variables if variable.name in owned),
        slots={slot: names for slot, names in slots.items() if names},
    )
