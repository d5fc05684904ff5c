"""The algorithm that updates the variables of an optimizer: a rule, or a user's own `update_step`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from optim.errors import UnsupportedError
from optim.rule import Rule, Slot, default_rate

Group = float | tuple[float, tuple[tuple[str, float], ...]] | tuple[int, Any]
"""Key of the coefficients of a variable: its factor of the learning rate, and constants of its rule. With several
algorithms in one optimizer the number of its algorithm comes first.
"""


@dataclass(frozen=True)
class Algorithm:
    """The algorithm of one optimizer."""

    cls: type
    """The optimizer's class."""
    rule: Rule | None
    """The rule that the class was made with, wrapped by the options."""
    own_step: Callable[[Any, Any], None] | None
    """A subclass's `update_step(gradient, variable)`, which may call the rule's; None if the rule updates."""
    hyper: Callable[[], dict[str, Any]]
    """This step's hyperparameters: floats, or float64 tensors inside a `tf.function`."""
    loose: type[Rule] | None = None
    """The class of a rule that the caller gave to `Optimizer` itself, so that no config contains it."""

    @property
    def owner(self) -> str:
        """Name of the class, for messages."""
        return self.cls.__name__

    @property
    def updating_rule(self) -> Rule | None:
        """The rule, if it updates and not a user's own `update_step`."""
        return self.rule if self.own_step is None else None

    @property
    def has_rule(self) -> bool:
        """Whether there is an algorithm to call, with or without a subclass's own step."""
        return self.rule is not None

    def owner_of(self, rule: Rule | None) -> str:
        """Return the name of a rule's class, for messages."""
        return self.owner

    def rule_of(self, tracked: Any) -> Rule | None:
        """Return `rule` for one variable."""
        return self.rule

    def updating_rule_of(self, tracked: Any) -> Rule | None:
        """Return `updating_rule` for one variable."""
        return self.rule_of(tracked) if self.own_step is None else None

    @property
    def updating_rules(self) -> tuple[Rule, ...]:
        """All rules that update variables; empty if a user's `update_step` does."""
        return () if self.updating_rule is None else (self.updating_rule,)

    @property
    def slots(self) -> tuple[Slot, ...]:
        return () if self.rule is None else self.rule.slots

    @property
    def scalars(self) -> Mapping[str, float]:
        return {} if self.rule is None else self.rule.scalars

    @property
    def default_rate(self) -> float | None:
        """The default learning rate. A class has its default in its signature."""
        return None if self.loose is None else default_rate(self.loose)

    def check_has_config(self) -> None:
        """Raise UnsupportedError if `from_config` could not make the optimizer again."""
        if self.loose is not None:
            rule = self.loose.__name__
            raise UnsupportedError(
                f"no config holds the rule of {self.owner}(rule={rule}(...)), so it cannot be saved or copied; make a"
                f" class of it, class Mine(optim.RuleOptimizer, rule={rule}), and use that"
            )


def of(optimizer: Any, rule: Rule | None, hyper: Callable[[], dict[str, Any]], base: type) -> Algorithm:
    """Return the algorithm of a new optimizer; `base` is `Optimizer`."""
    has_own = rule is None or has_own_step(type(optimizer))
    loose = None
    if rule is not None and type(optimizer).__init__ is base.__init__:  # type: ignore[misc]
        loose = type(rule)
    return Algorithm(type(optimizer), rule, optimizer.update_step if has_own else None, hyper, loose)


def has_own_step(cls: type) -> bool:
    """Whether a class of optimizers overrides `update_step`."""
    return not cls.update_step.__module__.startswith("optim.")  # type: ignore[attr-defined]
