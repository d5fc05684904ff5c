"""Modules that upstream's tests import, with the optimizers of `optim` in place of upstream's own."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import optim
from optim.legacy import v2
from optim.legacy._base import LegacyOptimizer

KERAS_3 = {
    **{name: name.lower() for name in ("SGD", "RMSprop", "Adagrad", "Adadelta", "Adam", "AdamW", "Adamax", "Nadam")},
    **{name: name.lower() for name in ("Ftrl", "Lion", "Lamb", "Adafactor", "Muon")},
    "ScheduleFreeAdamW": "schedule_free_adamw",
}
"""Classes by the files of `keras/src/optimizers`; tf_keras has most of them in files of the same names."""
LEGACY = {name: name.lower() for name in v2.__all__ if name not in ("SGD", "Optimizer")} | {"SGD": "gradient_descent"}


class Asked:
    """What Keras 3's tests say in its words, or ask of private parts, answered by ours."""

    def __init__(self, *args: Any, loss_scale_factor: float | None = None, **kwargs: Any):
        if loss_scale_factor is not None:
            kwargs["loss_scale"] = loss_scale_factor
        if kwargs.get("use_ema"):
            kwargs.setdefault("ema_start", "first_step")
        super().__init__(*args, **kwargs)

    @property
    def _accumulated_gradients(self: Any) -> Any:
        return [self.get_slot(tracked.user_variable, "accumulated_gradient") for tracked in self._state.tracked]

    @property
    def _iterations(self: Any) -> Any:
        """Calls, where gradients are accumulated."""
        if not self.gradient_accumulation_steps:
            return self.iterations
        return self.iterations * self.gradient_accumulation_steps + self._state.scalars["accumulated_steps"]

    @property
    def _model_variables_moving_average(self: Any) -> Any:
        return [self.get_slot(tracked.user_variable, "average") for tracked in self._state.tracked]


def keras_3(wrapped: bool = False) -> dict[str, ModuleType]:
    """What stands in for modules of Keras 3, by name; `wrapped`: each optimizer is made with `for_keras`."""
    from keras.src import optimizers
    from keras.src.saving import register_keras_serializable

    kinds = {name: getattr(optim, name) for name in KERAS_3 if hasattr(optim, name)}
    ours = {name: type(name, (Asked, cls), {"__module__": __name__}) for name, cls in kinds.items()}
    for name, cls in ours.items():
        register_keras_serializable("optim", name)(cls)
    if wrapped:
        ours = {name: type(name, (), {"__new__": _made_for_keras(cls)}) for name, cls in ours.items()}
    home = "keras.src.optimizers"
    modules = {home: like(optimizers, get=_taking_ours(optimizers, "keras"), Optimizer=optim.Optimizer, **ours)}
    files = {name: f"{home}.{KERAS_3[name]}" for name in ours}
    there = {name: file for name, file in files.items() if importlib.util.find_spec(file)}  # older releases have fewer
    return modules | {file: like(_module(file), **{name: ours[name]}) for name, file in there.items()}


def _made_for_keras(cls: Any) -> Any:
    return lambda _, *args, **kwargs: optim.for_keras(cls(*args, **kwargs), sys.modules["keras"])


def keras_29(folder: Path) -> dict[str, ModuleType]:
    """What stands in for `keras.dtensor` of Keras 2.9, whose sources are in `folder`."""
    from tensorflow.experimental import dtensor

    test_util = ModuleType("keras.dtensor.test_util")
    source = (folder / "test_util.py").read_text(encoding="utf-8")
    exec(compile(source, str(folder / "test_util.py"), "exec"), test_util.__dict__)
    optimizers = ModuleType("keras.dtensor.optimizers")
    optimizers.__dict__.update({name: getattr(optim, name) for name in optim.__all__})
    modules = {name: ModuleType(name) for name in ("keras", "keras.dtensor")}
    return {
        **modules,
        "keras.dtensor.dtensor_api": dtensor,
        optimizers.__name__: optimizers,
        test_util.__name__: test_util,
    }


def tf_keras() -> dict[str, ModuleType]:
    """What stands in for modules of tf_keras, its new optimizers and its legacy ones."""
    from tf_keras.src import optimizers

    _taking_ours(optimizers, "tf_keras")
    home = "tf_keras.src.optimizers"
    new = {f"{home}.{file}": (name, getattr(optim, name, None)) for name, file in KERAS_3.items()}
    old = {f"{home}.legacy.{file}": (name, getattr(v2, name)) for name, file in LEGACY.items()}
    old[f"{home}.legacy.optimizer_v2"] = ("OptimizerV2", v2.Optimizer)
    found = {at: pair for at, pair in {**new, **old}.items() if pair[1] is not None and importlib.util.find_spec(at)}
    made = {at: like(_module(at), **{name: cls}) for at, (name, cls) in found.items()}
    made[f"{home}.legacy.adam"].__dict__["NonFusedAdam"] = v2.Adam  # the same steps, by other ops
    return made


def like(module: ModuleType, **changes: Any) -> ModuleType:
    """A module that has what `module` has, but for `changes`."""
    made = ModuleType(module.__name__)
    made.__dict__.update({name: value for name, value in vars(module).items() if not name.startswith("__")})
    made.__dict__.update(changes)
    return made


def _module(name: str) -> ModuleType:
    return importlib.import_module(name)


def _taking_ours(optimizers: Any, keras: str) -> Any:
    """Let `compile` take our optimizers as they are: `optimizers.get` wraps them with `for_keras`."""
    theirs = optimizers.get

    def get(identifier: Any, **options: Any) -> Any:
        is_ours = isinstance(identifier, (optim.Optimizer, LegacyOptimizer))
        return optim.for_keras(identifier, sys.modules[keras]) if is_ours else theirs(identifier, **options)

    optimizers.get = get
    return get
