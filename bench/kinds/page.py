"""Make the page, the Markdown and the CSV of results files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from bench.kinds import KINDS
from bench.page import tables
from bench.page.section import Section
from bench.page.style import STYLE
from bench.page.words import duration, size
from bench.results.document import KIND_PREFIX, Result
from bench.results.records import plain

Named = Sequence[tuple[str, Result]]
"""(name of the file, its contents)."""

TITLE = "dtopt bench"


def html(results: Named) -> str:
    """Return one self-contained HTML document. Raises: UnsupportedError without matplotlib."""
    parts: list[tuple[Section, str] | str] = []
    for name, result in results:
        parts += [(section, name) for section in KINDS[result.kind].sections(result)]
        parts.append(_context(name, result))
    return _document(_title(results), parts)


def html_of(what: str, sections: Sequence[Section]) -> str:
    """Return the same for sections that do not come from a result. Raises: UnsupportedError without matplotlib."""
    return _document(f"{TITLE}: {what}", [(section, "") for section in sections])


def _document(title: str, parts: Sequence[tuple[Section, str] | str]) -> str:
    """Return a document of sections, each with its file, and ready HTML."""
    from bench.page import drawing

    drawing.require()
    body, links = [], []
    number = 0
    colours = drawing.Colours()
    for part in parts:
        if isinstance(part, str):
            body.append(part)
            continue
        section, name = part
        figures = []
        for figure in (*((section.first,) if section.first else ()), *section.figures):
            number += 1
            figures.append(
                f"<figure>\n{drawing.svg(figure, number, colours)}\n"
                f"<figcaption>{escape(figure.title)}</figcaption>\n</figure>"
            )
        anchor = f"s{len(body) + 1}"
        links.append(f'<li><a href="#{anchor}">{escape(section.title)}</a></li>')
        body.append(_section(section, anchor, name, figures))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
        f"<header><h1>{TITLE}</h1>\n{_contents(links)}</header>\n"
        f"<main>\n{chr(10).join(body)}\n</main>\n</body>\n</html>\n"
    )


def _contents(links: Sequence[str]) -> str:
    """Return links to the sections; empty for a single section."""
    if len(links) < 2:
        return ""
    return f'<nav aria-label="Sections"><ul>\n{chr(10).join(links)}\n</ul></nav>'


def _title(results: Named) -> str:
    """Return the title for the browser's tab."""
    kinds = ", ".join(dict.fromkeys(result.kind for _, result in results))
    return f"{TITLE}: {kinds}" if kinds else TITLE


def _section(section: Section, anchor: str, name: str, figures: Sequence[str]) -> str:
    text = "\n".join(f"<p>{escape(line)}</p>" for line in section.text)
    shown = "\n".join(tables.html(table) for table in section.tables)
    commands = "\n".join(escape(command) for command in section.reruns)
    again = f"<details><summary>The commands that measure these rows again</summary>\n<pre>{commands}</pre>\n</details>"
    answer = f'<p class="answer">{escape(section.answer)}</p>\n' if section.answer else ""
    source = f'<p class="source">{escape(name)}</p>\n' if name else ""
    first = figures[0] if section.first else ""
    drawn = "\n".join(figures[1:] if section.first else figures)
    return (
        f'<section id="{anchor}" aria-labelledby="{anchor}-title">\n'
        f'<h2 id="{anchor}-title">{escape(section.title)}</h2>\n{source}'
        f'{answer}{first}\n{text}\n{shown}\n<div class="figures">\n{drawn}\n</div>\n'
        f"{again if section.reruns else ''}\n</section>"
    )


def _context(name: str, result: Result) -> str:
    lines = "\n".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in _context_items(result))
    warning = "<p><strong>Other programs were running, so the times in ms are too high.</strong></p>"
    busy = warning if result.context.get("busy") else ""
    return f'<section class="context">\n<h3>The run of {escape(name)}</h3>\n{busy}<dl>\n{lines}\n</dl>\n</section>'


def _context_items(result: Result) -> Iterator[tuple[str, str]]:
    """Yield the context in words."""
    for key, value in result.context.items():
        if value not in (None, "", [], {}):
            yield LABELS.get(key, key.removesuffix("_bytes").replace("_", " ")), _fact(key, value)
    if result.interrupted:
        yield "interrupted", "yes, by Ctrl-C"


LABELS = {
    "cpus": "CPUs",
    "cpu": "CPU",
    "cpus_allowed": "CPUs that the run could use",
    "threads": "threads of each peer",
    "governor": "CPU frequency governor",
    "memory_bytes": "memory",
    "last_level_cache_bytes": "last-level cache",
    "load": "load before the run",
    "load_after": "load after the run",
    "busy": "other programs were running",
    "python": "Python",
    "identity": "machine, as a hash",
    "variables": "environment variables",
    "started": "started at",
    "seconds": "duration",
    "starts": "how processes started",
    "order_seed": "seed of the order",
    "source": "dtopt's sources",
}
"""Members of a result's context whose names need an explanation."""


def _fact(key: str, value: Any) -> str:
    """Format a value of the context in words."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_fact('', item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(_fact("", item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key.endswith("_bytes"):
        return size(value)
    if key == "seconds":
        return duration(value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def markdown(results: Named) -> str:
    """Return the same without figures."""
    parts = [f"# {TITLE}"]
    for name, result in results:
        for section in KINDS[result.kind].sections(result):
            parts += _section_markdown(section, f"From `{name}`.")
        parts.append(
            "\n".join([f"### The run of `{name}`", "", *(f"- {key}: {value}" for key, value in _context_items(result))])
        )
    return "\n\n".join(parts) + "\n"


def markdown_of(what: str, sections: Sequence[Section]) -> str:
    """Return the same for sections that do not come from a result."""
    parts = [f"# {TITLE}: {what}", *(part for section in sections for part in _section_markdown(section))]
    return "\n\n".join(parts) + "\n"


def _section_markdown(section: Section, *source: str) -> Iterator[str]:
    yield f"## {section.title}"
    yield from source
    if section.answer:
        yield f"**{section.answer}**"
    yield from section.text
    yield from map(tables.markdown, section.tables)
    if section.reruns:
        yield "\n".join(["```", *section.reruns, "```"])


def csv_text(results: Named) -> str:
    """Return the rows, one a line: members that are single values, those of objects as `ratio.median`, no samples."""
    lines = [
        {"file": name, "kind": KIND_PREFIX + result.kind, **_flat(plain(row))}
        for name, result in results
        for row in result.rows
    ]
    written = io.StringIO()
    fields = list(dict.fromkeys(key for line in lines for key in line))
    writer = csv.DictWriter(written, fields or ["file", "kind"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return written.getvalue()


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            cells |= {f"{key}.{name}": item for name, item in value.items() if not isinstance(item, (list, Mapping))}
        elif not isinstance(value, list):
            cells[key] = value
    return cells
