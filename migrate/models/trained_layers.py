"""Write into each layer of a model whether it is trained. The state decides, not the model's config.

A layer is trained whole or not at all, because no config of Keras sets this for single variables.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from migrate import surfaces
from migrate.bytes.messages import some
from migrate.claims import HINT, SET, TRAINED, UNINTERPRETED, Origin
from migrate.models import frozen, normalized_config, to_tf_keras
from migrate.models.layers import ADVICE, KINDS
from migrate.models.weights import Place
from migrate.readers.keras.model import (
    class_names,
    layer_name,
    never_trained,
    objects,
    top_layers,
    trainable_flags,
)
from migrate.state import OptimizerState
from optim.errors import UnsupportedError

CHANGES = (
    "frozen after training, and written as trainable",
    "not trained, and written as frozen",
    "no slots in the source, and written as frozen",
)
"""Notes on layers made trainable, on untrained layers, and on layers without slots."""
IN_PART = "was trained only in part, which a Keras config cannot express"
BY_BATCH = (
    "is not trained, and not frozen in its config: it normalizes by the batch, which no target does with a frozen layer"
)
NORMALIZES, SYNCHRONIZED = "BatchNormalization", "SyncBatchNormalization"


@dataclass(frozen=True)
class TrainedLayers:
    """The variables that the loaded model will train, in its order; what was changed for that; what is uncertain."""

    order: tuple[str, ...]
    notes: tuple[str, ...]
    doubts: tuple[Origin, ...]


def is_named(state: OptimizerState) -> bool:
    """Whether the user named the trained variables with --variables."""
    return any(origin.subject == TRAINED and origin.kind == HINT for origin in state.origins)


def is_as_stored(state: OptimizerState) -> bool:
    """Whether the model's own config trains, in its own order, the trainable variables of the state."""
    slotted = {name for per in state.slots.values() for name in per}
    return not _is_told(state) and (not slotted or slotted == of_state(state))


def _is_told(state: OptimizerState) -> bool:
    return any(origin.subject == TRAINED and origin.kind in (HINT, SET) for origin in state.origins)


def flag_as_stored(state: OptimizerState, trained: Collection[str], notes: list[str]) -> OptimizerState:
    """Set the flags of the top-level layers of a model that is written as its source describes it.

    Args:
      trained: the variables that the source's optimizer trains.

    Raises:
      UnsupportedError: only part of a layer of Keras's is trained, or freezing changes more than training.
    """
    source = state.source
    assert source is not None
    assert source.model is not None
    config = copy.deepcopy(dict(source.model.config))
    layers, changes = top_layers(config), (list[str](), list[str]())
    groups = source.model.groups or _by_names(state, layers)
    for name, members in groups.items():
        weights = [(weight, variable in trained) for weight, variable in members if not never_trained(weight)]
        layer = layers.get(name)
        flags = trainable_flags(layer, [weight for weight, _ in weights], not source.traits.has_keras3_layers)
        moves = {is_moved for _, is_moved in weights}
        if layer is None or all(flag in (None, moved) for flag, (_, moved) in zip(flags, weights, strict=True)):
            continue
        if len(moves) == 1:
            _flag_layer(layer, moves == {True})
            changes[moves == {False}].append(name)
        elif to_tf_keras.own_classes(layer):
            text = f"{name}: only part of this layer is trained, and dtopt does not know it"
            state = replace(state, origins=(*state.origins, Origin(TRAINED, None, UNINTERPRETED, doubt=text)))
        else:
            raise UnsupportedError(f"the layer {name!r} {IN_PART}; {ADVICE}")
    notes += [f"{some(names)}: {text}" for names, text in zip(changes, CHANGES[:2], strict=True) if names]
    return replace(state, source=replace(source, model=replace(source.model, config=config)))


def _by_names(state: OptimizerState, layers: Collection[str]) -> dict[str, list[tuple[str, str]]]:
    """Top-level layer -> its variables, twice each, by their names if the source does not list them."""
    members: dict[str, list[tuple[str, str]]] = {}
    for variable in state.variables:
        owner = next((part for part in variable.name.split("/")[:-1] if part in layers), None)
        if owner is not None:
            members.setdefault(owner, []).append((variable.name, variable.name))
    return members


def _flag_layer(layer: Mapping[str, Any], is_trained: bool) -> None:
    if not is_trained and class_names(layer) & {NORMALIZES, SYNCHRONIZED}:
        raise UnsupportedError(f"the layer {layer_name(layer)!r} {BY_BATCH}; {ADVICE}")
    for part in objects(layer):
        settings = part.get("config")
        if isinstance(settings, dict) and isinstance(part.get("class_name"), str) and "trainable" in settings:
            settings["trainable"] = is_trained


def of_state(state: OptimizerState) -> frozenset[str]:
    """The variables that the source's optimizer trains or may train."""
    return frozenset(v.name for v in state.variables if v.trainable)


def flag(state: OptimizerState, document: dict[str, Any], places: Mapping[Place, str]) -> TrainedLayers:
    """Set the layers' flags so that Keras trains the trainable variables of the state.

    Args:
      document: the model, as `normalized_config.canonical` returns it; it is changed.
      places: (layer, role) -> name of its variable.

    Raises:
      UnsupportedError: only part of a layer is trained, or freezing changes more than training.
    """
    trained, slotted = of_state(state), {name for per in state.slots.values() for name in per}
    moved = slotted or trained
    lacking = trained - slotted if slotted and state.source_traits.builds_for_all else frozenset[str]()
    is_known = bool(slotted) or _is_told(state)  # otherwise the layers' flags decide, as read by `normalized_config`
    whole = all(leaf.frozen for leaf in normalized_config.leaves(document) if _trainable_weights(leaf, places))
    thawed, untrained, slotless, open_ = list[str](), list[str](), list[str](), dict[str, None]()
    for leaf in [*normalized_config.leaves(document)]:
        weights = _trainable_weights(leaf, places)
        trainable = {name for name, is_frozen in weights.items() if leaf.frozen or not is_frozen}
        if leaf.frozen:
            if trainable & moved:
                _thaw(document, leaf, trainable <= moved)
                thawed.append(leaf.path[-1])
        elif is_known and trainable - trained:
            _check_can_freeze(leaf, trainable - trained, trainable & trained)
            _freeze_with_inner_layers(leaf)
            untrained.append(leaf.path[-1])
        elif trainable and trainable <= lacking and _freezes_only(leaf):
            _freeze_with_inner_layers(leaf)
            slotless.append(leaf.path[-1])
        else:
            open_ |= dict.fromkeys(name for name in weights if name in lacking)
    order = _training_order(document, places)
    strange = sorted(moved - set(order))
    if strange:
        raise UnsupportedError(f"{some(strange)} are trained, but no layer of the model would train them; {ADVICE}")
    changes = [
        f"{some(names)}: {text}" for names, text in zip((thawed, untrained, slotless), CHANGES, strict=True) if names
    ]
    # whole: saved with the optimizer that trains it, like a GAN's discriminator
    doubts = _of_thawed(state, changes[0]) if thawed and not whole else []
    if open_:
        text = (
            f"{some([*open_])}: no slots in the source. The source trains only variables with slots, and the"
            " target trains these too"
        )
        doubts.append(Origin(TRAINED, None, UNINTERPRETED, doubt=text))
    return TrainedLayers(tuple(order), tuple(changes), tuple(doubts))


def _trainable_weights(leaf: normalized_config.Leaf, places: Mapping[Place, str]) -> dict[str, bool]:
    weights = KINDS[leaf.class_name].weights(leaf.config)
    return {places[leaf.path, weight.role]: weight.frozen for weight in weights if weight.trainable}


def _training_order(document: dict[str, Any], places: Mapping[Place, str]) -> list[str]:
    free = (leaf for leaf in normalized_config.leaves(document) if not leaf.frozen)
    names = (name for leaf in free for name, is_frozen in _trainable_weights(leaf, places).items() if not is_frozen)
    return list(dict.fromkeys(names))


def _of_thawed(state: OptimizerState, note: str) -> list[Origin]:
    """Warn about layers written as trainable again that the user has not named. In generations that read flags at each
    compile, the last compile may have been before or after they were frozen."""
    if is_named(state) or state.source_traits.reads_flags_at_compile:
        return []
    confirm = surfaces.naming([v.name for v in state.variables if v.trainable])
    return [Origin(TRAINED, None, UNINTERPRETED, doubt=note, confirm=confirm)]


def _thaw(document: dict[str, Any], leaf: normalized_config.Leaf, whole: bool) -> None:
    if not whole:
        raise UnsupportedError(f"the layer {leaf.path[-1]!r} {IN_PART}; {ADVICE}")
    level: dict[str, Any] = document
    for name in leaf.path:
        level = next(layer for layer in level["config"]["layers"] if normalized_config.layer_name(layer) == name)
        if name != leaf.path[-1] and level["config"].get("trainable") is False:
            raise UnsupportedError(f"the model {name} is frozen as a whole, but {leaf.path[-1]} in it was trained")
    thawed: list[normalized_config.Layer] = [level]
    for layer in thawed:
        layer["config"]["trainable"] = True
        thawed += normalized_config.inner_layers(layer)


def _freezes_only(leaf: normalized_config.Leaf) -> bool:
    within = normalized_config.inner_layers({"class_name": leaf.class_name, "config": leaf.config})
    return not within and leaf.class_name not in (NORMALIZES, *frozen.IN_PARTS)


def _check_can_freeze(leaf: normalized_config.Leaf, left: set[str], trained: set[str]) -> None:
    if trained:
        raise UnsupportedError(
            f"the layer {leaf.path[-1]!r} {IN_PART}: {some(sorted(trained))}, and not {some(sorted(left))}; {ADVICE}"
        )
    if leaf.class_name == NORMALIZES:
        raise UnsupportedError(f"the layer {leaf.path[-1]!r} {BY_BATCH}; {ADVICE}")


def _freeze_with_inner_layers(leaf: normalized_config.Leaf) -> None:
    leaf.config["trainable"] = False
    normalized_config.freeze_layer(
        {"class_name": leaf.class_name, "config": leaf.config, "name": leaf.path[-1]}, frozen=True
    )
