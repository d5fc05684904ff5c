"""Learning rate schedules that are imported from where current releases have none."""

from __future__ import annotations

import libcst as cst

from migrate.code import targets
from migrate.code.findings import REWRITTEN
from migrate.code.imports import is_gone
from migrate.code.places import constructors
from migrate.code.program import Reading
from migrate.code.schedules import SCHEDULES


def look(reading: Reading, node: cst.Name | cst.Attribute) -> None:
    """A schedule's class of the old package, called or inherited from, which is the target's Keras's now."""
    found = {m[1] for m in map(SCHEDULES.match, reading.names.of(node)) if m}
    parent = reading.parent(node)
    if len(found) != 1 or isinstance(parent, (cst.ImportAlias, cst.AsName, cst.Attribute)):
        return
    sources = reading.names.sources(node)
    if not sources or not all(map(is_gone, sources)):
        return
    keras = "tf_keras" if reading.target == targets.TF_KERAS else "keras"
    new = f"{keras}.optimizers.schedules.{found.pop()}"
    reading.edits[node] = lambda updated: cst.parse_expression(new)
    constructors.import_target(reading, keras)
    reading.add(node, REWRITTEN, "", new)
