"""Convert configs of Keras's own optimizers to arguments of ours that make the same steps.

| written by | recognised by |
|---|---|
| Keras 3 (`keras/src/optimizers/base_optimizer.py`) | `loss_scale_factor` |
| tf.keras from 2.11 on and tf_keras (`optimizers/optimizer.py`) | `is_legacy_optimizer`, which is False |
| OptimizerV2, `optimizers.legacy` (`legacy/optimizer_v2.py`) | its hyperparameters, a `name`, no `weight_decay` |
| Keras up to 2.3 and `optimizer_v1.py` | the same, and no `name` |

Ours always contain `mesh`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optim import keras_differences

OLD = {
    "RMSprop": {"rho", "epsilon", "decay"},
    "Adagrad": {"epsilon", "decay"},
    "Nadam": {"beta_1", "beta_2", "epsilon", "decay"},
}
"""Keys of each config before 2.11, for the rules that changed with 2.11."""
BACKEND_EPSILON = 1e-7
"""Keras's value for an epsilon of None, unless `set_epsilon` changed that."""


def arguments(config: Mapping[str, Any], classes: tuple[str, ...], has_own_step: bool = False) -> dict[str, Any]:
    """Return keyword arguments of ours for `config`, which is not changed.

    Args:
      config: one of Keras's, or ours, or a part of either.
      classes: names of the optimizer's class and of its bases. has_own_step: whether it overrides `update_step`.
    """
    options = dict(config)
    legacy = options.pop("is_legacy_optimizer", None)
    if "mesh" in options:
        return options
    if "epsilon" in options and options["epsilon"] is None:
        options["epsilon"] = BACKEND_EPSILON
    old = next((name for name in classes if name in OLD), None)
    keras = _writer(options, legacy)
    if keras != keras_differences.KERAS_3 and old and "weight_decay" not in options and OLD[old] <= set(options):
        options = _older(old, options)
    if keras == keras_differences.TF_KERAS:
        options.pop("jit_compile", None)  # ignored: tf_keras writes True whenever it finds a GPU
    if keras in (keras_differences.KERAS_3, keras_differences.TF_KERAS):
        options = {name: value for name, value in options.items() if not _is_off(name, value)}
    return options if keras is None else _reproducing(keras, () if has_own_step else classes, options)


def _writer(options: Mapping[str, Any], legacy: bool | None) -> str | None:
    """Return which Keras wrote a config; None if `keras_differences` does not know it."""
    if "loss_scale_factor" in options:
        return keras_differences.KERAS_3
    if legacy is False:
        return keras_differences.TF_KERAS
    return keras_differences.OPTIMIZER_V2 if "name" in options and "decay" in options else None


def _reproducing(keras: str, classes: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Add the arguments that make `optim` step like that Keras; other keys of the config have priority."""
    name = next((name for name in classes if name in keras_differences.CLASSES), "")
    release = (3, 12) if name == "Muon" and "rms_rate" not in options else ()
    factor = options.pop("loss_scale_factor", None)
    more = keras_differences.reproducing(keras, name, options, release=release)
    more = {key: value for key, value in more.items() if key not in options or key in keras_differences.LIMITS}
    return {**options, **more} if factor is None else {**options, **more, "loss_scale": factor}


def _is_off(name: str, value: Any) -> bool:
    """Whether Keras from 2.11 on treats an option's number as switched off."""
    return name in ("clipnorm", "clipvalue", "global_clipnorm", "ema_overwrite_frequency") and not (value or 0) > 0


def _older(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the rules of `optim.legacy` under their names in the new classes."""
    if name == "RMSprop" and options["epsilon"] == 0 and "name" in options:
        options["epsilon"] = BACKEND_EPSILON
    if name == "Nadam":
        options["schedule_decay"] = options.pop("decay")
        return options
    if name == "Adagrad" and "name" not in options:
        options.setdefault("initial_accumulator_value", 0.0)
    # OptimizerV2 uses the kernel of tf.train if there is momentum.
    return {**options, "epsilon_inside": name == "RMSprop" and bool(options.get("momentum"))}
