"""Writes docs/releases.md: what releases do differently, from `migrate.facts` (`python tools/release_facts.py`)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from migrate import facts  # noqa: E402
from migrate.facts.fact import Fact, spans  # noqa: E402
from migrate.generations import GENERATIONS, described, traits  # noqa: E402
from migrate.releases.table import RELEASES, Release  # noqa: E402

PAGE = ROOT / "docs" / "releases.md"
HEAD = """\
# What releases do differently

`tools/release_facts.py` writes this page from the rows of `migrate/facts`, which decide what a migration reports. A
[generation](migrating.md) without releases means all of its releases. If the releases that can have written a
source disagree, the report names them and asks with `--set`.
"""
GENERATIONS_HEAD = """
## Generations

What a generation does in all of its releases (`migrate/generations.py`).

| | |
|---|---|
"""
TITLES = (
    ("Limits of gradients", facts.clipping),
    ("The step counter", facts.counter),
    ("Sparse gradients", facts.rows),
    ("Rules of single algorithms", facts.rules),
    ("Around a step", facts.steps),
    ("Lists", facts.lists),
    ("Layers and losses", facts.layers),
)


def text() -> str:
    """The page."""
    parts = [HEAD, GENERATIONS_HEAD, *_traits()]
    for title, module in TITLES:
        parts.append(f"\n## {title}\n")
        parts += map(_section, module.FACTS)
    return "".join(parts)


def _traits() -> Iterator[str]:
    for name, text in described().items():
        having = [generation for generation in GENERATIONS if getattr(traits(generation), name) is True]
        if isinstance(getattr(traits(None), name), bool):
            yield f"| {text} | {', '.join(f'`{generation}`' for generation in having)} |\n"


def _section(fact: Fact) -> str:
    answers = fact.among(RELEASES)
    rows = "".join(f"| {fact.answers[answer]} | {_releases(fact, answer)} |\n" for answer in answers)
    return f"\n**{fact.question}**\n\n| a release | |\n|---|---|\n{rows}\nSource: {fact.source}.\n"


def _releases(fact: Fact, answer: str) -> str:
    return "; ".join(filter(None, (_of_generation(fact, answer, generation) for generation in GENERATIONS)))


def _of_generation(fact: Fact, answer: str, generation: str) -> str:
    """The releases of a generation that give an answer, in words; empty if no release does."""
    every = [release for release in RELEASES if release.generation == generation]
    same = [release for release in every if fact.way(release) == answer]
    if not same or len(same) == len(every):
        return f"`{generation}`" if same else ""
    return f"`{generation}`: {', '.join(_parts(same, every))}"


def _parts(same: Sequence[Release], every: Sequence[Release]) -> Iterator[str]:
    others = {release.package for release in every} - {release.package for release in same}
    shared = {release.package for release in every if release not in same} - others
    alone = [release.package for release in same if release.package not in shared]
    if alone:
        yield spans(alone)
    mixed = [release for release in same if release.package in shared]
    if not mixed:
        return
    rest = [release for release in every if release not in same and release.package in shared]
    for name in ("mode", "backend", "tensorflow"):
        here, there = ({getattr(release, name) for release in group} for group in (mixed, rest))
        if not here & there:
            yield f"{spans(release.package for release in mixed)} {_words(name, here)}"
            return
    yield f"{spans(release.package for release in mixed)}, in part"


def _words(name: str, values: set[object]) -> str:
    if name == "tensorflow":
        numbers = sorted(value for value in values if value)
        first, last = (".".join(map(str, number)) for number in (numbers[0], numbers[-1]))
        return f"on TF {first} to {last}" if first != last else f"on TF {first}"
    return f"({' or '.join(sorted(str(value) or 'other modes' for value in values))})"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
