"""Names in a source: their greatest length, and which names a name contains."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from optim.errors import DamagedFileError

LONGEST = 4096
"""Characters. TensorFlow's longest names have some hundred; readers compare names part by part."""


def check(names: Iterable[str], where: str) -> None:
    """Raise DamagedFileError for a name that is too long to be real."""
    longest = max(names, key=len, default="")
    if len(longest) > LONGEST:
        raise DamagedFileError(
            f"{where} has a name of {len(longest)} characters, {longest[:20]!r} ..., and names have at most {LONGEST}:"
            " it is damaged; copy it again"
        )


def contained(name: str, known: Collection[str]) -> Iterator[str]:
    """Yield known names that are whole parts of a name: `dense/kernel`, `Adam/dense`, ... of `Adam/dense/kernel/m`."""
    parts = name.split("/")
    for size in sorted({name_.count("/") + 1 for name_ in known}):
        runs = ("/".join(parts[i : i + size]) for i in range(len(parts) - size + 1))
        yield from (run for run in runs if run in known)
