"""`RuleOptimizer`: an optimizer class whose signature, checks, attributes, config and docstring come from its rule."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import TYPE_CHECKING, Any

from optim.arguments import Choice, Hyperparameter
from optim.errors import HyperparameterError
from optim.hyperparameters import ChoiceAttribute, HyperparameterAttribute, Values
from optim.lazy import uses_tensorflow
from optim.namespace import XP
from optim.native.trace import unknown_function
from optim.options import settings
from optim.rule import Rule, arguments, hyperparameters

if TYPE_CHECKING or uses_tensorflow():
    from optim.optimizer import Optimizer
else:
    from optim.recipe import Optimizer

AFTER_OWN = ("gradients_clip_option", "ema_option", "name", "mesh")
"""Arguments of `Optimizer` that follow those of the algorithm, in the order of Keras 2.9."""


@dataclass(frozen=True)
class Option:
    """An argument of `Optimizer` that an algorithm accepts by position, with its own default."""

    default: Any
    meaning: str


class RuleOptimizer(Optimizer):
    """Base of the optimizers that are made from a rule: `class Mine(optim.RuleOptimizer, rule=MyRule): ...`.

    Args of the class statement:
      rule: a subclass of `optim.Rule`, whose body declares the arguments.
      options: arguments of `Optimizer`, `weight_decay` for example, that are listed with those of the algorithm.
      positional: names in the order of the signature; None: those of the rule, then `options`.

    The docstring of the class describes the algorithm; the rule adds the arguments.

    Raises:
      HyperparameterError: `rule` is not a class of rules, or declares no learning rate.
    """

    _rule_class: type[Rule]
    _own_signature: inspect.Signature

    def __init_subclass__(
        cls,
        rule: type[Rule] | None = None,
        options: Mapping[str, Option] | None = None,
        positional: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init_subclass__(**kwargs)
        if rule is None and hasattr(cls, "_rule_class"):  # a subclass of a class that has one
            return
        if not (isinstance(rule, type) and issubclass(rule, Rule)):
            raise HyperparameterError(
                f"rule={rule!r} is not a subclass of optim.Rule; pass the class, not an instance:"
                f" class {cls.__name__}(optim.RuleOptimizer, rule=MyRule)"
            )
        if "learning_rate" not in arguments(rule):
            raise HyperparameterError(
                f"{rule.__name__} declares no learning rate; begin its body with"
                ' learning_rate = optim.Hyperparameter(0.001, "the size of a step")'
            )
        _check_functions(rule)
        declared: dict[str, Hyperparameter | Choice | Option] = {**arguments(rule), **(options or {})}
        declared = {name: declared[name] for name in dict.fromkeys((*(positional or declared), *declared))}
        cls._rule_class = rule
        cls._own_signature = cls.__signature__ = _signature(cls.__name__, declared)
        for name, argument in declared.items():
            if isinstance(argument, Choice):
                setattr(cls, name, ChoiceAttribute(name))
            elif isinstance(argument, Hyperparameter) and name != "learning_rate":
                setattr(cls, name, HyperparameterAttribute(name))
        cls.__doc__ = _docstring(cls.__doc__ or "", rule, declared)

    def __init__(self, *args: Any, **kwargs: Any):
        try:
            bound = self._own_signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}() {error}") from None
        self._explicit = {name for name, value in bound.arguments.items() if value is not None}
        bound.apply_defaults()
        options_ = dict(bound.arguments)
        declared = arguments(self._rule_class)
        numbers = hyperparameters(self._rule_class)
        choices = {n: a.check(n, options_.pop(n)) for n, a in declared.items() if isinstance(a, Choice)}
        self._hyper = Values(numbers, {name: options_.pop(name) for name in numbers})
        self._choices = choices
        super().__init__(**options_, rule=self._rule_class.from_arguments(choices, self._hyper.values))

    def _slots_missing(self) -> list[str]:
        """Return slots that the current hyperparameters need, but that the optimizer was made without."""
        rule = self._rule_class.from_arguments(self._choices, self._hyper.values)
        have = {slot.name for slot in self._algorithm.slots}
        return [slot.name for slot in rule.slots if slot.name not in have]

    def get_config(self) -> dict[str, Any]:
        """See `Optimizer.get_config`."""
        choices = {name: list(v) if isinstance(v, tuple) else v for name, v in self._choices.items()}
        return {**super().get_config(), **choices}


def _check_functions(rule: type[Rule]) -> None:
    """Raise HyperparameterError if the rule, with its default choices, calls a function that no executor has."""
    if not uses_tensorflow():
        return  # `for_keras` checks it, when it knows the backend
    declared = arguments(rule)
    choices = {n: a.check(n, a.default) for n, a in declared.items() if isinstance(a, Choice)}
    called = unknown_function(rule.from_arguments(choices, {n: a.default for n, a in hyperparameters(rule).items()}))
    if called is not None:
        getattr(XP, called)


def _signature(name: str, declared: Mapping[str, Hyperparameter | Choice | Option]) -> inspect.Signature:
    """Return the algorithm's arguments, those of Keras 2.9, the algorithm's keyword-only ones, and the options of every
    optimizer.
    """
    shared = inspect.signature(Optimizer).parameters
    by_keyword = {n for n, a in declared.items() if getattr(a, "keyword", False)}

    def parameter(argument: str, kind: Any) -> Parameter:
        default = declared[argument].default
        is_required = isinstance(declared[argument], Hyperparameter) and default is None
        return Parameter(argument, kind, default=Parameter.empty if is_required else default, annotation=Any)

    last = [shared[n].replace(default=name if n == "name" else shared[n].default) for n in AFTER_OWN]
    rest = [shared[n] for n in settings.OPTIONS if n not in declared]
    return inspect.Signature(
        [
            *(parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in declared if n not in by_keyword),
            *last,
            *(parameter(n, Parameter.KEYWORD_ONLY) for n in declared if n in by_keyword),
            *rest,
        ]
    )


def _docstring(text: str, rule: type[Rule], declared: Mapping[str, Hyperparameter | Choice | Option]) -> str:
    """Return the text of the class, with the arguments from its rule, and the file of the maths."""
    lines = [
        inspect.cleandoc(text),
        "",
        f"Maths, slots and sources: `{rule.__module__.replace('.', '/')}.py`.",
        "",
        "Args:",
    ]
    for name, argument in declared.items():
        if getattr(argument, "keyword", False):
            continue
        lines += _entry(name, argument)
    lines += _wrapped("  gradients_clip_option, ema_option, name, mesh, and all that follows: see `Optimizer`.")
    for name, argument in declared.items():
        if getattr(argument, "keyword", False):
            lines += _entry(name, argument)
    lines += [
        "",
        "Raises:",
        *_wrapped(f"  {HyperparameterError.__name__}: out of range, contradictory, or not a number."),
    ]
    return "\n".join(lines)


def _entry(name: str, argument: Hyperparameter | Choice | Option) -> list[str]:
    text = f"  {name}: {argument.meaning}"
    if isinstance(argument, Hyperparameter) and name != "learning_rate":
        text += f", {argument.bounds}; number, scalar tensor or zero-argument callable"
    return _wrapped(f"{text}.")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 116, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
