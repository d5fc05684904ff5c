"""Configs that Keras's own optimizers wrote, as arguments of ours that take the same steps.

| written by | told by |
|---|---|
| Keras 3 (`keras/src/optimizers/base_optimizer.py`) | `loss_scale_factor` |
| tf.keras from 2.11 on and tf_keras (`optimizers/optimizer.py`) | `is_legacy_optimizer`, which is False |
| OptimizerV2, `optimizers.legacy` (`legacy/optimizer_v2.py`) | its hyperparameters, a `name`, no `weight_decay` |
| Keras up to 2.3 and `optimizer_v1.py` | the same, and no `name` |

Ours always hold `mesh`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optim.errors import HyperparameterError

OLD = {
    "RMSprop": {"rho", "epsilon", "decay"},
    "Adagrad": {"epsilon", "decay"},
    "Nadam": {"beta_1", "beta_2", "epsilon", "decay"},
}
"""Of the rules that changed with 2.11, what each config before that holds."""
BACKEND_EPSILON = 1e-7
"""What Keras takes for an epsilon of None, unless `set_epsilon` changed that."""


def arguments(config: Mapping[str, Any], classes: tuple[str, ...]) -> dict[str, Any]:
    """Keyword arguments of ours out of `config`, which is not changed.

    Args:
      config: one that Keras wrote, or ours, or a part of either.
      classes: names of the optimizer's class and of its bases.

    Raises:
      HyperparameterError: Keras gives a key another meaning, which none of ours has.
    """
    given = dict(config)
    legacy = given.pop("is_legacy_optimizer", None)
    if "mesh" not in given:
        if "epsilon" in given and given["epsilon"] is None:
            given["epsilon"] = BACKEND_EPSILON
        old = next((name for name in classes if name in OLD), None)
        if "loss_scale_factor" in given:
            given = _of_keras_3(given)
            if "Muon" in classes and "rms_rate" not in given:
                given = _of_early_muon(given)
            if "ScheduleFreeAdamW" in classes:
                given.setdefault("weight_decay_in_step", False)  # it decays weights as all of Keras's do
        elif old is not None and "weight_decay" not in given and OLD[old] <= set(given):
            given = _older(old, given)
        if legacy is False:
            given.pop("jit_compile", None)  # not asked for: tf_keras writes True wherever it finds a GPU
        if legacy is False or "loss_scale_factor" in given:
            given = {name: value for name, value in given.items() if not _is_off(name, value)}
    factor = given.pop("loss_scale_factor", None)
    return given if factor is None else {**given, "loss_scale": factor}


def _is_off(name: str, value: Any) -> bool:
    """Whether Keras from 2.11 on takes an option's number for none at all."""
    return name in ("clipnorm", "clipvalue", "global_clipnorm", "ema_overwrite_frequency") and not (value or 0) > 0


def _of_keras_3(given: dict[str, Any]) -> dict[str, Any]:
    """Its averages start after the first step; and what goes by calls in the midst of accumulation is refused."""
    if given.get("use_ema"):
        given["ema_start"] = "first_step"
    if (given.get("gradient_accumulation_steps") or 1) > 1:
        steps = f"gradient_accumulation_steps={given['gradient_accumulation_steps']}"
        if given.get("use_ema"):
            raise HyperparameterError(
                f"use_ema: with {steps} Keras 3 moves its averages at every call, optim at every real step; leave"
                " use_ema out of the config, or make the optimizer with ema_momentum to the power of the calls"
            )
        if isinstance(given.get("learning_rate"), Mapping):
            raise HyperparameterError(
                f"learning_rate: with {steps} Keras 3 gives its schedule the number of calls, optim that of real steps;"
                " put a schedule of real steps into config['learning_rate']"
            )
    return given


def _of_early_muon(given: dict[str, Any]) -> dict[str, Any]:
    """The rule of Keras 3.10 to 3.12, whose configs have no `rms_rate` (`optimizers/muon.py`); see `rules/muon.py`."""
    both = {"adam_weight_decay": given["weight_decay"]} if "weight_decay" in given else {}
    return {**given, **both, "rms_rate": None, "aspect_scale": True, "stacks": True}


def _older(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The rules of `optim.legacy` under the names that the new classes have for them."""
    if name == "RMSprop" and given["epsilon"] == 0 and "name" in given:
        given["epsilon"] = BACKEND_EPSILON
    if name == "Nadam":
        given["schedule_decay"] = given.pop("decay")
        return given
    if name == "Adagrad" and "name" not in given:
        given.setdefault("initial_accumulator_value", 0.0)
    # OptimizerV2 takes the kernel of tf.train where there is momentum.
    return {**given, "epsilon_inside": name == "RMSprop" and bool(given.get("momentum"))}
