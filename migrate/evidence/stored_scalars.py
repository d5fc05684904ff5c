"""Sort the scalars of a source: hyperparameters that it keeps as variables, and state of the whole optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from migrate.algorithms import addons, keras_config
from migrate.algorithms.configuration import Configuration
from migrate.algorithms.spec import number
from migrate.bytes.arrays import LazyArray
from migrate.errors import DamagedFileError
from migrate.evidence import consistency
from migrate.evidence.configuration import RATES
from migrate.state import Stored


@dataclass(frozen=True)
class Scalars:
    """`hyperparameters` under Keras's names, `state` of the optimizer under `optim`'s, and what is neither."""

    hyperparameters: dict[str, float] = field(default_factory=dict)
    state: dict[str, float] = field(default_factory=dict)
    unmapped: dict[str, LazyArray] = field(default_factory=dict)


def sort(stored: Stored, configuration: Configuration, scalars: Mapping[str, LazyArray]) -> Scalars:
    """Sort the scalars that are left after the step counter.

    Raises:
      ContradictionError: the source keeps a hyperparameter or a state that the class does not have.
    """
    algorithm, result = configuration.algorithm, Scalars()
    state_names = {alias: name for name, aliases in algorithm.state_scalars for alias in (name, *aliases)}
    for name, array in scalars.items():
        key = "learning_rate" if name in RATES else addons.setting(name.lstrip("_"), configuration.config)
        if name in state_names and array.shape == ():
            result.state[state_names[name]] = _fraction(array)
        elif array.shape == () and key in keras_config.kept_as_variables(algorithm):
            result.hyperparameters[key] = array.number()
        else:
            if not algorithm.is_foreign:
                consistency.check_foreign(stored, key, name, algorithm)
            result.unmapped[name] = array
    return result


def overridden(state: Mapping[str, float], configuration: Configuration) -> dict[str, float]:
    """Return the state of the whole optimizer that the user sets."""
    names = (name for name, _ in configuration.algorithm.state_scalars if name in configuration.overrides)
    return {**state, **{name: number(configuration.overrides, name) for name in names}}


def _fraction(array: LazyArray) -> float:
    """Return a state of the whole optimizer that is not a count.

    Raises:
      DamagedFileError: it is of a dtype without fractions.
    """
    if not array.dtype.startswith(("float", "bfloat")):
        raise DamagedFileError(
            f"{array.stored_as} is {array.dtype}, and optimizers store it in floating point: the source was altered."
            " Copy it again"
        )
    return array.number()
