"""Whether the names that an object graph has for variables and slots go together with where it has them."""

from __future__ import annotations

import re

from migrate.bytes.object_graph import ObjectGraph
from migrate.errors import ContradictionError
from migrate.readers.keras.model import ROLES
from optim.bytes import names
from optim.bytes.object_tree import ATTRIBUTES
from optim.slot_layout import unescape


def check(graph: ObjectGraph, prefix: str) -> None:
    """Compare what variables are called with the attributes of layers that hold them, and slots with their own.

    Raises:
      ContradictionError: a name is that of another one.
    """
    for node, key in enumerate(graph.keys):
        attribute = unescape((key or "").partition(ATTRIBUTES)[0].rpartition("/")[2])
        role = re.sub(r"_\d+$", "", graph.full_names[node].rpartition("/")[2])
        if attribute in ROLES and role in ROLES and role != attribute:
            raise ContradictionError(_denied(prefix, str(key), graph.full_names[node], attribute))
    known = {name for name in graph.full_names if name}
    for table in graph.slot_variables:
        for own, slot, node in table:
            name, called = graph.full_names[own], graph.full_names[node]
            scope = called.rpartition("/")[0]
            if name and f"/{name}/" not in f"/{called}/" and any(names.contained(scope, known)):
                raise ContradictionError(_denied(prefix, f"the slot {slot!r} of {name}", called, name))


def _denied(prefix: str, what: str, called: str, at: str) -> str:
    text = f"{prefix}: {what} is called {called!r} in the object graph, and belongs to {at!r}"
    return f"{text}; copy or save the checkpoint again"
