"""The kinds of results. To add one, add a folder with its row and its page, and a line here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.forecast import page as forecast_page
from bench.forecast import row as forecast_row
from bench.migration import page as migration_page
from bench.migration import row as migration_row
from bench.results import document
from bench.results.document import Result
from bench.results.kind import Kind
from bench.roof import page as roof_page
from bench.roof import row as roof_row
from bench.scale import page as scale_page
from bench.scale import row as scale_row
from bench.step import page as step_page
from bench.step import ratios as step_ratios
from bench.step import row as step_row
from bench.train import page as train_page
from bench.train import row as train_row

_ALL = (
    Kind("step", step_row.Row, step_page.sections, step_row.READING, since=1, update_ratios=step_ratios.update_ratios),
    Kind("plan", forecast_row.Row, forecast_page.sections),
    Kind("roof", roof_row.Row, roof_page.sections, roof_row.READING),
    Kind("scale", scale_row.Row, scale_page.sections, scale_row.READING),
    Kind("train", train_row.Row, train_page.sections, train_row.READING),
    Kind("migrate", migration_row.Row, migration_page.sections, migration_row.READING),
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in _ALL}


def load(path: Path) -> Result:
    """Read a results file of any kind. Raises: ResultsError."""
    return document.load(path, KINDS)


def from_json(value: Any) -> Result:
    """Read a document of any kind. Raises: ResultsError."""
    return document.from_json(value, KINDS)
