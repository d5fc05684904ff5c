"""Makes the page, the Markdown and the CSV of results files."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from bench.page import of_meshes, of_migration, of_steps, of_training, tables
from bench.page.section import Section
from bench.page.style import STYLE
from bench.records import plain
from bench.results import KIND_PREFIX, Result

Named = Sequence[tuple[str, Result]]
"""(name of the file, what it holds)."""

SECTIONS: dict[str, Callable[[Result], Iterator[Section]]] = {
    "step": of_steps.sections,
    "scale": of_meshes.scaling,
    "plan": of_meshes.plans,
    "roof": of_meshes.roofs,
    "train": of_training.sections,
    "migrate": of_migration.sections,
}

TITLE = "dtopt bench"


def html(results: Named) -> str:
    """One HTML document that asks for nothing beside itself. Raises: UnsupportedError without matplotlib."""
    from bench.page import drawing

    drawing.require()
    parts: list[str] = []
    links: list[str] = []
    number = 0
    for name, result in results:
        for section in SECTIONS[result.kind](result):
            figures = []
            for figure in section.figures:
                number += 1
                figures.append(
                    f"<figure>\n{drawing.svg(figure, number)}\n"
                    f"<figcaption>{escape(figure.title)}</figcaption>\n</figure>"
                )
            anchor = f"s{len(parts) + 1}"
            links.append(f'<li><a href="#{anchor}">{escape(section.title)}</a></li>')
            parts.append(_section(section, anchor, name, figures))
        parts.append(_context(name, result))
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{TITLE}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
        f'<header><h1>{TITLE}</h1>\n<nav aria-label="Sections"><ul>\n{chr(10).join(links)}\n</ul></nav></header>\n'
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _section(section: Section, anchor: str, name: str, figures: Sequence[str]) -> str:
    text = "\n".join(f"<p>{escape(line)}</p>" for line in section.text)
    shown = "\n".join(tables.html(table) for table in section.tables)
    commands = "\n".join(escape(command) for command in section.reruns)
    again = f"<details><summary>The commands that measure these rows again</summary>\n<pre>{commands}</pre>\n</details>"
    drawn = "\n".join(figures)
    return (
        f'<section id="{anchor}" aria-labelledby="{anchor}-title">\n'
        f'<h2 id="{anchor}-title">{escape(section.title)}</h2>\n<p class="source">{escape(name)}</p>\n'
        f'{text}\n{shown}\n<div class="figures">\n{drawn}\n</div>\n{again if section.reruns else ""}\n</section>'
    )


def _context(name: str, result: Result) -> str:
    lines = "\n".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in _said(result))
    warning = "<p><strong>The machine was busy before the run: believe ratios, not milliseconds.</strong></p>"
    busy = warning if result.context.get("busy") else ""
    return f'<section class="context">\n<h3>The run of {escape(name)}</h3>\n{busy}<dl>\n{lines}\n</dl>\n</section>'


def _said(result: Result) -> Iterator[tuple[str, str]]:
    """The context in words."""
    for key, value in result.context.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{name} {item}" for name, item in value.items())
        if value not in (None, ""):
            yield key.replace("_", " "), f"{value:.3f}" if isinstance(value, float) else str(value)
    if result.interrupted:
        yield "interrupted", "yes, by Ctrl-C"


def markdown(results: Named) -> str:
    """The same without figures."""
    parts = [f"# {TITLE}"]
    for name, result in results:
        for section in SECTIONS[result.kind](result):
            parts += [f"## {section.title}", f"From `{name}`.", *section.text, *map(tables.markdown, section.tables)]
            if section.reruns:
                parts.append("\n".join(["```", *section.reruns, "```"]))
        parts.append(
            "\n".join([f"### The run of `{name}`", "", *(f"- {key}: {value}" for key, value in _said(result))])
        )
    return "\n\n".join(parts) + "\n"


def csv_text(results: Named) -> str:
    """The rows, one a line: members that are single values, those of objects as `ratio.median`, no samples."""
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
    found: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            found |= {f"{key}.{name}": item for name, item in value.items() if not isinstance(item, (list, Mapping))}
        elif not isinstance(value, list):
            found[key] = value
    return found
