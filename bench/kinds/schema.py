"""Make the JSON schema of results (JSON Schema 2020-12) from the records themselves."""

from __future__ import annotations

import inspect
from typing import Any

from bench.kinds import KINDS
from bench.results.document import KIND_PREFIX, SCHEMA_VERSION
from bench.results.records import Roof


def schema() -> dict[str, Any]:
    """Return the schema for a document of any kind that this dtopt writes; other members are allowed."""
    import msgspec

    rows = [kind.row for kind in KINDS.values()]
    (*row_schemas, roof), parts = msgspec.json.schema_components([*rows, Roof], ref_template="#/$defs/{name}")
    for part in parts.values():
        if "description" in part:
            part["description"] = inspect.cleandoc(part["description"])  # Python 3.13 has cleaned it already
    kinds = [
        {
            "properties": {
                "kind": {"const": KIND_PREFIX + name},
                "rows": {"type": "array", "items": of_row},
            }
        }
        for name, of_row in zip(KINDS, row_schemas, strict=True)
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A result of dtopt bench",
        "type": "object",
        "required": ["kind", "schema_version", "context", "roofs", "rows", "interrupted"],
        "properties": {
            "schema_version": {"const": SCHEMA_VERSION},
            "context": {"type": "object"},
            "roofs": {"type": "array", "items": roof},
            "interrupted": {"type": "boolean"},
        },
        "oneOf": kinds,
        "$defs": parts,
    }
