"""The differences between steps of `optim` and of Keras's classes of the same names, and the arguments that remove
them.

This one table is used by `for_keras`, by `from_config`, by `dtopt migrate code` and by the documentation. Each row was
measured against Keras 3.15 and tf_keras 2.21 (`tests/test_optim/keras/test_keras_differences.py`). Sources:
`keras/src/optimizers/base_optimizer.py`, `keras/src/backend/tensorflow/{optimizer,sparse}.py`,
`tf_keras/src/optimizers/{optimizer,nadam,rmsprop,lion}.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

KERAS_3, TF_KERAS, OPTIMIZER_V2 = "keras3", "tf_keras", "optimizer_v2"
"""Keras 3; tf.keras from 2.11 on and tf_keras; tf.keras up to 2.10 and `optimizers.legacy`."""
CALLED = {KERAS_3: "Keras 3", TF_KERAS: "tf_keras", OPTIMIZER_V2: "OptimizerV2"}
CLIP, SQUARE = "clip", "square"
"""Values of `repeated_rows`."""
LIMITS = ("clipnorm", "clipvalue", "global_clipnorm")
CLASSES = (
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lamb", "Muon", "Nadam", "RMSprop"),
    *("ScheduleFreeAdamW", "SGD", "Lion"),
)
"""Classes that Keras has, too."""
LINEAR = ("SGD", "Lion")
"""Those of them that need no power of a gradient."""
ROWS, NO_GRADIENT = "rows", "no gradient"
"""Occasions: a gradient is `IndexedSlices`; a gradient is None."""

Values = Mapping[str, Any]
"""Options and hyperparameters by the names of `optim`. A learning rate that is a mapping is a schedule."""


@dataclass(frozen=True)
class Difference:
    """One way in which `optim` steps differently from Keras.

    Attributes:
      name: the difference in a few words. sentence: what Keras does, and what `optim` does by default.
      keras: the versions of Keras that have it.
      applies: (class name, values) -> whether an optimizer with these values steps differently.
      keywords: (Keras, class name, values) -> the arguments of `optim` that reproduce Keras; None if nothing does.
      arguments: these arguments, for the documentation.
      occasion: ROWS or NO_GRADIENT if steps differ only with such a gradient; else empty.
      is_silent: whether there is no warning: `optim` is safer or more precise, or `for_keras` handles it.
      only_on: the backend of Keras 3 that has it; empty if all have it, or it does no harm on others.
      is_of_rows: whether it concerns gradients with rows, which Keras 3 has only on TensorFlow.
      before: the release of Keras from which on there is no difference; empty if every release differs.
    """

    name: str
    keras: tuple[str, ...]
    sentence: str
    applies: Callable[[str, Values], bool] = lambda algorithm, values: True
    keywords: Callable[[str, str, Values], dict[str, Any]] | None = None
    arguments: str = ""
    occasion: str = ""
    is_silent: bool = False
    only_on: str = ""
    is_of_rows: bool = False
    before: tuple[int, ...] = ()


def accumulates(values: Values) -> bool:
    return (values.get("gradient_accumulation_steps") or 1) > 1


def repeated_rows(keras: str, algorithm: str, values: Values) -> list[str]:
    """Return what a Keras does with several gradients of the same row in a batch: `repeated_rows` of `optim`.

    It contains `"clip"` even without a limit, which may be set later.
    """
    if accumulates(values):
        return []  # gathered in an array, which contains sums
    # global_clipnorm multiplies the slices, and so converts them to an array
    squares = keras == KERAS_3 and _squares(algorithm) and not values.get("global_clipnorm")
    return [CLIP, SQUARE] if squares else [CLIP]


def _squares(algorithm: str) -> bool:
    return algorithm in CLASSES and algorithm not in LINEAR


def _roots_of_rows(algorithm: str, values: Values) -> bool:
    """Whether Keras 3 may take the root of a negative number, or divide by zero, for a repeated row."""
    return _squares(algorithm) and (bool(values.get("centered")) or values.get("epsilon") == 0)


def _rows_that_can_be_said(keras: str, algorithm: str, values: Values) -> dict[str, Any]:
    rows = repeated_rows(keras, algorithm, values)
    return {} if SQUARE in rows and _roots_of_rows(algorithm, values) else {"repeated_rows": rows}


def _has_both_limits(values: Values) -> bool:
    norms = any((values.get(limit) or 0) > 0 for limit in ("clipnorm", "global_clipnorm"))
    return norms and (values.get("clipvalue") or 0) > 0


def _early_muon(keras: str, algorithm: str, values: Values) -> dict[str, Any]:
    decay = {"adam_weight_decay": values["weight_decay"]} if values.get("weight_decay") else {}
    return {**decay, "rms_rate": None, "aspect_scale": True, "stacks": True}


DIFFERENCES = (
    Difference(
        "schedules under accumulation",
        (KERAS_3,),
        "With `gradient_accumulation_steps` Keras gives a schedule the number of calls, `optim` that of real steps.",
        lambda algorithm, values: accumulates(values) and isinstance(values.get("learning_rate"), Mapping),
        lambda keras, algorithm, values: {"count_calls": True},
        "count_calls=True",
    ),
    Difference(
        "averages under accumulation",
        (KERAS_3,),
        "With `gradient_accumulation_steps` Keras moves averages at every call, `optim` at every real step.",
        lambda algorithm, values: accumulates(values) and bool(values.get("use_ema")),
        lambda keras, algorithm, values: {"count_calls": True},
        "count_calls=True",
    ),
    Difference(
        "start of averages",
        (KERAS_3,),
        "Averages of Keras start as the variables are after the first step, those of `optim` as they are before it.",
        lambda algorithm, values: bool(values.get("use_ema")),
        lambda keras, algorithm, values: {"ema_start": "first_step"},
        'ema_start="first_step"',
    ),
    Difference(
        "repeated rows of embeddings",
        (KERAS_3, TF_KERAS, OPTIMIZER_V2),
        "If a batch names a row of a table several times, Keras clips each of its gradients, and Keras 3 on TensorFlow"
        " also squares each. `optim` clips and squares their sum.",
        keywords=_rows_that_can_be_said,
        arguments='repeated_rows=["clip", "square"]',
        is_of_rows=True,
    ),
    Difference(
        "repeated rows with `centered=True` or `epsilon=0`",
        (KERAS_3,),
        "If a batch names a row of a table several times, Keras on TensorFlow squares each of its gradients, and may"
        " take the root of a negative number. `optim` squares their sum.",
        lambda algorithm, values: _roots_of_rows(algorithm, values) and not accumulates(values),
        occasion=ROWS,
        is_of_rows=True,
    ),
    Difference(
        "missing gradients",
        (KERAS_3,),
        "If a variable has no gradient in a call, Keras moves its average all the same, and forgets the gradients that"
        " it accumulated for it. `optim` leaves the average, and keeps these gradients.",
        lambda algorithm, values: bool(values.get("use_ema")) or accumulates(values),
        occasion=NO_GRADIENT,
    ),
    Difference(
        "a norm and `clipvalue`",
        (TF_KERAS,),
        "Given a norm and `clipvalue`, Keras clips by the norm only, `optim` by both.",
        lambda algorithm, values: _has_both_limits(values),
        lambda keras, algorithm, values: {"clipvalue": None},
        "clipvalue=None",
    ),
    Difference(
        "weight decay of `ScheduleFreeAdamW`",
        (KERAS_3,),
        "Keras decays weights before the step, as in every class; `optim` decays them within it.",
        lambda algorithm, values: algorithm == "ScheduleFreeAdamW",
        lambda keras, algorithm, values: {"weight_decay_in_step": False},
        "weight_decay_in_step=False",
    ),
    Difference(
        "`ScheduleFreeAdamW` on TensorFlow",
        (KERAS_3,),
        "Keras reads z after it moved it. `optim` takes the steps of the paper, as Keras does on JAX.",
        lambda algorithm, values: algorithm == "ScheduleFreeAdamW",
        lambda keras, algorithm, values: {"late_z": True},
        "late_z=True",
        only_on="tensorflow",
    ),
    Difference(
        "`Muon` before Keras 3.13",
        (KERAS_3,),
        "Keras had another rule under the name.",
        lambda algorithm, values: algorithm == "Muon",
        _early_muon,
        "rms_rate=None, aspect_scale=True, stacks=True",
        before=(3, 13),
    ),
    Difference(
        "`Nadam` in a `tf.function`",
        (TF_KERAS,),
        "Keras multiplies its product of momenta once for each variable, `optim` once a step.",
        lambda algorithm, values: algorithm == "Nadam",
    ),
    Difference(
        "default arguments",
        (TF_KERAS,),
        "`Lion` of Keras has `learning_rate=0.0001`, its `RMSprop` `ema_overwrite_frequency=100`. `for_keras` takes the"
        " defaults of the installed Keras.",
        is_silent=True,
    ),
    Difference(
        "overflow under a constant loss scale",
        (KERAS_3,),
        "If a gradient is not finite, Keras takes the step, and `optim` leaves it out.",
        lambda algorithm, values: isinstance(values.get("loss_scale"), (int, float)),
        is_silent=True,
    ),
    Difference(
        "variables in float16 or bfloat16",
        (KERAS_3, TF_KERAS, OPTIMIZER_V2),
        "Keras computes a step in the dtype of the variable, `optim` in float32.",
        is_silent=True,
    ),
)
"""Every known difference, except for rounding."""


def of(
    keras: str, algorithm: str, values: Values, *, backend: str = "", release: tuple[int, ...] = ()
) -> Iterator[tuple[Difference, dict[str, Any]]]:
    """Yield the differences of an optimizer, each with the arguments of `optim` that reproduce Keras, if there are any.

    Args:
      keras: KERAS_3, TF_KERAS or OPTIMIZER_V2.
      algorithm: the name of the class. values: the known arguments, by the names of `optim`.
      backend: that of Keras 3, and `release` that of Keras; empty if unknown.
    """
    for difference in DIFFERENCES:
        is_about = keras in difference.keras and difference.only_on in ("", backend)
        if not is_about or (difference.before and not () < release < difference.before):
            continue
        if difference.applies(algorithm, values):
            keywords = {} if difference.keywords is None else difference.keywords(keras, algorithm, values)
            yield difference, keywords


def reproducing(keras: str, algorithm: str, values: Values, **known: Any) -> dict[str, Any]:
    """Return the arguments of `optim` with which it steps like Keras, if such arguments exist; see `of`."""
    return {name: value for _, keywords in of(keras, algorithm, values, **known) for name, value in keywords.items()}
