"""Write a model of tf.keras for tf_keras: with its own description and its own weight names.

tf_keras is tf.keras under another name, so nothing of the model has to be understood: layers that no other Keras has,
operators and custom layers are copied. Only the trained weights must be known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from migrate.algorithms import patterns
from migrate.models.compiled import LOSSES, METRICS
from migrate.models.frozen import WITHIN
from migrate.models.layers import ADVICE, KINDS, MODELS, is_stock, of_another_module
from migrate.models.to_keras3 import ACTIVATIONS, CONSTRAINTS, INITIALIZERS, REGULARIZERS
from migrate.readers.keras.model import objects
from migrate.releases.modules import KERAS_3
from migrate.state import OptimizerState, StoredModel
from optim.errors import UnsupportedError

ONLY_TF_KERAS = (
    *("Lambda", "TFOpLambda", "SlicingOpLambda", "ClassMethod", "InstanceProperty", "TensorFlowOpLayer"),
    *("StackedRNNCells", "ThresholdedReLU", "LocallyConnected1D", "LocallyConnected2D", "DenseFeatures"),
    *("RandomHeight", "RandomWidth", "Discretization", "Hashing", "HashedCrossing", "IntegerLookup", "StringLookup"),
    *("TextVectorization", "SyncBatchNormalization", "SpectralNormalization"),
)
"""Layers of tf_keras itself that no other target takes."""
ARGUMENTS = {
    "_initializer": (*INITIALIZERS, "Identity"),
    "_regularizer": (*REGULARIZERS, "l1", "l2", "l1_l2"),
    "_constraint": (*CONSTRAINTS, "RadialConstraint"),
    "activation": (*ACTIVATIONS, *KINDS),
}
"""Suffix of an argument's name -> values that tf_keras knows for it."""
FUNCTIONS = frozenset((*LOSSES, *(name for name in METRICS if name.endswith("_accuracy"))))
"""Functions that every Keras finds by name if their module is `builtins`; not `swish`, nor a `dice` of a program."""


def possible(state: OptimizerState, families: Sequence[str]) -> bool:
    """Whether source and target are tf.keras's, and the source lists the weights of each layer by name."""
    source = state.source
    return (
        KERAS_3 not in families
        and source is not None
        and source.format == "h5"
        and source.traits.loads_in_tf_keras
        and source.model is not None
        and source.model.groups is not None
    )


def check_code(model: StoredModel) -> None:
    """Raise UnsupportedError for code that only the Python release that wrote it runs."""
    if any(item.get("function_type") == "lambda" for item in objects(model.config)):
        raise UnsupportedError(
            "the model has a Lambda layer that holds the bytecode of a Python function, which no other release of"
            f" Python runs; {ADVICE}"
        )


def own_classes(config: Mapping[str, Any], functions: Sequence[str] = ()) -> list[str]:
    """Explain why a copied model with custom classes and functions is not exact; empty if it has only those of Keras.

    Args:
      functions: additional ones of the target's Keras.
    """
    if any(item.get("class_name") == "__lambda__" for item in objects(config)):
        return [
            "a Lambda layer contains the bytecode of a Python function, so dtopt cannot load the target back."
            " load_model needs safe_mode=False, and the release of Python that wrote the function"
        ]
    custom = {name for name in (*_custom_layers(config), *_custom_arguments(config)) if name not in functions}
    names = ", ".join(sorted(name.rsplit(">", 1)[-1] for name in custom))
    if not names:
        return []
    return [f"{names}: not Keras's own, so dtopt cannot load the target back. load_model needs them in custom_objects"]


def _custom_layers(config: Mapping[str, Any]) -> Iterator[str]:
    for item in objects(config):
        is_function = item.get("class_name") == "function"
        name = item.get("config" if is_function else "class_name")
        if isinstance(name, str) and "module" in item:
            is_known = item["module"] == "builtins" and name in FUNCTIONS
            if not is_known if is_function else of_another_module(item):
                yield name
    for name, settings in _classes(config):
        if not is_stock(name, settings) and name not in (*MODELS, *ONLY_TF_KERAS, "Model"):
            yield name


def _custom_arguments(config: Mapping[str, Any]) -> Iterator[str]:
    for item in objects(config):
        for key, value in item.items():
            known_names = next((names for end, names in ARGUMENTS.items() if key.endswith(end)), None)
            if known_names is None or value is None or (isinstance(value, Mapping) and "module" in value):
                continue
            name = value.get("class_name") if isinstance(value, Mapping) else value
            if name == "function":
                name = value.get("config")
            if isinstance(name, str) and name not in known_names:
                yield name


def _classes(item: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield class names and configs of layers without a module: of objects with a class and a named config, of members
    of `layers`, and of models."""
    for part in objects(item):
        config = part.get("config")
        named = isinstance(config, Mapping) and "name" in config and not config.keys().isdisjoint(("dtype", "layers"))
        if named and isinstance(part.get("class_name"), str) and "module" not in part:
            yield str(part["class_name"]), config or {}
        for key in WITHIN:
            inside = part.get(key)
            for layer in inside if isinstance(inside, list) else [inside]:
                if isinstance(layer, Mapping) and isinstance(layer.get("class_name"), str) and "module" not in layer:
                    yield str(layer["class_name"]), layer.get("config") or {}


def trained(state: OptimizerState) -> list[str]:
    """Return the names of the variables that tf_keras will train, in its order: layer after layer, as in the groups.

    Raises:
      UnsupportedError: the source does not show whether a variable without slots is trained, or its config trains
        other variables than its optimizer.
    """
    assert state.source is not None
    assert state.source.model is not None
    assert state.source.model.groups is not None
    flags = {v.name: v.trainable for v in state.source.variables}
    owners = {name for per in state.slots.values() for name in per}
    listed = [name for members in state.source.model.groups.values() for _, name in members]
    listed = list(dict.fromkeys(listed))
    if not owners:
        return [name for name in listed if flags[name] is not False]
    doubtful = [name for name in listed if flags[name] is not False and name not in owners]
    if doubtful:
        raise UnsupportedError(
            "some variables have no slots, and the source does not show whether the model trains them. If it"
            f" does not, add {patterns.naming(patterns.UNTRAINED, doubtful, listed)}; if it does, migrate to"
            " slots"
        )
    return [name for name in listed if name in owners]
