"""Mesh-aware optimizers for TensorFlow DTensor, with the API that Keras 2.9 documented.

Names are loaded when they are first used, so that `optim.errors`, `optim.slot_layout` and `optim.rules` can be
imported without TensorFlow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optim import legacy as legacy
    from optim.checkpoint import save_checkpoint as save_checkpoint
    from optim.checkpoint_reading import describe_checkpoint as describe_checkpoint
    from optim.checkpoint_reading import load_checkpoint as load_checkpoint
    from optim.fit import for_keras as for_keras
    from optim.fit import keras_objects as keras_objects
    from optim.native.library import build_kernels as build_kernels
    from optim.optimizer import Optimizer as Optimizer
    from optim.optimizers.adadelta import Adadelta as Adadelta
    from optim.optimizers.adafactor import Adafactor as Adafactor
    from optim.optimizers.adagrad import Adagrad as Adagrad
    from optim.optimizers.adam import Adam as Adam
    from optim.optimizers.adamax import Adamax as Adamax
    from optim.optimizers.adamw import AdamW as AdamW
    from optim.optimizers.ftrl import Ftrl as Ftrl
    from optim.optimizers.lamb import Lamb as Lamb
    from optim.optimizers.lion import Lion as Lion
    from optim.optimizers.muon import Muon as Muon
    from optim.optimizers.nadam import Nadam as Nadam
    from optim.optimizers.rmsprop import RMSprop as RMSprop
    from optim.optimizers.sgd import SGD as SGD
    from optim.options import EMAOption as EMAOption
    from optim.options import GradientsClipOption as GradientsClipOption

_HOME = {
    "Adadelta": "optim.optimizers.adadelta",
    "Adafactor": "optim.optimizers.adafactor",
    "Adagrad": "optim.optimizers.adagrad",
    "Adam": "optim.optimizers.adam",
    "AdamW": "optim.optimizers.adamw",
    "Adamax": "optim.optimizers.adamax",
    "Ftrl": "optim.optimizers.ftrl",
    "Lamb": "optim.optimizers.lamb",
    "Lion": "optim.optimizers.lion",
    "Muon": "optim.optimizers.muon",
    "Nadam": "optim.optimizers.nadam",
    "RMSprop": "optim.optimizers.rmsprop",
    "SGD": "optim.optimizers.sgd",
    "EMAOption": "optim.options",
    "GradientsClipOption": "optim.options",
    "Optimizer": "optim.optimizer",
    "build_kernels": "optim.native.library",
    "describe_checkpoint": "optim.checkpoint_reading",
    "load_checkpoint": "optim.checkpoint_reading",
    "for_keras": "optim.fit",
    "keras_objects": "optim.fit",
    "save_checkpoint": "optim.checkpoint",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name == "legacy":
        return import_module("optim.legacy")
    raise AttributeError(f"module 'optim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_HOME, "legacy"]
