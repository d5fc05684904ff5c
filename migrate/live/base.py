"""The interface of a live optimizer for restoring, for all libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from migrate.live.step_answers import Ask, of_variables
from migrate.models.loss_scale import Scaling
from migrate.rules.comparison import Rule

Numbers = Mapping[str, float]
"""The state that is not in slots: `iterations`, and those of `u_product` and `accumulated_steps` that there are."""


class Live:
    """A live optimizer. Variables are the caller's model variables; slots are named as in `optim`.

    Attributes:
      algorithm: name of the class of `optim` with the same slots.
      generation: a generation of Keras, or `rounding.OPTIM`: one of `step_factors.LIVE`.
      what: class and release, for messages and reports.
      scaling: the loss scale around it.
      asks: its answers for one variable; complete after `rule` was called.
    """

    def __init__(self, optimizer: Any, algorithm: str, generation: str, what: str):
        self._optimizer = optimizer
        self.algorithm, self.generation, self.what = algorithm, generation, what
        self.scaling: Scaling | None = None
        self.asks: dict[str, Ask] = of_variables()
        self._values: Mapping[str, Any] = {}
        """Arguments of its rule."""

    @property
    def parts(self) -> Sequence[Live]:
        """The parts with one rule each: itself, or its groups."""
        return [self]

    def members(self, variables: Sequence[Any]) -> list[tuple[Live, list[int]]]:
        """Its parts that have variables, and the places of these in `variables`."""
        return [(self, list(range(len(variables))))]

    def rule(self, dtypes: Sequence[str]) -> Rule:
        """Its rule in `optim`'s terms, for variables of these dtypes (TensorFlow's names)."""
        raise NotImplementedError

    def missing(self, variables: Sequence[Any]) -> tuple[list[str], list[str]]:
        """Names of the variables that it was not built on, and of others that it was built on; empty before `build`."""
        return [], []

    def known(self) -> Sequence[Any]:
        """The variables that it was built on, as far as it stores them."""
        return []

    def build(self, variables: Sequence[Any]) -> None:
        """Create the slots as the first step would, if they are missing."""
        raise NotImplementedError

    def slots(self, variable: Any) -> Mapping[str, Any]:
        """Slot variables of one model variable by name."""
        raise NotImplementedError

    def scales(self, variable: Any, slot: str) -> Any:
        """The scales of a slot of codes; None for another slot."""
        return None

    def scalars(self, values: Numbers) -> list[tuple[str, Any, float]]:
        """(name, variable, its new value) of the state that is not in slots."""
        raise NotImplementedError

    def start(self, slot: str) -> float | None:
        """The initial value of a new slot; None for the value of its variable."""
        raise NotImplementedError

    def lazy_reasons(self, names: Sequence[str]) -> list[str]:
        """Explain why its handling of sparse gradients for variables of these names is not among those of `optim`."""
        return []

    def repeated(self) -> tuple[str, ...]:
        """How it handles each gradient of a repeated row, see `migrate.algorithms`."""
        raise NotImplementedError

    def settle(self, values: Numbers) -> None:
        """After all assignments, update what follows from the state but is no variable of the optimizer."""


def replaced(optimizer: Any) -> list[str]:
    """Report methods that were replaced by other functions, so that steps may differ."""
    names = [name for name, value in vars(optimizer).items() if callable(value) and _is_method(optimizer, name)]
    return [f"{', '.join(names)} of the live optimizer was replaced, and is not compared"] if names else []


def _is_method(optimizer: Any, name: str) -> bool:
    by_scheduler = hasattr(vars(optimizer)[name], "_wrapped_by_lr_sched")  # of torch, which counts steps there
    return callable(getattr(type(optimizer), name, None)) and not by_scheduler
