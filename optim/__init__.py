"""Mesh-aware optimizers for TensorFlow DTensor, with the API that Keras 2.9 documented.

Names are loaded when they are first used, so that `optim.errors`, `optim.slot_layout` and `optim.rules` can be
imported without TensorFlow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from optim.layouts import program_order

if TYPE_CHECKING:
    from optim import legacy as legacy
    from optim.arguments import Hyperparameter as Hyperparameter
    from optim.arguments import choice as choice
    from optim.checkpoints.loading import describe_checkpoint as describe_checkpoint
    from optim.checkpoints.loading import load_checkpoint as load_checkpoint
    from optim.checkpoints.saving import save_checkpoint as save_checkpoint
    from optim.keras.making import for_keras as for_keras
    from optim.keras.making import keras_objects as keras_objects
    from optim.native.library import build_kernels as build_kernels
    from optim.optimizer import Optimizer as Optimizer
    from optim.optimizers.adabelief import AdaBelief as AdaBelief
    from optim.optimizers.adadelta import Adadelta as Adadelta
    from optim.optimizers.adafactor import Adafactor as Adafactor
    from optim.optimizers.adagrad import Adagrad as Adagrad
    from optim.optimizers.adam import Adam as Adam
    from optim.optimizers.adamax import Adamax as Adamax
    from optim.optimizers.adamw import AdamW as AdamW
    from optim.optimizers.adan import Adan as Adan
    from optim.optimizers.cocob import COCOB as COCOB
    from optim.optimizers.conditional_gradient import ConditionalGradient as ConditionalGradient
    from optim.optimizers.ftrl import Ftrl as Ftrl
    from optim.optimizers.lamb import Lamb as Lamb
    from optim.optimizers.lars import LARS as LARS
    from optim.optimizers.lion import Lion as Lion
    from optim.optimizers.muon import Muon as Muon
    from optim.optimizers.nadam import Nadam as Nadam
    from optim.optimizers.novograd import NovoGrad as NovoGrad
    from optim.optimizers.of_rule import RuleOptimizer as RuleOptimizer
    from optim.optimizers.proximal_adagrad import ProximalAdagrad as ProximalAdagrad
    from optim.optimizers.rectified_adam import RectifiedAdam as RectifiedAdam
    from optim.optimizers.rmsprop import RMSprop as RMSprop
    from optim.optimizers.schedule_free_adamw import ScheduleFreeAdamW as ScheduleFreeAdamW
    from optim.optimizers.sgd import SGD as SGD
    from optim.optimizers.yogi import Yogi as Yogi
    from optim.options.lookahead import Lookahead as Lookahead
    from optim.options.option_objects import EMAOption as EMAOption
    from optim.options.option_objects import GradientsClipOption as GradientsClipOption
    from optim.options.stochastic_average import StochasticAverage as StochasticAverage
    from optim.rule import Rule as Rule
    from optim.rule import Slot as Slot

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
    "RuleOptimizer": "optim.optimizers.of_rule",
    "Rule": "optim.rule",
    "Slot": "optim.rule",
    "Hyperparameter": "optim.arguments",
    "choice": "optim.arguments",
    "EMAOption": "optim.options.option_objects",
    "GradientsClipOption": "optim.options.option_objects",
    "Lookahead": "optim.options.lookahead",
    "StochasticAverage": "optim.options.stochastic_average",
    "Optimizer": "optim.optimizer",
    "build_kernels": "optim.native.library",
    "describe_checkpoint": "optim.checkpoints.loading",
    "load_checkpoint": "optim.checkpoints.loading",
    "for_keras": "optim.keras.making",
    "keras_objects": "optim.keras.making",
    "save_checkpoint": "optim.checkpoints.saving",
}

FOLDERS = ("legacy", "schedules")
"""Modules that are public under their own names."""
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        try:
            return getattr(import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "tensorflow":
                raise
            needs = f"optim.{name} needs TensorFlow, which is not installed: pip install tensorflow"
            raise ModuleNotFoundError(needs, name="tensorflow") from error
    if name in FOLDERS:
        return import_module(f"optim.{name}")
    raise AttributeError(f"module 'optim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_HOME, *FOLDERS]
