"""Tiny sources, and live optimizers of every framework, that differ in whatever a test asks for.

Options are arguments of `optim`, and these of a model: `frozen` (variables), `constraint` (of the kernel `d`), `dtype`,
`table` (an Embedding's), `steps` taken, `cls`, and `changed` (a method is replaced).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import migrate
from migrate.rules import step_factors as factors

KERNEL, BIAS, OTHER, TABLE = "m/d/kernel", "m/d/bias", "m/f/kernel", "m/e/embeddings"
SHAPES = {KERNEL: (4, 3), BIAS: (3,), OTHER: (3, 2)}
OF_MODEL = ("frozen", "constraint", "dtype", "table", "steps", "cls", "changed", "file")
RATE, MOMENTUM = 0.01, 0.9
LIMITS = ("clipnorm", "clipvalue", "global_clipnorm")
SCHEDULE = {
    "class_name": "ExponentialDecay",
    "config": {"initial_learning_rate": 0.01, "decay_steps": 10, "decay_rate": 0.5, "staircase": False},
}
Options = Mapping[str, Any]


class CannotDoItError(Exception):
    """The framework has no such option."""


def arguments(options: Options) -> dict[str, Any]:
    """Of the class of `optim`."""
    settings = {k: v for k, v in options.items() if k not in OF_MODEL}
    base = {"momentum": MOMENTUM} if options.get("cls", "SGD") == "SGD" else {}
    return {"learning_rate": RATE, **base, **settings}


def values(options: Options) -> dict[str, np.ndarray]:
    """Of the variables by name."""
    shapes = {**SHAPES, **({TABLE: (5, 2)} if options.get("table") else {})}
    rng = np.random.default_rng(3)
    return {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}


def _trainable(name: str, options: Options) -> bool:
    return name not in options.get("frozen", ())


def _tensorflow(options: Options) -> dict[str, Any]:
    import tensorflow as tf

    tied = options.get("constraint")
    return {
        name: tf.Variable(
            tf.cast(value, options.get("dtype", "float32")),
            trainable=_trainable(name, options),
            name=name,
            constraint=_constraint("tf_keras", tied) if tied and name == KERNEL else None,
        )
        for name, value in values(options).items()
    }


def _constraint(library: str, config: Mapping[str, Any]) -> Any:
    from importlib import import_module

    return getattr(import_module(library).constraints, config["class_name"])(**config["config"])


def source(folder: Path, options: Options) -> str:
    """A slot checkpoint, or for what only a model says a file of Keras 3."""
    import tensorflow as tf

    import optim

    if options.get("file"):
        return _model_file(folder, options)
    variables = _tensorflow({**options, "constraint": None})
    optimizer = getattr(optim, options.get("cls", "SGD")).from_config(arguments(options))
    trained = [v for v in variables.values() if v.trainable]
    optimizer.build(trained)
    for _ in range(options.get("steps", 2)):
        with optimizer_scale(optimizer) as scale:
            optimizer.apply_gradients([(scale * tf.ones_like(v), v) for v in trained])
    for name, value in values(options).items():
        variables[name].assign(tf.cast(value, variables[name].dtype))
    path = str(folder / "slots")
    optim.save_checkpoint(path, optimizer, variables)
    return path


def optimizer_scale(optimizer: Any) -> Any:
    """The present loss scale, 1 without one."""
    from contextlib import nullcontext

    return nullcontext(1.0 if optimizer.loss_scale is None else optimizer.scale_loss(1.0))


def _model_file(folder: Path, options: Options) -> str:
    """Of Keras 3, called `m`, with two Dense layers `d` and `f`."""
    import keras

    tied = options.get("constraint")
    layers = [
        keras.layers.Dense(3, name="d", kernel_constraint=_constraint("keras", tied) if tied else None),
        keras.layers.Dense(2, name="f", use_bias=False),
    ]
    model = keras.Sequential([keras.Input((4,)), *layers], name="m")
    model.get_layer("d").trainable = not options.get("frozen")
    optimizer = keras_optimizer(factors.KERAS3, options)
    model.compile(optimizer, "mse")
    for _ in range(options.get("steps", 1)):
        model.fit(np.ones((2, 4)), np.zeros((2, 2)), verbose=0)
    new_values = values({})
    for variable in model.weights:
        variable.assign(new_values[variable.path])
    path = str(folder / f"model{options['file']}")
    model.save(path)
    return path


def live(framework: str, options: Options) -> tuple[Any, Any]:
    """An optimizer and its variables, as `migrate.restore` takes them.

    Raises:
      CannotDoItError: the framework cannot be asked for it.
    """
    if framework == factors.TORCH:
        return _torch(options)
    if framework == factors.OPTAX:
        return _optax(options)
    if framework == factors.OPTIM:
        import optim

        optimizer, variables = getattr(optim, options.get("cls", "SGD")).from_config(arguments(options)), None
    else:
        optimizer = keras_optimizer(framework, options)
        variables = _keras3_variables(options) if framework == factors.KERAS3 else None
    if options.get("changed"):
        optimizer.apply_gradients = lambda *_: None
    return optimizer, variables if variables is not None else _tensorflow(options)


def _keras3_variables(options: Options) -> dict[str, Any]:
    import keras

    variables = {}
    for name, value in values(options).items():
        variable = keras.Variable(
            value,
            name=name.replace("/", "_"),
            trainable=_trainable(name, options),
            dtype=options.get("dtype", "float32"),
        )
        if options.get("constraint") and name == KERNEL:
            variable.constraint = _constraint("keras", options["constraint"])
        variables[name] = variable
    return variables


def keras_optimizer(framework: str, options: Options) -> Any:
    """An optimizer of Keras 3 or tf_keras with what arguments of `optim` say."""
    import inspect

    import keras
    import tf_keras

    home = {
        factors.KERAS3: keras.optimizers,
        factors.TF_KERAS: tf_keras.optimizers,
        factors.LEGACY: tf_keras.optimizers.legacy,
    }[framework]
    cls = getattr(home, options.get("cls", "SGD"), None)
    if cls is None:
        raise CannotDoItError(options["cls"])
    settings = arguments(options)
    for idle in ("lazy_rows", "repeated_rows", "epsilon_inside", "ema_start"):  # what the class does is not an option
        settings.pop(idle, None)
    scale = settings.pop("loss_scale", None)
    excluded = settings.pop("weight_decay_exclude", None)
    known = {*inspect.signature(cls.__init__).parameters, *(LIMITS if framework == factors.LEGACY else ())} - {"kwargs"}
    if strange := set(settings) - known:
        raise CannotDoItError(strange)
    if isinstance(settings["learning_rate"], Mapping):
        schedules = keras.optimizers.schedules if framework == factors.KERAS3 else tf_keras.optimizers.schedules
        settings["learning_rate"] = getattr(schedules, SCHEDULE["class_name"])(**SCHEDULE["config"])  # type: ignore[arg-type, call-overload, index]
    optimizer = cls(**settings)
    if excluded:
        optimizer.exclude_from_weight_decay(var_names=excluded)
    if scale is None:
        return optimizer
    library = keras.optimizers if framework == factors.KERAS3 else tf_keras.mixed_precision
    return library.LossScaleOptimizer(optimizer)


TORCH_ARGUMENTS = {
    "learning_rate": "lr",
    "momentum": "momentum",
    "nesterov": "nesterov",
    "weight_decay": "weight_decay",
}


def _torch(options: Options) -> tuple[Any, Any]:
    import torch

    settings = arguments(options)
    is_decoupled = settings.pop("decoupled_weight_decay", True) and "weight_decay" in settings
    excluded = settings.pop("weight_decay_exclude", ())
    if options.get("cls") == "Adagrad":
        return _torch_parts(torch, torch.optim.Adagrad, {"lr": RATE, "eps": 1e-7}, (), options)
    if options.get("cls", "SGD") != "SGD" or is_decoupled or set(settings) - set(TORCH_ARGUMENTS):
        raise CannotDoItError(settings)
    if isinstance(settings["learning_rate"], Mapping) or options.get("constraint"):
        raise CannotDoItError("schedules and constraints")
    return _torch_parts(torch, torch.optim.SGD, {TORCH_ARGUMENTS[k]: v for k, v in settings.items()}, excluded, options)


def _torch_parts(torch: Any, cls: Any, settings: dict[str, Any], excluded: Any, options: Options) -> tuple[Any, Any]:
    dtype = getattr(torch, options.get("dtype", "float32"))
    parameters = {
        name: torch.nn.Parameter(torch.from_numpy(value).to(dtype), requires_grad=_trainable(name, options))
        for name, value in values(options).items()
    }
    spared = [p for name, p in parameters.items() if any(word in name for word in excluded)]
    groups = [{"params": [p for p in parameters.values() if not any(p is parameter for parameter in spared)]}]
    groups += [{"params": spared, "weight_decay": 0.0}] if spared else []
    optimizer = cls(groups, **settings)
    if options.get("changed"):
        optimizer.register_step_pre_hook(lambda *_: None)
    return optimizer, parameters


def _optax(options: Options) -> tuple[Any, Any]:
    import jax.numpy as jnp
    import optax

    settings = arguments(options)
    rate, momentum = settings.pop("learning_rate"), settings.pop("momentum", None)
    if isinstance(rate, Mapping):
        config = rate["config"]
        rate = optax.exponential_decay(config["initial_learning_rate"], config["decay_steps"], config["decay_rate"])
    decay, excluded = settings.pop("weight_decay", None), settings.pop("weight_decay_exclude", ())
    if options.get("cls", "SGD") not in ("SGD", "Adagrad") or options.get("dtype") == "float64":  # which JAX lacks
        raise CannotDoItError(options)
    parts = [optax.clip(settings.pop("clipvalue"))] if "clipvalue" in settings else []
    parts += [optax.clip_by_global_norm(settings.pop("global_clipnorm"))] if "global_clipnorm" in settings else []
    if "adaptive_grad_clip" in settings:
        clipping = dict(settings.pop("adaptive_grad_clip"))
        spared = clipping.pop("exclude", ())
        mask = {name: not any(word in name for word in spared) for name in values(options)}
        parts.append(optax.masked(optax.adaptive_grad_clip(**clipping), mask))
    is_coupled = settings.pop("decoupled_weight_decay", True) is False
    has_rate = settings.pop("learning_rate_in_weight_decay", True)
    nesterov = settings.pop("nesterov", False)
    if options.get("constraint") or set(settings) - {"epsilon_inside"}:
        raise CannotDoItError(settings)
    params = {name: jnp.asarray(value, options.get("dtype", "float32")) for name, value in values(options).items()}
    if decay:
        mask = {name: not any(word in name for word in excluded) for name in params}
        factor = 1.0 if is_coupled else -rate if has_rate else -1.0
        decaying = optax.add_decayed_weights(factor * decay, mask)
    if options.get("cls") == "Adagrad":
        parts += [optax.scale_by_rss(0.1, 1e-7), optax.scale(-rate)]
    else:
        parts += [*([decaying] if decay and is_coupled else []), optax.scale_by_learning_rate(rate)]
        parts += [optax.trace(momentum, nesterov), *([decaying] if decay and not is_coupled else [])]
    if options.get("changed"):
        parts.append(optax.scale(2.0))
    tx = optax.chain(*parts)
    if options.get("frozen"):
        labels = {name: "trained" if _trainable(name, options) else "frozen" for name in params}
        tx = optax.multi_transform({"trained": tx, "frozen": optax.set_to_zero()}, labels)
    return migrate.Optax(tx, params), {name: name for name in params}
