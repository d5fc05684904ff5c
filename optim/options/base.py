"""The base of the options of an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from optim.errors import UnsupportedError


@dataclass(frozen=True)
class Option:
    """A keyword argument that every optimizer takes."""

    default: Any
    meaning: str


class Part:
    """One option, or a few that belong together: their values, their check, and the state that they need.

    A part has an attribute for each of its `options`. It is handed what it needs and knows no optimizer.
    """

    options: ClassVar[Mapping[str, Option]] = {}
    """The keyword arguments that it owns, by name."""
    changed: Callable[[], None] = staticmethod(lambda: None)
    """Called when steps must change."""

    def get(self, name: str) -> Any:
        """Return the current value of an option."""
        return getattr(self, name)

    def config(self) -> dict[str, Any]:
        """Return the current values of the keyword arguments, as JSON values."""
        return {name: self.get(name) for name in self.options}

    def join(self, state: Any, accumulation: Any) -> None:
        """Belong to one group of an optimizer, with that group's `State` and the `Accumulation` of all groups."""

    def replace_default(self, name: str, value: Any) -> None:
        """Take another value for an option that has its default, before the first step; errors as `change`."""
        self.change(name, value)

    def change(self, name: str, value: Any) -> None:
        """Change an option from the next step on.

        Raises:
          UnsupportedError: it decides which state there is. HyperparameterError: out of range.
        """
        raise UnsupportedError(
            f"{name} is fixed when an optimizer is made, because state and steps are made for it; make a new one with"
            f" from_config({{**optimizer.get_config(), {name!r}: {value!r}}})"
        )
