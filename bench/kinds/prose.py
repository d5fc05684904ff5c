"""A page of prose with tables made from results files; every measured number of its text is checked against them.

A table is placed between `<!-- table: FILE.json -->` and `<!-- end -->`. Results are in the folder that has the page's
name (`docs/benchmarks/`). A number in the text names its source directly after it, `1.9 ms <!-- FILE.json PATH -->`.
PATH leads from the document to the number: `rows[peer=optim-local].median`, `context.cpus`, or two of them with `/`
between, for a quotient. The number must be that of the file, rounded to the digits shown; `ms`, `%`, `GB/s`, `MB` and
`GB` scale it.

Text in backticks, links and headings may contain other numbers, and so may names such as GPT-2; other text may not.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bench.kinds import load
from bench.page import tables
from bench.results.document import Result
from bench.step import page as steps
from bench.step import report

TABLE = re.compile(r"<!-- table: (\S+) -->\n.*?<!-- end -->", re.DOTALL)
CLAIM = re.compile(
    r"(?P<number>\d[\d,]*(?:\.\d+)*) ?(?P<unit>ms|%|GB/s|MB|GB)?\s*<!-- (?P<file>\S+\.json) (?P<path>[^>]+?) -->"
)
OWN_NUMBERS = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)|^#[^\n]*$|<!--.*?-->", re.DOTALL | re.MULTILINE)
SCALES = {"ms": 1e3, "%": 100.0, "GB/s": 1e-9, "MB": 1e-6, "GB": 1e-9}
STEP = re.compile(r"(\w+)(?:\[(\w+)=([^\]]+)\]|\[(\d+)\])?$")


def folder_of(page: Path) -> Path:
    return page.with_suffix("")


def table(result: Result) -> str:
    """Return a Markdown table of the rows of steps.

    It shows the skipped and failed rows with their reasons, how their threads wait, and how long steps take on a GPU.
    """
    sentences = (report.waiting(result.rows), report.on_device(result.rows))
    return "\n\n".join(filter(None, [tables.markdown(steps.table(result.rows)), *sentences]))


def filled(page: Path) -> str:
    """Return the text of the page with its tables generated again. Raises: ResultsError."""

    def make(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n{table(load(folder_of(page) / match[1]))}\n<!-- end -->"

    return TABLE.sub(make, page.read_text(encoding="utf-8"))


def find(document: Any, path: str) -> Any:
    """Return the value that a path leads to in a JSON document. Raises: LookupError, which names the step that
    fails."""
    if "/" in path:
        above, below = (find(document, part.strip()) for part in path.split("/"))
        return above / below
    for step in re.split(r"\.(?![^\[]*\])", path):
        match = STEP.match(step)
        if match is None or match[1] not in document:
            raise LookupError(f"no {step!r}")
        document = document[match[1]]
        if match[2]:
            matches = [item for item in document if str(item.get(match[2])) == match[3]]
            if len(matches) != 1:
                raise LookupError(f"{len(matches)} of {step!r}")
            document = matches[0]
        elif match[4]:
            document = document[int(match[4])]
    return document


def _fits(shown: str, unit: str | None, value: Any) -> bool:
    """Whether a number is the value rounded to the digits shown. Versions are strings, shown whole or by their
    beginning."""
    if isinstance(value, str):
        return value == shown or value.startswith(shown + ".")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    text = shown.replace(",", "")
    decimals = len(text.partition(".")[2])
    return f"{value * SCALES.get(unit or '', 1.0):.{decimals}f}" == text


def problems(page: Path) -> list[str]:
    """Return the problems of the numbers of a page; empty if there are no problems."""
    text = page.read_text(encoding="utf-8")
    messages = (
        [] if filled(page) == text else ["a table differs from its results file: run `dtopt bench report --into`"]
    )
    prose = TABLE.sub("", text)
    for match in CLAIM.finditer(prose):
        shown = match["number"] + (match["unit"] or "")
        try:
            document = json.loads((folder_of(page) / match["file"]).read_text(encoding="utf-8"))
            value = find(document, match["path"].strip())
        except (OSError, ValueError, LookupError) as error:
            messages.append(f"{shown}: {match['file']} {match['path']}: {error}")
            continue
        if not _fits(match["number"], match["unit"], value):
            messages.append(f"{shown}: {match['file']} {match['path']} is {value!r}")
    unsourced = OWN_NUMBERS.sub("", CLAIM.sub("", prose))
    messages += [f"{number}: names no source" for number in re.findall(r"(?<![\w-])\d[\d.,]*", unsourced)]
    return messages


def fill(page: Path) -> None:
    """Write the tables of a page again. Raises: ResultsError."""
    page.write_text(filled(page), encoding="utf-8")
