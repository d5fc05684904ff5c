"""The interface of a live optimizer for restoring, for all libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from migrate.live.step_answers import Asks
from migrate.models.loss_scale import Scaling
from migrate.rules.comparison import Rule


class Live(Protocol):
    """A live optimizer. Variables are the caller's model variables; slots are named as in `optim`."""

    what: str
    """Class and release, for messages and reports."""
    algorithm: str
    """Name of the class of `optim` with the same slots."""
    generation: str
    """A generation of Keras, or `rounding.OPTIM`: one of `step_factors.LIVE`."""
    scaling: Scaling | None
    """The loss scale around it."""
    asks: Asks
    """Its answers for one variable; complete after `rule` was called."""

    def rule(self, dtypes: Sequence[str]) -> Rule:
        """Its rule in `optim`'s terms, for variables of these dtypes (TensorFlow's names)."""

    def missing(self, variables: Sequence[Any]) -> tuple[list[str], list[str]]:
        """Names of the variables that it was not built on, and of others that it was built on; empty before `build`."""

    def known(self) -> Sequence[Any]:
        """The variables that it was built on, as far as it stores them."""

    def build(self, variables: Sequence[Any]) -> None:
        """Create the slots as the first step would, if they are missing."""

    def slots(self, variable: Any) -> Mapping[str, Any]:
        """Slot variables of one model variable by name."""

    def scalars(self, values: Mapping[str, float]) -> list[tuple[str, Any, float]]:
        """(name, variable, its new value) of the state besides slots.

        Args:
          values: `iterations`, and those of `u_product` and `accumulated_steps` that there are.
        """

    def start(self, slot: str) -> float | None:
        """The initial value of a new slot; None for the value of its variable."""

    def lazy_reasons(self, names: Sequence[str]) -> list[str]:
        """Explain why its handling of sparse gradients for variables of these names is not among those of `optim`."""

    def repeated(self) -> tuple[str, ...]:
        """How it handles each gradient of a repeated row, see `migrate.algorithms`."""

    def settle(self, values: Mapping[str, float]) -> None:
        """After all assignments, update what follows from the state but is no variable of the optimizer."""


def replaced(optimizer: Any) -> list[str]:
    """Report methods that were replaced by other functions, so that steps may differ."""
    names = [name for name, value in vars(optimizer).items() if callable(value) and _is_method(optimizer, name)]
    return [f"{', '.join(names)} of the live optimizer was replaced, and is not compared"] if names else []


def _is_method(optimizer: Any, name: str) -> bool:
    by_scheduler = hasattr(vars(optimizer)[name], "_wrapped_by_lr_sched")  # of torch, which counts steps there
    return callable(getattr(type(optimizer), name, None)) and not by_scheduler
