"""Differences of the same layers in training between the source's release and the target's.

Run with one feature a model on Keras 2.2.5 and 2.3.1, TF 2.4, 2.9 and 2.15, tf_keras 2.21 and ten releases of Keras
3.0 to 3.15; releases between them by their sources (`compile_utils.py`, `losses_utils.py`, `multi_head_attention.py`,
`batch_normalization.py`, `regularizers.py`, `base_merge.py`, `time_distributed.py`, `softmax.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from migrate.bytes.messages import some
from migrate.facts import layers as facts
from migrate.facts.fact import Fact
from migrate.facts.layers import LEAST_EPSILON
from migrate.models import (
    backends,
    compiled,
    constraints,
    frozen,
    loss_activation,
    masks,
    missing_settings,
    training_flag,
)
from migrate.models.keras1 import GATED
from migrate.models.layers import MODELS
from migrate.models.normalized_config import Layer, Leaf, canonical, layer_name, leaves
from migrate.models.to_keras3 import ACTIVATED, HARD_SIGMOID
from migrate.readers.keras.left_out import TRANSPOSED
from migrate.releases import table
from migrate.releases.modules import GENERATION, LOADERS, TF_KERAS_LEGACY
from migrate.releases.narrowing import candidates
from migrate.releases.table import TF_KERAS, Release
from migrate.releases.versions import TENSORFLOW
from migrate.state import Stored, StoredModel
from optim.errors import UnsupportedError


def release(source: Stored) -> Release:
    """The release that wrote a source: the newest that fits, the oldest if it shows no version."""
    versions = source.versions
    fitting = candidates(source.generation or GENERATION[TF_KERAS_LEGACY], versions)
    writer = fitting[-1] if versions.keras or versions.tensorflow else fitting[0]
    return replace(writer, backend=versions.backend or TENSORFLOW)


def _name(target: Release) -> str:
    return TF_KERAS if target.family == table.TF_KERAS_FAMILY else target.family


@dataclass(frozen=True)
class Difference:
    """A fact about layers. `layer_names`: those of the layers in a model that it concerns, given `masks.meetings`."""

    layer_names: Callable[[Layer, Sequence[masks.Meeting]], list[str]]
    fact: Fact


def _meets(kind: str) -> Callable[[Layer, Sequence[masks.Meeting]], list[str]]:
    return lambda _, meetings: [name for meeting_kind, name in meetings if meeting_kind == kind]


def _leaves(chosen: Callable[[Leaf], bool]) -> Callable[[Layer, Sequence[masks.Meeting]], list[str]]:
    return lambda document, _: [leaf.path[-1] for leaf in leaves(document) if chosen(leaf)]


def _layer_in_time_distributed(leaf: Leaf) -> Mapping[str, Any]:
    return leaf.config["layer"] if leaf.class_name == "TimeDistributed" else {"class_name": "", "config": {}}


def _normalizes(leaf: Leaf) -> bool:
    return "BatchNormalization" in (leaf.class_name, _layer_in_time_distributed(leaf)["class_name"])


def _is_frozen(leaf: Leaf) -> bool:
    return leaf.frozen or _layer_in_time_distributed(leaf)["config"].get("trainable") is False


def _active(leaf: Leaf) -> bool:
    config = leaf.config.get("layer", {}).get("config", {})
    is_regularizer = leaf.class_name == "ActivityRegularization"
    return is_regularizer or any(settings.get("activity_regularizer") for settings in (leaf.config, config))


def _regularized(leaf: Leaf) -> bool:
    return any(value for key, value in leaf.config.items() if key.endswith("_regularizer") and key[:8] != "activity")


def _shared(document: Layer, _: object) -> list[str]:
    """Names of the layers with regularizers that are called several times."""
    models = [document, *_models(document)]
    layers = [layer for model in models for layer in model["config"]["layers"] if layer["class_name"] not in MODELS]
    several = {layer_name(layer) for layer in layers if len(layer.get("inbound_nodes") or []) > 1}
    return [leaf.path[-1] for leaf in leaves(document) if _regularized(leaf) and leaf.path[-1] in several]


def _within(document: Layer, _: object) -> list[str]:
    """Names of the layers with regularizers in a model that is called several times, or in one in another."""
    several = {layer_name(model) for model in _models(document) if len(model.get("inbound_nodes") or []) > 1}
    return [
        leaf.path[-1]
        for leaf in leaves(document)
        if _regularized(leaf) and (len(leaf.path) > 2 or several.intersection(leaf.path[:-1]))
    ]


def _made(document: Layer, _: object) -> list[str]:
    """Names of the layers with regularizers in a nested graph of layers."""
    graphs = {layer_name(model) for model in _models(document) if model["class_name"] == "Functional"}
    return [leaf.path[-1] for leaf in leaves(document) if _regularized(leaf) and graphs.intersection(leaf.path[:-1])]


def _models(document: Layer) -> Iterator[Layer]:
    """Yield the models in a model."""
    for layer in document["config"]["layers"]:
        if layer["class_name"] in MODELS:
            yield layer
            yield from _models(layer)


def _orthogonal(leaf: Leaf) -> bool:
    items = (value for key, value in leaf.config.items() if key.endswith("_regularizer"))
    return any(isinstance(item, Mapping) and "rthogonal" in str(item.get("class_name")) for item in items)


def _normalizes_images(leaf: Leaf) -> bool:
    named = leaf.class_name == "BatchNormalization" and not leaf.config.get("renorm")
    return named and leaf.config.get("axis") in ([3], 3)


def _small(leaf: Leaf) -> bool:
    unsure = _normalizes(leaf) and not _normalizes_images(leaf) and not leaf.config.get("renorm")
    return unsure and leaf.config.get("epsilon", 1.0) < LEAST_EPSILON


def _dilated(rate: Any) -> bool:
    return any(size != 1 for size in rate) if isinstance(rate, list) else rate not in (None, 1)


def _hard(item: Any) -> list[tuple[dict[str, Any], str]]:
    """Uses of the activation hard_sigmoid in a config, at any depth: the config and the key."""
    if not isinstance(item, dict):
        return [use for member in item for use in _hard(member)] if isinstance(item, list) else []
    here = [(item, key) for key in ACTIVATED if item.get(key) == "hard_sigmoid"]
    return [*here, *(use for value in item.values() for use in _hard(value))]


def _has_dropout(leaf: Leaf, implementations: Sequence[int], key: str) -> bool:
    inner = leaf.config.get("layer") or {"class_name": leaf.class_name, "config": leaf.config}
    config = inner["config"]
    return inner["class_name"] in GATED and config.get("implementation") in implementations and bool(config.get(key))


def _attending(kind: str, dropout: bool) -> Callable[[Layer, Sequence[masks.Meeting]], list[str]]:
    """Names of the MultiHeadAttention layers, with or without dropout, in meetings."""

    def layer_names(document: Layer, meetings: Sequence[masks.Meeting]) -> list[str]:
        names = {leaf.path[-1] for leaf in leaves(document) if bool(leaf.config.get("dropout")) == dropout}
        return [name for meeting_kind, name in meetings if meeting_kind == kind and name in names]

    return layer_names


MASKED = (
    Difference(_meets(masks.OUTPUT), facts.LOSS),
    Difference(_meets(masks.MERGED), facts.MERGED),
    Difference(_meets(masks.HANDED), facts.HANDED),
    Difference(_meets(masks.VALUED), facts.VALUED),
    *(Difference(_attending(masks.ATTENTION, kind == facts.WITH), fact) for kind, fact in facts.ATTENTION.items()),
    *(Difference(_attending(masks.GIVEN, kind == facts.WITH), fact) for kind, fact in facts.GIVEN.items()),
    Difference(_meets(masks.MEASURED), facts.MEASURED),
    Difference(_meets(masks.DISTRIBUTED), facts.DISTRIBUTED),
    Difference(_meets(masks.PASSED), facts.PASSED),
    Difference(_meets(masks.SOFTMAX), facts.SOFTMAX),
    Difference(_meets(masks.GROUPED), facts.GROUPED),
    Difference(_meets(masks.STATED), facts.STATED),
    Difference(_meets(masks.RELU), facts.RELU),
)
DIFFERENCES = (
    *MASKED,
    Difference(_leaves(lambda leaf: bool(_hard(leaf.config))), facts.HARD_SIGMOID),
    Difference(
        _leaves(
            lambda leaf: _has_dropout(leaf, (0, 1), "dropout") and not _has_dropout(leaf, (0, 1), "recurrent_dropout")
        ),
        facts.GATES,
    ),
    Difference(_leaves(lambda leaf: _has_dropout(leaf, (2,), "recurrent_dropout")), facts.STATES),
    Difference(lambda document, _: list(dict.fromkeys(training_flag.held_back(document))), facts.TRAINING),
    Difference(
        _leaves(lambda leaf: leaf.class_name == "TimeDistributed" and _normalizes(leaf) and not _is_frozen(leaf)),
        facts.EACH_STEP,
    ),
    Difference(_leaves(lambda leaf: _normalizes(leaf) and _is_frozen(leaf)), facts.FROZEN),
    Difference(
        _leaves(lambda leaf: leaf.class_name in TRANSPOSED and _dilated(leaf.config.get("dilation_rate"))),
        facts.DILATED,
    ),
    Difference(_leaves(_small), facts.EPSILON),
    Difference(_leaves(_active), facts.ACTIVITY),
    Difference(_leaves(lambda leaf: leaf.class_name == "TimeDistributed" and _active(leaf)), facts.ACTIVITY_IN),
    Difference(_leaves(lambda leaf: leaf.class_name == "MultiHeadAttention" and _active(leaf)), facts.ACTIVITY_OF),
    Difference(_leaves(lambda leaf: leaf.frozen and _regularized(leaf)), facts.REGULARIZED),
    Difference(_within, facts.WITHIN),
    Difference(_shared, facts.SHARED),
    Difference(_made, facts.MADE),
    Difference(_leaves(_orthogonal), facts.ORTHOGONAL),
)


def differences(document: Layer | None, source: Stored | None, target: str) -> list[str]:
    """Explain why the model does not train the same in a target, `keras` or `tf-keras`.

    Args:
      document: as `normalized_config.canonical` returns it; None for a model that is copied from its source.
    """
    if source is None or source.model is None:
        return []
    old, new = release(source), LOADERS[target]
    by_keras3 = old.is_keras_3
    missing = [*missing_settings.of_model(source.model, by_keras3), *_of_losses(source, old, new[0])]
    missing += backends.differences(source.model.config, old.backend) if by_keras3 else ()
    ties = constraints.of_model(source.model.config) if source.traits.ignores_constraints else ()
    bound = list(dict.fromkeys(tie.layers[-1] for tie in ties if tie.layers))
    if bound:  # `apply_gradients` of `optimizer_experimental/optimizer.py` applies them from 2.11 on
        missing.append(
            f"{some(bound)}: optimizers of TF 2.9 and 2.10's experimental ignore constraints; the target applies them"
        )
    since = old.keras_number if by_keras3 else None
    attending = source.model.config if by_keras3 or target == "keras" else None
    try:
        document = document or canonical(source.model.config, source.generation)
    except UnsupportedError:
        doubtful = frozen.may_train(attending, [], source, since)
        return [*missing, *_mask_differences(source.model.config, old, new), *doubtful]
    return [
        *missing,
        *_layer_differences(document, old, new),
        *frozen.may_train(attending, [*leaves(document)], source, since),
    ]


def remarks(document: Layer | None, source: Stored | None, target: str) -> list[str]:
    """Differences in a target that affect no step. Arguments as of `differences`."""
    if source is None or document is None:
        return []
    old, new = release(source), LOADERS[target]
    moving = [leaf for leaf in leaves(document) if _normalizes(leaf) and not _is_frozen(leaf)]
    if not old.is_before_tf_keras:
        moving = [leaf for leaf in moving if _normalizes_images(leaf) and old.since() != new[0].since()]
    if not moving:
        return []
    names = some([leaf.path[-1] for leaf in moving])
    return [
        f"{names}: their moving statistics, which no training step uses, develop differently in the target."
        " Releases differ in how they correct a batch's variance for its size, and in the first means"
    ]


def raise_epsilons(document: Layer, source: Stored, notes: list[str]) -> None:
    """Write the epsilon that TensorFlow used instead of one that was too small."""
    if release(source).since((2, 12)):
        return
    for leaf in leaves(document):
        if _normalizes_images(leaf) and leaf.config.get("epsilon", 1.0) < LEAST_EPSILON:
            leaf.config["epsilon"] = LEAST_EPSILON
            notes.append(
                f"{leaf.path[-1]}: epsilon is written as {LEAST_EPSILON}, the value to which its release raised it"
            )


def name_hard_sigmoids(document: Layer, source: Stored) -> None:
    """Rename the hard_sigmoid of releases before Keras 3 for a model that Keras 3 will load."""
    if not release(source).since():
        for leaf in leaves(document):
            for config, key in _hard(leaf.config):
                config[key] = HARD_SIGMOID


def _layer_differences(document: Layer, old: Release, new: Sequence[Release]) -> Iterator[str]:
    meetings = masks.meetings(document)
    for difference in DIFFERENCES:
        ways = dict.fromkeys(map(difference.fact.way, new))
        names = difference.layer_names(document, meetings) if [*ways] != [difference.fact.way(old)] else []
        if names:
            others = " or ".join(way for way in ways if way and way != difference.fact.way(old))
            now = f"{_name(new[0])}{', depending on its release,' if difference.fact.way(old) in ways else ''} {others}"
            yield f"{some(names)}: the source's {old.family} {difference.fact.way(old)}, and {now}"


def _of_losses(source: Stored, old: Release, new: Release) -> Iterator[str]:
    model = cast(StoredModel, source.model)
    if source.traits.keeps_labels and (hinges := compiled.hinges(model.training)):
        yield (
            f"the loss {some(hinges)}: the source's {old.family} uses labels unchanged, and {_name(new)} converts a"
            " batch with only 0 and 1 to -1 and 1; with labels of -1 and 1 they do the same"
        )
    for last, loss in loss_activation.unfit(model):
        before, now = ("its input" if _goes_back(r, last) else "its output" for r in (old, new))
        unfit = f"{last.name}: the activation {last.activation} does not suit the loss {loss}, which"
        if before != now:
            by = f"the source's {old.family}{backends.shown(old.backend)}"
            yield f"{unfit} {by} computes from {before}, and {_name(new)} from {now}"
        elif old.family == table.TF_KERAS_FAMILY and now == "its input":
            function = f"tf.nn.{last.activation}"
            yield f"{unfit} is computed from {now}, but from its output if the program used {function}, saved the same"


def _goes_back(r: Release, last: loss_activation.Last) -> bool:
    """Whether it applies a crossentropy to the input of the last activation."""
    if r.is_keras_3:
        return r.backend == TENSORFLOW
    return r.since((2, 4)) and last.class_name != loss_activation.SOFTMAX


def _mask_differences(config: Mapping[str, Any], old: Release, new: Sequence[Release]) -> list[str]:
    differing = [
        difference for difference in MASKED if {difference.fact.way(old)} != set(map(difference.fact.way, new))
    ]
    if not differing or not masks.makes(config):
        return []
    return [
        f"the model makes masks and has custom layers, and the source's {old.family} and {_name(new[0])} handle masks"
        " differently"
    ]
