"""Let an optimizer of `for_keras` step as Keras's class of the same name does, or warn of what it cannot do the same.

What differs is in `optim/keras_differences.py`.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import optim
from optim import keras_differences, lazy, schedules
from optim.errors import HyperparameterError, UnsupportedError
from optim.keras_differences import CLASSES, KERAS_3, NO_GRADIENT, ROWS, Difference
from optim.options.settings import OPTIONS

if TYPE_CHECKING:
    from optim.optimizer import Optimizer

OTHER_NAMES = ("lr", "loss_scale_factor")
"""Arguments that are other names of options."""
NOT_STEPS = ("name", "jit_compile", "kwargs")
"""Arguments of Keras's classes that change no step."""


class Behaviour:
    """What is left in which an optimizer steps differently from Keras: each is warned of once, when it matters.

    Args:
      optimizer: of `optim`. Before its first step, arguments that its caller did not choose take the values with which
        it steps as Keras does.
      keras: the module `keras` or `tf_keras`. generation: KERAS_3 or TF_KERAS. backend: that of `keras`.
      is_new: whether it took no step yet.
    """

    def __init__(self, optimizer: Optimizer, keras: ModuleType, generation: str, backend: str, is_new: bool):
        self._optimizer, self._called = optimizer, "Keras 3" if generation == KERAS_3 else "tf_keras"
        self.unlike: list[str] = []
        """Return the messages of `for_keras`, one for each difference."""
        self._is_new = is_new
        algorithm = _algorithm(optimizer)
        if algorithm in CLASSES and type(optimizer) is getattr(optim, algorithm):
            for name, value in _defaults(optimizer, getattr(keras.optimizers, algorithm, None)):
                self._take(name, value, f"{algorithm} of {self._called} has {name}={value!r} by default.")
        differences = [
            pair
            for pair in keras_differences.of(
                generation, algorithm, _values(optimizer), backend=backend, release=_release(keras)
            )
            if not pair[0].is_silent and (backend == "tensorflow" or not pair[0].is_of_rows)
        ]
        for difference, keywords in differences:
            for name, value in keywords.items():
                self._take(name, value, difference.sentence)
            if difference.keywords is None and not difference.occasion:
                self.unlike.append(difference.sentence)
        self._pending: dict[str, list[Difference]] = {}
        for difference, _ in differences:
            if difference.occasion:
                self._pending.setdefault(difference.occasion, []).append(difference)

    def look_at(self, gradients: Iterable[Any]) -> list[str]:
        """Return the differences with such gradients, each only once."""
        if not self._pending:
            return []
        gradients = list(gradients)
        occasions = {
            NO_GRADIENT: any(g is None for g in gradients),
            ROWS: any(lazy.is_tensor(g) and hasattr(g, "indices") for g in gradients),
        }
        differences = [
            difference_ for name in occasions if occasions[name] for difference_ in self._pending.pop(name, ())
        ]
        return [difference.sentence for difference in differences]

    def _take(self, name: str, value: Any, sentence: str) -> None:
        """Let an argument that the caller did not choose have a value, or warn of it."""
        optimizer = self._optimizer
        if not self._is_new or name in optimizer._settings.explicit or _is_same(_now(optimizer, name), value):
            return
        try:
            if name in OPTIONS:
                optimizer._settings.replace_default(name, value)
            else:
                setattr(optimizer, name, value)
        except (HyperparameterError, UnsupportedError):
            call = f"optim.{type(optimizer).__name__}(..., {name}={value!r})"
            self.unlike.append(f"{sentence} To have the steps of {self._called}:\n{call}")

    def warn(self, sentences: Iterable[str], stacklevel: int) -> None:
        for sentence in sentences:
            text = f"optim steps differently from {self._called}: {sentence.replace('`', '')}"
            warnings.warn(text, UserWarning, stacklevel + 1)


def _algorithm(optimizer: Optimizer) -> str:
    """The class of `optim` whose rule updates the variables; empty if `update_step` does."""
    if optimizer._algorithm.own_step is not None:
        return ""
    return next((c.__name__ for c in type(optimizer).__mro__ if getattr(optim, c.__name__, None) is c), "")


def _values(optimizer: Optimizer) -> Mapping[str, Any]:
    """Arguments by name; a schedule is a mapping, as in a config."""
    rate: Mapping[str, Any] | None = {} if schedules.is_schedule(optimizer._learning_rate) else None
    values = {**optimizer._hyper.values, **getattr(optimizer, "_choices", {})}
    options = {name: optimizer._settings.get(name) for name in OPTIONS if name not in OTHER_NAMES}
    return {**values, **options, "learning_rate": rate}


def _now(optimizer: Optimizer, name: str) -> Any:
    return optimizer._settings.rate.to_json() if name == "learning_rate" else getattr(optimizer, name, None)


def _defaults(optimizer: Optimizer, theirs: Any) -> Iterator[tuple[str, Any]]:
    """Arguments whose default in Keras's class is another one than in ours, and which have ours now."""
    ours = inspect.signature(type(optimizer)).parameters
    for name, parameter in inspect.signature(theirs.__init__).parameters.items() if theirs else ():
        has_no_effect = name.startswith("ema_") and not optimizer.use_ema
        if name in NOT_STEPS or name not in ours or has_no_effect or _is_same(ours[name].default, parameter.default):
            continue
        if _is_same(_now(optimizer, name), ours[name].default):
            yield name, parameter.default


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values of an argument are one; what is off may be None, False or empty."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return list(one) == list(other)
    return (not one and not other) or bool(one == other)


def _release(keras: ModuleType) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", getattr(keras, "__version__", ""))[:2])
