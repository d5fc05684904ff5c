"""Rows without a gradient that keep their values and slots: `lazy_rows`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from optim.arguments import patterns
from optim.options.base import Option, Part
from optim.state.names import matches

if TYPE_CHECKING:
    from optim.state.tracked import Tracked


class LazyRows(Part):
    """Which variables keep rows that have no gradient."""

    options: ClassVar = {
        "lazy_rows": Option(
            (),
            "regular expressions; in a variable whose name one of them matches, rows (index along dim 0) that"
            " `IndexedSlices` leave out keep their values and slots, as under momentum and Adadelta of OptimizerV2 and"
            " tf.train; of a dense gradient, or a mean of accumulated ones, rows that are all zero do",
        ),
    }

    def __init__(self, value: Any):
        self.patterns = patterns("lazy_rows", value)

    @property
    def lazy_rows(self) -> list[str]:
        return list(self.patterns)

    def change(self, name: str, value: Any) -> None:
        self.patterns = patterns("lazy_rows", value)

    def applies_to(self, tracked: Tracked) -> bool:
        return bool(self.patterns) and len(tracked.variable.shape) > 0 and matches(self.patterns, tracked)
