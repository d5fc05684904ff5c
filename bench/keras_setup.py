"""Constructors of the Keras-style optimizers: tf_keras, its legacy ones, Keras 3 and optim; and what each lacks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.peer import first, wants, without

if TYPE_CHECKING:
    from bench.case import Case

OURS_ONLY = ("epsilon_inside", "schedule_decay")
"""Arguments that Keras does not have: its optimizers keep to one value of each."""


def make(optimizers: Any, case: Case, *, ours: bool = False, **options: Any) -> Any:
    """An optimizer of the case from a module that names its classes and arguments as Keras does."""
    arguments = {name: value for name, value in case.algorithm.hyperparameters.items() if ours or name not in OURS_ONLY}
    chosen = case.options.keras
    if case.algorithm.weight_decay is not None:
        chosen["weight_decay"] = case.weight_decay
        if case.algorithm.name == "muon":
            chosen["adam_weight_decay"] = case.weight_decay
    return getattr(optimizers, case.algorithm.class_name)(**arguments, **chosen, **options)


def averages(optimizer: Any) -> list[Any]:
    """The moving averages of tf_keras' and Keras 3's optimizers, in the order of the variables."""
    return optimizer._model_variables_moving_average


def current_keras_lacks(case: Case) -> str | None:
    """What no optimizer of tf_keras or Keras 3 does."""
    placed = case.options.placement != "like_variable"
    lazy = case.options.lazy_rows
    return first(
        (
            "its slots are always placed like their variables" if placed else None,
            "updates every row of a table" if lazy else None,
            wants(case, "rmsprop", "epsilon_inside", True),
            wants(case, "adagrad", "epsilon_inside", True),
            wants(case, "nadam", "schedule_decay", 1.0),
        )
    )


def tf_keras_lacks(case: Case) -> str | None:
    """What tf_keras' optimizers do not do."""
    accumulates = case.options.accumulate > 1
    return first(
        (
            without(case, "lamb", "muon"),
            "tf_keras accumulates no gradients" if accumulates else None,
            current_keras_lacks(case),
        )
    )


def legacy_lacks(case: Case) -> str | None:
    """What tf_keras' legacy optimizers do not do."""
    options = case.options
    lazy_class = case.algorithm.name not in ("adam", "adamax", "nadam")
    sparse = options.sparse_rows is not None
    return first(
        (
            without(case, "adamw", "lion", "adafactor", "lamb", "muon"),
            "the legacy optimizers keep no moving average" if options.ema is not None else None,
            "the legacy optimizers accumulate no gradients" if options.accumulate > 1 else None,
            "the legacy optimizers decay no weights" if options.weight_decay is not None else None,
            "its slots are always placed like their variables" if options.placement != "like_variable" else None,
            "updates every row of a table" if options.lazy_rows and not lazy_class else None,
            "updates touched rows only: compare with --lazy-rows"
            if sparse and lazy_class and not options.lazy_rows and not _same_either_way(case)
            else None,
            wants(case, "rmsprop", "epsilon_inside", case.algorithm.hyperparameters.get("momentum", 0.0) != 0.0),
            wants(case, "nadam", "schedule_decay", 0.004),
        )
    )


def _same_either_way(case: Case) -> bool:
    """Whether a row without a gradient stays as it is even when it is updated."""
    name = case.algorithm.name
    return name == "adagrad" or (name == "sgd" and not case.algorithm.hyperparameters["momentum"])


def keras3_lacks(case: Case) -> str | None:
    """What Keras 3's optimizers do not do."""
    missing = "this Keras has no Muon" if case.algorithm.name == "muon" and not _keras_has("muon") else None
    if case.options.ema is not None and case.options.accumulate > 1:
        missing = missing or "its averages count the calls between steps as well"
    return missing or current_keras_lacks(case)


def _keras_has(module: str) -> bool:
    """Whether the installed Keras 3 has an optimizer's file. Asking for the module would import Keras."""
    spec = importlib.util.find_spec("keras")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    return folder is None or (folder / "src" / "optimizers" / f"{module}.py").is_file()
