"""A model of tf.keras as tf_keras loads it again: with its own description and under its own weights' names.

tf_keras is tf.keras under another name, so that nothing of the model has to be understood: layers that no other Keras
has, operators and layers of the user's own are passed on. What has to be known is only which weights are trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from migrate.bytes.messages import some
from migrate.models.layers import ADVICE, KINDS, MODELS
from migrate.rules.keras_targets import KERAS3
from migrate.state import OptimizerState, StoredModel
from optim.errors import UnsupportedError

GENERATIONS = ("optimizer_v2", "optimizer")
ONLY_TF_KERAS = (
    *("Lambda", "TFOpLambda", "SlicingOpLambda", "ClassMethod", "InstanceProperty", "TensorFlowOpLayer"),
    *("StackedRNNCells", "ThresholdedReLU", "LocallyConnected1D", "LocallyConnected2D", "DenseFeatures"),
    *("RandomHeight", "RandomWidth", "Discretization", "Hashing", "HashedCrossing", "IntegerLookup", "StringLookup"),
    *("TextVectorization", "SyncBatchNormalization", "SpectralNormalization"),
)
"""Layers of tf_keras itself that no other target takes."""


def possible(state: OptimizerState, families: Sequence[str]) -> bool:
    """Whether source and target are tf.keras's, and the source lists the weights of each layer by name."""
    source = state.source
    return (
        KERAS3 not in families
        and source is not None
        and source.format == "h5"
        and source.generation in GENERATIONS
        and source.model is not None
        and source.model.groups is not None
    )


def check_code(model: StoredModel) -> None:
    """Raises UnsupportedError for code that only the Python that wrote it runs."""
    if any(item.get("function_type") == "lambda" for item in _mappings(model.config)):
        raise UnsupportedError(
            "the model has a Lambda layer that holds the bytecode of a Python function, which no other release of"
            f" Python runs; {ADVICE}"
        )


def own_classes(model: StoredModel) -> list[str]:
    """Why a model that is passed on with classes of the user's own cannot be called exact; empty if it has none."""
    if any(item.get("class_name") == "__lambda__" for item in _mappings(model.config)):
        return [
            "a Lambda layer holds the bytecode of a Python function, so that the target cannot be loaded back here;"
            " load_model needs safe_mode=False, and the release of Python that wrote it"
        ]
    known = {*KINDS, *MODELS, *ONLY_TF_KERAS, "Model"}
    found = {name for name in _classes(model.config) if name not in known}
    if any("module" in item for item in _mappings(model.config)):
        found = {str(item["class_name"]) for item in _mappings(model.config) if _is_own(item)}
    names = ", ".join(sorted(name.rsplit(">", 1)[-1] for name in found))
    if not names:
        return []
    return [
        f"{names}: none of Keras's own classes, so that the target cannot be loaded back here; load_model needs them in"
        " custom_objects"
    ]


def _is_own(item: Mapping[str, Any]) -> bool:
    """Whether an object of Keras 3 or tf_keras 2.13 and later, which name modules, is of another module."""
    if not isinstance(item.get("class_name"), str) or "module" not in item:
        return False
    home = str(item["module"] or "").partition(".")[0]
    return home not in ("keras", "tf_keras", "builtins") and bool(home or item.get("registered_name"))


def _classes(item: Any) -> Iterator[str]:
    """Class names of layers: of what has a class and a config with a name."""
    for each in _mappings(item):
        config = each.get("config")
        named = isinstance(config, Mapping) and "name" in config and "dtype" in config
        if isinstance(each.get("class_name"), str) and named:
            yield str(each["class_name"])


def _mappings(item: Any) -> Iterator[Mapping[str, Any]]:
    """Every JSON object in `item`."""
    rest = [item]
    while rest:
        each = rest.pop()
        if isinstance(each, Mapping):
            yield each
            rest.extend(each.values())
        elif isinstance(each, list):
            rest.extend(each)


def trained(state: OptimizerState) -> list[str]:
    """Names of the variables that tf_keras will train, in its order: layer after layer, as the groups list them.

    Raises:
      UnsupportedError: the source does not tell whether something without slots is trained.
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
            f"{some(doubtful)}: without slots, and nothing says whether the model trains them; migrate to slots"
        )
    return [name for name in listed if name in owners]
