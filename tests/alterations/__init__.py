"""What can be done to a real checkpoint, or to the hints for it, so that it says something else than its release wrote.

Each `Alteration` changes a copy. Numbers are altered alike in all formats: `arrays` opens what holds them. What is
about names, classes and configs is of one format each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import migrate
from tests.alterations.alteration import Alteration, Hints
from tests.alterations.arrays import prefix_of
from tests.alterations.bundles import of_bundles
from tests.alterations.hdf5 import of_h5
from tests.alterations.hints import of_hints
from tests.alterations.keras_zip import of_keras
from tests.alterations.numbers import of_numbers

OF_FORMAT: dict[str, Callable[[Path], Iterator[Alteration]]] = {".h5": of_h5, ".keras": of_keras}


@dataclass(frozen=True)
class Case:
    """A checkpoint in `folder`: what is migrated, below it, and the hints that it needs."""

    folder: Path
    source: str
    hints: Hints

    def alterations(self) -> Iterator[Alteration]:
        """Every alteration that there is for it."""
        state = migrate.read(self.folder / self.source, **self.hints)
        yield from of_hints(self.hints)
        yield from of_numbers(self.folder, self.source, state)
        suffix = Path(self.source).suffix
        if (self.folder / self.source).is_file() and suffix in OF_FORMAT:
            yield from OF_FORMAT[suffix](self.folder / self.source)
        elif prefix_of(self.folder, self.source) is not None:
            yield from of_bundles(self.folder, self.source)
