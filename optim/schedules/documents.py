"""Convert schedules to documents, `{"class_name", "config"}`, and back, without Keras."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optim.errors import HyperparameterError
from optim.schedules.base import KNOWN, LearningRateSchedule
from optim.schedules.stock import Stock

KERAS = ("keras", "tf_keras", "tensorflow")
HOMES = (*KERAS, "builtins", "optim")
"""Packages whose schedule with the name of a stock one is the stock one, in Keras's `{"module", "class_name", ...}`."""


def is_schedule(value: Any) -> bool:
    """Whether `value` is a schedule of ours, of Keras 3, tf_keras or tf.keras (a class of that name in its bases)."""
    return any(base.__name__ == "LearningRateSchedule" for base in type(value).__mro__)


def to_config(schedule: Any) -> dict[str, Any]:
    """Return the `{"class_name", "config"}` of any schedule; its `get_config` must return JSON values.

    `"dtype"` is added to a stock one that is not computed in float64, and `"module"` to one that Keras does not have,
    because a program may have its own under that name. If another schedule has the name of one from here, its class
    name in the document begins with its module and `>`.
    """
    cls = type(schedule)
    document = {"class_name": cls.__name__, "config": dict(schedule.get_config())}
    if cls.__name__ not in KNOWN:
        return document
    if not _is_from(cls, HOMES):
        return {**document, "class_name": f"{cls.__module__}>{cls.__name__}"}
    if KNOWN[cls.__name__] is cls and not issubclass(cls, Stock):
        return {"module": cls.__module__, **document}
    dtype = schedule(0).dtype if not isinstance(schedule, LearningRateSchedule) else getattr(schedule, "_dtype", None)
    name = getattr(dtype, "name", dtype)
    return document if name in ("float64", None) else {**document, "dtype": name}


def _is_from(cls: type, homes: tuple[str, ...]) -> bool:
    return cls.__module__.partition(".")[0] in homes


def is_known(document: Mapping[str, Any]) -> bool:
    """Whether `from_config` has the class that a document names."""
    name, home = str(document.get("class_name")), str(document.get("module") or "keras").partition(".")[0]
    inner = (document.get("config") or {}).get("schedule")
    if isinstance(inner, Mapping) and not is_known(inner):
        return False
    return name in KNOWN and home in HOMES and document.get("registered_name") in (None, name)


def from_config(document: Mapping[str, Any]) -> LearningRateSchedule:
    """Return the schedule of `KNOWN` that `{"class_name", "config"}` describes, as `to_config` or Keras writes it.

    Raises:
      HyperparameterError: a class that is not a stock one; pass the live object instead.
    """
    name = str(document.get("class_name"))
    if not is_known(document):
        inner = (document.get("config") or {}).get("schedule")
        unknown = inner.get("class_name") if name in KNOWN and isinstance(inner, Mapping) else name
        raise HyperparameterError(
            f"learning_rate is the schedule {unknown!r}, which is neither Keras's nor optim's ({', '.join(KNOWN)});"
            " put the live schedule object into config['learning_rate']"
        )
    try:
        schedule = KNOWN[name].from_config(document["config"])
    except (KeyError, TypeError) as error:
        raise HyperparameterError(f"the config of schedule {name} does not fit it: {error}") from error
    dtype = document.get("dtype", "float32" if str(document.get("module")).partition(".")[0] in KERAS else "float64")
    if isinstance(schedule, Stock) and dtype != "float64":
        schedule._dtype = str(dtype)
    return schedule
