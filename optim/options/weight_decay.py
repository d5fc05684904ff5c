"""Weight decay: decoupled from the gradient or part of it, times the learning rate or not, and what is left out of it.

    decoupled:                          p ← p · (1 − weight_decay · lr), before the update
    decoupled, the rate left out of it: p ← p · (1 − weight_decay)
    coupled (L2 regularization):        g ← g + weight_decay · p, after clipping

Decoupled: Loshchilov & Hutter, "Decoupled Weight Decay Regularization" (2019); times the rate in Keras from 2.10 on and
in torch, without it in `tfa.optimizers.extend_with_decoupled_weight_decay` (AdamW, SGDW) of TensorFlow Addons 0.19.
Coupled: `weight_decay` of `torch.optim.SGD`, `Adam` and others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from optim import lazy
from optim.arguments import boolean, patterns
from optim.errors import HyperparameterError
from optim.hyperparameters import to_number
from optim.options.base import Option, Part
from optim.options.rule_wrapper import RuleWrapper
from optim.rule import Arrays, Rule, Scalars
from optim.state.names import matches

if TYPE_CHECKING:
    import tensorflow as tf

    from optim.state.state import State
    from optim.state.tracked import Tracked, TrackedVariables


def _check(value: Any) -> float | None:
    if value is None:
        return None
    if callable(value) and not lazy.is_variable(value):
        raise HyperparameterError(
            f"weight_decay must be a number, got {type(value).__name__}: times the learning rate a number follows the"
            " schedule of that; set optimizer.weight_decay for what goes by another"
        )
    number = to_number("weight_decay", value)
    if number is None or not 0 <= number < math.inf:
        raise HyperparameterError(f"weight_decay must be finite and >= 0, or None, got {value!r}")
    return number


@dataclass(frozen=True)
class CoupledDecay(RuleWrapper):
    """A rule whose gradients have weight decay in them."""

    @property
    def places_weight_decay(self) -> bool:
        return True

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        return {**self.rule.coefficients(xp, hyper, step), "coupled_weight_decay": hyper.get("weight_decay", 0.0)}

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        return self.rule.update(xp, variable, gradient + c["coupled_weight_decay"] * variable, slots, c)


class WeightDecay(Part):
    """How much each variable decays; a rule may set other amounts for some variables than the option does."""

    options: ClassVar = {
        "weight_decay": Option(
            None,
            "before the update, and after clipping, p ← p · (1 − weight_decay · lr), >= 0; the next two change that",
        ),
        "decoupled_weight_decay": Option(
            True,
            "False adds weight_decay · p to the gradient instead, as `weight_decay` of torch's SGD and Adam does (L2"
            " regularization); not for LARS, NovoGrad and Schedule-Free AdamW, which have their own place for it",
        ),
        "learning_rate_in_weight_decay": Option(
            True,
            "False leaves the learning rate out, p ← p · (1 − weight_decay), as AdamW and SGDW of TensorFlow Addons do",
        ),
        "weight_decay_exclude": Option(
            (),
            "regular expressions; a variable whose name one of them matches (`re.search`) is not decayed",
        ),
    }

    def __init__(self, values: Mapping[str, Any], tracked: TrackedVariables, rule: Rule | None):
        self.weight_decay = _check(values["weight_decay"])
        self.decoupled_weight_decay = boolean("decoupled_weight_decay", values["decoupled_weight_decay"])
        rate = "learning_rate_in_weight_decay"
        self.learning_rate_in_weight_decay = boolean(rate, values[rate])
        self.patterns = patterns("weight_decay_exclude", values["weight_decay_exclude"])
        self.variables: list[tf.Variable] = []
        self._tracked = tracked
        self._rule = rule
        self._amounts: dict[int, float | None] = {}

    def check(self, rule: Rule | None, owner: str) -> None:
        """Raises HyperparameterError: the rule of `owner`, None for its own `update_step`, cannot decay like this."""
        for option in ("decoupled_weight_decay", "learning_rate_in_weight_decay"):
            if not self.get(option) and rule is not None and rule.places_weight_decay:
                raise HyperparameterError(
                    f"{option}=False: the algorithm of {owner} has its own place for weight decay"
                )
        if not self.decoupled_weight_decay and rule is None:
            raise HyperparameterError(f"decoupled_weight_decay=False has no effect: {owner} has its own update_step")
        if not self.decoupled_weight_decay and not self.learning_rate_in_weight_decay:
            raise HyperparameterError(
                "learning_rate_in_weight_decay=False has no effect with decoupled_weight_decay=False, which puts weight"
                " decay into the gradient"
            )

    def wrap(self, rule: Rule) -> Rule:
        """The rule of the optimizer out of that of its class."""
        return rule if self.decoupled_weight_decay else CoupledDecay(rule)

    @property
    def weight_decay_exclude(self) -> list[str]:
        """Regular expressions, also of the variables that were excluded one by one."""
        single = [f"^{re.escape(t.name)}$" for t in self._tracked if self.lists(t.variable)]
        return [*self.patterns, *(pattern for pattern in single if pattern not in self.patterns)]

    def change(self, name: str, value: Any) -> None:
        self._amounts = {}
        if name == "weight_decay":
            self.weight_decay = _check(value)
        elif name == "learning_rate_in_weight_decay":
            self.learning_rate_in_weight_decay = boolean(name, value)
        elif name == "decoupled_weight_decay":
            super().change(name, value)
        else:
            self.patterns = patterns(name, value)

    def exclude_from_weight_decay(
        self, var_list: Sequence[Any] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """Leave out variables, and those whose names one of these regular expressions matches."""
        more = patterns("var_names", list(var_names or ()))
        self.variables += [self._tracked.unwrap(variable) for variable in var_list or ()]
        self._amounts = {}
        self.patterns = (*self.patterns, *(pattern for pattern in more if pattern not in self.patterns))
        self.changed()

    def join(self, state: State, accumulation: Any) -> None:
        self._tracked = state.tracked

    def is_excluded(self, tracked: Tracked) -> bool:
        return self.lists(tracked.variable) or matches(self.patterns, tracked)

    def lists(self, variable: tf.Variable) -> bool:
        """Whether a variable was excluded by itself, and not by its name."""
        return any(variable is other for other in self.variables)

    def amount(self, tracked: Tracked) -> float | None:
        """The weight decay of a variable; None without decay."""
        if tracked.index not in self._amounts:
            decay = self.weight_decay
            if self._rule is not None:
                decay = self._rule.weight_decay(decay, list(tracked.variable.shape), tracked.names)
            self._amounts[tracked.index] = None if not decay or self.is_excluded(tracked) else decay
        return self._amounts[tracked.index]

    def amounts(self, tracked: Sequence[Tracked]) -> list[float | None]:
        """`amount` of each."""
        if self.weight_decay is None and (self._rule is None or type(self._rule).weight_decay is Rule.weight_decay):
            return [None] * len(tracked)
        known = self._amounts
        return [known[t.index] if t.index in known else self.amount(t) for t in tracked]

    def factor(self, amount: float, rate: Any) -> Any:
        """What a variable that decays so much is multiplied with before its update at the learning rate `rate`.

        Raises:
          HyperparameterError: there is no learning rate.
        """
        if not self.learning_rate_in_weight_decay:
            return 1.0 - amount
        if rate is None:
            raise HyperparameterError("weight_decay needs a learning_rate; give the optimizer one")
        return 1.0 - amount * rate
