"""Mesh-aware optimizers for TensorFlow DTensor, with the API that Keras 2.9 documented, and for Keras on any backend.

Names are loaded at their first use, so that `optim.errors`, `optim.slot_layout` and `optim.rules` can be imported
without TensorFlow. Type checkers read `__init__.pyi` instead, which `tools/stubs.py` makes.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from optim.layouts import program_order
from optim.lazy import uses_tensorflow

program_order.keep()

_HOME = {
    "Adadelta": "optim.optimizers.adadelta",
    "Adafactor": "optim.optimizers.adafactor",
    "Adagrad": "optim.optimizers.adagrad",
    "Adam": "optim.optimizers.adam",
    "AdamW": "optim.optimizers.adamw",
    "Adamax": "optim.optimizers.adamax",
    "COCOB": "optim.optimizers.cocob",
    "ConditionalGradient": "optim.optimizers.conditional_gradient",
    "Ftrl": "optim.optimizers.ftrl",
    "Lamb": "optim.optimizers.lamb",
    "Lion": "optim.optimizers.lion",
    "Muon": "optim.optimizers.muon",
    "Nadam": "optim.optimizers.nadam",
    "ProximalAdagrad": "optim.optimizers.proximal_adagrad",
    "RMSprop": "optim.optimizers.rmsprop",
    "RectifiedAdam": "optim.optimizers.rectified_adam",
    "AdaBelief": "optim.optimizers.adabelief",
    "Yogi": "optim.optimizers.yogi",
    "NovoGrad": "optim.optimizers.novograd",
    "LARS": "optim.optimizers.lars",
    "Adan": "optim.optimizers.adan",
    "ScheduleFreeAdamW": "optim.optimizers.schedule_free_adamw",
    "SGD": "optim.optimizers.sgd",
    "SOAP": "optim.optimizers.soap",
    "Shampoo": "optim.optimizers.shampoo",
    "Groups": "optim.optimizers.groups",
    "RuleOptimizer": "optim.optimizers.of_rule",
    "Rule": "optim.rule",
    "Slot": "optim.rule",
    "Hyperparameter": "optim.arguments",
    "choice": "optim.arguments",
    "AdaptiveGradClip": "optim.options.adaptive_clipping",
    "EMAOption": "optim.options.option_objects",
    "GradientsClipOption": "optim.options.option_objects",
    "Lookahead": "optim.options.lookahead",
    "QKClip": "optim.options.qk_clip",
    "StochasticAverage": "optim.options.stochastic_average",
    "Optimizer": "optim.optimizer",
    "build_kernels": "optim.native.library",
    "describe_checkpoint": "optim.checkpoints.stored",
    "load_checkpoint": "optim.checkpoints.loading",
    "for_keras": "optim.keras.for_keras",
    "keras_objects": "optim.keras.for_keras",
    "save_checkpoint": "optim.checkpoints.saving",
}

FOLDERS = ("legacy", "schedules")
"""Modules that are public under their own names."""
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        home = "optim.recipe" if name == "Optimizer" and not uses_tensorflow() else _HOME[name]
        try:
            return getattr(import_module(home), name)
        except ModuleNotFoundError as error:
            if error.name != "tensorflow":
                raise
            needs = (
                f"optim.{name} needs TensorFlow, which is not installed: pip install tensorflow. For Keras on JAX or"
                " PyTorch, set KERAS_BACKEND before optim is used"
            )
            raise ModuleNotFoundError(needs, name="tensorflow") from error
    if name in FOLDERS:
        return import_module(f"optim.{name}")
    raise AttributeError(f"module 'optim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_HOME, *FOLDERS]
