"""The published schema of results: made from the records, and true of what is written."""

from __future__ import annotations

import json

import fastjsonschema
import pytest

from bench.forecast import query
from bench.kinds import load
from bench.kinds.schema import schema
from tests.places import RESULTS, ROOT

PUBLISHED = ROOT / "docs" / "formats" / "bench-results.schema.json"


def test_the_published_schema_is_that_of_the_records() -> None:
    made = json.dumps(schema(), indent=1) + "\n"
    assert PUBLISHED.read_text(encoding="utf-8") == made, f"write bench.kinds.schema.schema() to {PUBLISHED}"


def test_results_keep_to_it_and_changed_ones_do_not() -> None:
    check = fastjsonschema.compile(schema(), use_default=False)
    recorded = load(RESULTS / "aa-6.json").to_json()
    planned = query.answer(workload="gpt2:layer", devices=2, memory="16GB").to_json()
    for document in (recorded, planned):
        check(json.loads(json.dumps(document)))
    for change in ({"kind": "dtopt bench nothing"}, {"rows": [5]}, {"schema_version": 0}, {"roofs": None}):
        with pytest.raises(fastjsonschema.JsonSchemaValueException):
            check({**json.loads(json.dumps(recorded)), **change})
