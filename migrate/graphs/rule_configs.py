"""Express a rule that a graph computes as a Keras class and config, if they result in the same rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from migrate.algorithms import ALGORITHMS
from migrate.algorithms.keras_config import PROGRAMS_OWN, lacks
from migrate.algorithms.spec import Algorithm
from migrate.graphs.fit import DECAY, RATE
from migrate.graphs.identify import Identity
from optim import rules
from optim.arguments import Choice
from optim.rule import Rule, arguments

_ANY = 0.5
"""In place of a hyperparameter whose number the graph doesn't contain."""


def class_of_rule(
    identities: list[Identity], generation: str, *, with_choices: bool = False
) -> tuple[str, dict[str, Any], Identity] | None:
    """Return the class, its flags and the identity, None unless exactly one class of that generation has such a rule.

    Args:
      with_choices: whether the flags may have choices of the rule that the class of that generation hasn't.
    """
    if len(identities) != 1:
        return None
    identity = identities[0]
    for algorithm in ALGORITHMS:
        is_of_generation = generation in algorithm.generations - algorithm.elsewhere
        flags = (
            _flags(algorithm, identity, generation, with_choices)
            if is_of_generation and rules.of(algorithm.name) is identity.rule
            else None
        )
        if flags is not None:
            return algorithm.name, flags, identity
    return None


def _flags(algorithm: Algorithm, identity: Identity, generation: str, with_choices: bool) -> dict[str, Any] | None:
    """The flags of the class, None if no config results in one of these rules."""
    numbers = {
        name: _ANY if scalar.number is None else scalar.number
        for name, scalar in identity.hyper.items()
        if name not in (RATE, DECAY, *identity.rules[0].scalars)
    }
    defaults, candidates = algorithm.defaults(generation), list[dict[str, Any]]()
    for rule in identity.rules:
        choices = _choices(rule)
        names = [name for name in choices if name in defaults and not lacks(name, algorithm, generation)]
        flags = {name: choices[name] for name in names}
        arguments_ = algorithm.arguments({**defaults, **numbers, **flags}, generation)
        declared = arguments(type(rule))
        extras = {name: v for name, v in choices.items() if arguments_.get(name, declared[name].default) != v}
        allowed = set(PROGRAMS_OWN) if with_choices else set()
        if extras.keys() <= allowed and all(arguments_.get(name) == number for name, number in numbers.items()):
            candidates.append({**flags, **extras})
    return min(candidates, key=len, default=None)


def _choices(rule: Rule) -> Mapping[str, Any]:
    pairs = arguments(type(rule)).items()
    flags = [name for name, argument in pairs if isinstance(argument, Choice) and isinstance(argument.default, bool)]
    return {name: getattr(rule, name) for name in flags}
