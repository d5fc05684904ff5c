"""`for_keras`: an instance of Keras's own `Optimizer` around an optimizer of `optim`.

Keras accepts only instances of its class. It is imported here only if nothing else has imported one: then it is that
of TensorFlow.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from optim import lazy
from optim.errors import HyperparameterError, UnsupportedError
from optim.keras.any_backend import AnyBackend
from optim.keras.backends import BACKENDS
from optim.keras.configured import NAME, PACKAGE, bases, users_class
from optim.options.loss_scale import DYNAMIC

if TYPE_CHECKING:
    import tensorflow as tf

    from optim.keras import adapter, keras_3, scaling
else:
    tf, adapter, keras_3, scaling = lazy.modules(
        *("tensorflow", "optim.keras.adapter", "optim.keras.keras_3", "optim.keras.scaling")
    )


def for_keras(optimizer: Any, keras: ModuleType | None = None) -> Any:
    """An optimizer that Keras's `Model.compile` accepts; its state and its steps are those of `optimizer`.

    It steps as Keras's class of the same name does in this Keras: arguments that the caller did not choose take the
    values that make it so (`optim/keras_differences.py`), before its first step. A warning names what is left.

    Args:
      optimizer: any optimizer of `optim` or `optim.legacy`, or of a subclass of yours. What this function, or
        `load_checkpoint`, made on JAX or PyTorch is returned as it is.
      keras: the module `keras`, `tf_keras` or `tf.keras`; None finds it, if just one of them was imported; without an
        import, it is `tf.keras`.

    Returns:
      An instance of `keras.optimizers.Optimizer`. `inner` is `optimizer`; what Keras does not define (`get_slot`,
      `memory_report`, options such as `clipnorm`, ...) is looked up there. `model.save` keeps configuration and
      state, `load_model` brings both back once `keras_objects` was called. With `loss_scale="dynamic"`, in tf_keras
      with any, it is an instance of Keras's `LossScaleOptimizer`, too, so that `compile` of a float16 model leaves the
      scaling to it. Where Keras does scale the loss (a constant in Keras 3, unless `compile` gets
      `auto_scale_loss=False`; or you wrap it), `loss_scale` is switched off, with a warning.

    Raises:
      HyperparameterError: `optimizer` is not of `optim`. UnsupportedError: no Keras, two, or one on another backend
        than TensorFlow, JAX and PyTorch; on the latter two, an option that has no effect there.
    """
    keras = _check_backend(keras or _imported_keras())
    if isinstance(optimizer, AnyBackend):
        return optimizer
    if not isinstance(optimizer, bases()):
        kind = type(optimizer)
        got = repr(optimizer) if isinstance(optimizer, (str, type)) else f"{kind.__module__}.{kind.__qualname__}"
        raise HyperparameterError(
            f"for_keras takes an optimizer of optim, as for_keras(optim.Adam(0.001)), got {got}. Keras's own optimizers"
            " go into compile as they are"
        )
    return _class_for(optimizer, keras)(optimizer)


def keras_objects(keras: ModuleType | None = None) -> dict[str, Any]:
    """`custom_objects` for `keras.models.load_model`, where a model was saved with an optimizer of `for_keras`.

    It also registers the class with Keras, so that calling it once is enough.

    Raises:
      UnsupportedError: as `for_keras`.
    """
    return {f"{PACKAGE}>{NAME}": keras_class(keras)}


def keras_class(keras: ModuleType | None = None) -> type:
    """The class of what `for_keras` returns: a subclass of that Keras's `Optimizer`, registered there."""
    return _make_class(_check_backend(keras or _imported_keras()))


def _class_for(optimizer: Any, keras: ModuleType) -> type:
    """A constant scale is, in Keras 3, `loss_scale_factor` of any optimizer, and switched off under mixed_float16."""
    if keras.backend.backend() in BACKENDS:
        return _make_class(keras)
    scale = getattr(optimizer, "loss_scale", None)
    scales = scale == DYNAMIC or (scale is not None and not _is_keras_3(keras))
    return _make_scaling_class(keras) if scales else _make_class(keras)


def _is_keras_3(keras: ModuleType) -> bool:
    return hasattr(keras.optimizers.Optimizer, "apply")


def _imported_keras() -> ModuleType:
    modules = [sys.modules[name] for name in ("keras", "tf_keras") if name in sys.modules]
    if len(modules) == 1:
        return modules[0]
    if modules:
        raise UnsupportedError(
            "both keras and tf_keras were imported; pass the one that your model is made with:"
            " for_keras(optimizer, keras)"
        )
    if not lazy.uses_tensorflow():
        return import_module("keras")
    try:
        return import_module(tf.keras.optimizers.Optimizer.__module__.partition(".")[0])
    except ImportError as error:
        raise UnsupportedError(
            f"neither keras nor tf_keras was imported, and TensorFlow finds neither ({error})"
        ) from error


def _check_backend(keras: ModuleType) -> ModuleType:
    """The module; for `tf.keras`, a view of `keras` or `tf_keras` without all of their modules, the package itself."""
    theirs = getattr(getattr(keras, "optimizers", None), "Optimizer", None)
    if theirs is None:
        raise UnsupportedError(f"keras must be the module keras, tf_keras or tf.keras, got {keras!r}")
    if "." in getattr(keras, "__name__", ""):
        keras = import_module(theirs.__module__.partition(".")[0])
    backends = ("tensorflow", *BACKENDS)
    if keras.backend.backend() not in backends:
        raise UnsupportedError(
            f"Keras runs on {keras.backend.backend()}; set KERAS_BACKEND to one of {', '.join(backends)} before it is"
            " imported"
        )
    return keras


def _reduced(optimizer: Any) -> Any:
    """For `copy.deepcopy` and `pickle`: the class, `inner`, and the state that `inner` has not."""
    state: dict[str, Any] = {}
    if isinstance(optimizer, AnyBackend):
        optimizer.save_own_variables(state)
    return _again, (optimizer.inner, optimizer._keras.__name__, state, users_class(type(optimizer)))


def _again(inner: Any, keras: str, state: Mapping[str, Any] | None = None, derived: type | None = None) -> Any:
    optimizer = for_keras(inner, import_module(keras)) if derived is None else derived(optimizer=inner)
    if state:
        optimizer.load_own_variables(state)
    return optimizer


@cache
def _make_class(keras: ModuleType) -> type:
    theirs = keras.optimizers.Optimizer
    if keras.backend.backend() in BACKENDS:
        return _registered(keras, (AnyBackend, theirs))
    trackable = tf.__internal__.tracking.Trackable
    bases = (theirs,) if issubclass(theirs, trackable) else (theirs, trackable)  # in Keras 3.0 it is not
    return _registered(keras, (keras_3.Keras3Adapter if _is_keras_3(keras) else adapter.Adapter, *bases))


@cache
def _make_scaling_class(keras: ModuleType) -> type:
    plain = _make_class(keras)
    return _registered(keras, (scaling.ScalesLosses, plain, scaling.base_of(keras)))


def _registered(keras: ModuleType, bases: tuple[type, ...]) -> type:
    """A class under the name that all saved models have; `from_config` finds the right one."""
    members = {"_keras": keras, "_adapt": staticmethod(partial(for_keras, keras=keras)), "__reduce__": _reduced}
    cls = type(NAME, bases, {**members, "__doc__": bases[0].__doc__})
    cls.__module__ = __name__
    registered: type = keras.saving.register_keras_serializable(package=PACKAGE, name=NAME)(cls)
    return registered
