"""Find the releases that can have written a source."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from migrate.releases.table import DTENSOR, GRAPH, RELEASES, Release
from migrate.releases.versions import PERHAPS, UNKNOWN, YES, Number, Versions, version_tuple


@lru_cache(maxsize=4096)
def candidates(generation: str, versions: Versions = UNKNOWN) -> tuple[Release, ...]:
    """Return the releases of a generation that fit what a source shows; at least one.

    A version that is not in the table means the last one before it. What no release fits is ignored.
    """
    after, before = version_tuple(versions.tensorflow_after), version_tuple(versions.tensorflow_before)
    left = [r for r in RELEASES if r.generation == generation and _has_mode(r, versions)]
    left = _nearest(left, versions.tensorflow_number, lambda r: r.tensorflow, 2)
    left = _nearest(left, versions.keras_number, lambda r: r.keras_number, 3)
    for fits in (
        lambda r: not versions.backend or r.backend in versions.backend.split(" or "),
        lambda r: not versions.graph_mode or r.mode == GRAPH,
        lambda r: after is None or r.tensorflow > after[:2],
        lambda r: before is None or r.tensorflow < before[:2],
    ):
        left = list(filter(fits, left)) or left
    return tuple(left)


def newer(versions: Versions) -> str:
    """Return what dtopt assumes of a release after the last of the table; empty if the release is in the table."""
    shown: tuple[tuple[str, Number | None, Callable[[Release], Number]], ...] = (
        ("Keras", versions.keras_number, lambda r: r.keras_number),
        ("TensorFlow", versions.tensorflow_number, lambda r: r.tensorflow),
    )
    for name, number, of in shown:
        if number is not None:
            numbers = {of(release)[:2] for release in RELEASES}
            last = max({version for version in numbers if version[:1] == number[:1]} or numbers)
            if number[:2] > last:
                written, known = (".".join(map(str, version[:2])) for version in (number, last))
                return (
                    f"{name} {written} wrote it, which is newer than {known}, the last that dtopt knows; dtopt assumes"
                    " that they work the same"
                )
    return ""


def _has_mode(release: Release, versions: Versions) -> bool:
    if release.mode == DTENSOR:
        return versions.dtensor in (YES, PERHAPS)
    return versions.dtensor != YES or not release.traits.is_trial


def _nearest(
    releases: list[Release], number: Number | None, of: Callable[[Release], Number], digits: int
) -> list[Release]:
    """Return the releases with a number, or the nearest to it; all if no number is given.

    Args:
      of: the number of a release. digits: how many of them count.
    """
    numbers = sorted({of(release) for release in releases} - {()})
    if number is None or not numbers:
        return releases
    same = [version for version in numbers if version[:2] == number[:2]] or numbers
    nearest = max((version for version in same if version <= number[:digits]), default=same[0])
    return [release for release in releases if of(release) == nearest]
