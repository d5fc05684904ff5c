"""A model with its optimizer as Keras 3 or tf_keras is to load it: what goes where, before anything is written."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from migrate import algorithms, surfaces
from migrate.algorithms import rates
from migrate.algorithms.spec import AVERAGE
from migrate.bytes.arrays import LazyArray, narrowed
from migrate.bytes.messages import some
from migrate.evidence import HINT, TRAINED, UNINTERPRETED, Origin
from migrate.generations import NATIVE, NEW
from migrate.lists import planning
from migrate.models import (
    canonical,
    dense_tables,
    frozen,
    keras1_weights,
    loss_scale,
    passing,
    scope_names,
    training,
    weights,
)
from migrate.models.compiled import compile_arguments
from migrate.models.layers import ADVICE, KINDS
from migrate.models.loss_scale import LossScale
from migrate.models.weights import Place
from migrate.readers import keras_zip
from migrate.rules import keras_targets
from migrate.rules.keras_targets import LiveClass
from migrate.state import OptimizerState, StoredModel, StoredVariable
from optim.errors import UnsupportedError

SHOWN = 2
"""Layers in a message."""
NOT_FROZEN = ("BatchNormalization", *frozen.IN_PARTS)
"""Layers that do something else where they are frozen, or are not frozen where they are loaded."""
WITHOUT_MODEL = "the source does not describe its model, which the target has to hold; migrate to slots or to a list"


@dataclass(frozen=True)
class ModelPlan:
    """Everything a writer needs.

    Attributes:
      live: the optimizer's class, its config, and the state in its terms with variables in its order and every slot.
      document: the model, as `canonical.canonical` returns it; None where the source's own description of it and its
        own places for the weights are right there, too (`_as_it_is`, `_passed_through`).
      places: (layer, role) -> name of its variable; empty without document.
      flat: (slot or scalar, variable, array) in the order of the optimizer's own list.
      compiled: loss and metrics, see `compiled.compile_arguments`.
      scale: of the loss, where a LossScaleOptimizer wraps the optimizer.
      notes: what was changed on the way, for people.
    """

    live: LiveClass
    document: dict[str, Any] | None
    places: Mapping[Place, str]
    flat: tuple[planning.Entry, ...]
    compiled: Mapping[str, Any]
    scale: LossScale | None
    notes: tuple[str, ...]

    def array(self, name: str) -> LazyArray:
        """The values of a variable."""
        array = next(v.array for v in self.live.state.variables if v.name == name)
        if array is None:
            raise UnsupportedError(f"the source does not hold the values of {name}, so that no model can be written")
        return array


def stored_model(state: OptimizerState) -> StoredModel:
    """The model that the source describes. Raises UnsupportedError where it describes none."""
    if state.source is None or state.source.model is None:
        raise UnsupportedError(WITHOUT_MODEL)
    return state.source.model


def model_plan(state: OptimizerState, families: Sequence[str], scaled: Sequence[str] | None = None) -> ModelPlan:
    """What to write for a state.

    Args:
      families: of `keras_targets.GENERATION`, in order of preference; the most exact one is taken.
      scaled: those that are possible inside a LossScaleOptimizer, if not all.

    Raises:
      UnsupportedError: no model, layers that cannot be translated, or no class that can hold the state.
      MismatchError: weights and model do not belong together.
    """
    model, source = stored_model(state), state.source
    assert source is not None
    rate = state.hyperparameters["learning_rate"]
    if isinstance(rate, Mapping) and rate["class_name"] not in rates.SCHEDULES:
        raise UnsupportedError(
            f"the learning rate is {rate['class_name']}, no schedule of Keras's, which no file can hold; {ADVICE}"
        )
    if not any(keras_targets.has(family, state.algorithm) for family in families):
        raise UnsupportedError(f"{keras_targets.MODULE[families[0]]} has no {state.algorithm}")
    if _is_there_already(state, families):
        return _as_it_is(state)
    try:
        document = copy.deepcopy(canonical.canonical(model.config, source.generation))
    except UnsupportedError:
        if passing.possible(state, families):
            return _passed_through(state, model, families, scaled)
        raise
    state = keras1_weights.modern(state)
    assert state.source is not None
    places = weights.assign(state.source, stored_model(state), document)
    weights.settle_input(document, places, {v.name: v.shape for v in state.variables})
    notes: list[str] = []
    whole = all(leaf.frozen for leaf in canonical.leaves(document) if _has_weights(leaf))
    trained = _trained(state, document, places, notes)
    doubted = [] if whole else _thawed(state, notes)  # whole: saved beside what trains it, as a GAN's discriminator
    trained, alone = _left_alone(state, document, places, trained, notes)
    doubted += alone
    ordered = filled(replace(state, origins=(*state.origins, *doubted)), trained, notes)
    scope_names.rename(document, notes)
    scope_names.check(document, nested=keras_targets.KERAS3 in families)
    if keras_targets.KERAS3 in families:
        frozen.check(document, state)
        training.name_hard_sigmoids(document, source)
        ordered = dense_tables.sum_rows(
            ordered, document, places, keras_targets.GENERATION[keras_targets.KERAS3], notes
        )
    training.raise_epsilons(document, source, notes)
    scale = loss_scale.find(state, document)
    live = keras_targets.best(ordered, _possible(state.algorithm, families, scale, scaled))
    flat = _flat(live, state, scale)
    compiled = compile_arguments(model.training, notes, keras_targets.KERAS3 in families)
    return ModelPlan(live, document, places, flat, compiled, scale, (*live.notes, *notes))


def _possible(
    algorithm: str, families: Sequence[str], scale: LossScale | None, scaled: Sequence[str] | None
) -> Sequence[str]:
    """The families to choose from; where a LossScaleOptimizer wraps the optimizer, those that can be within it.

    Raises:
      UnsupportedError: none of these can.
    """
    if scale is None:
        return families
    what = "the loss is scaled, and"
    if keras_targets.KERAS3 in families and algorithms.find(algorithm).state_scalars:
        raise UnsupportedError(
            f"{what} Keras 3 keeps no product of {algorithm}'s momenta within a LossScaleOptimizer, and loads no file"
            f" that has one; {ADVICE}"
        )
    if scaled is not None and not any(keras_targets.has(family, algorithm) for family in scaled):
        raise UnsupportedError(
            f"{what} tf_keras cannot load a LossScaleOptimizer around its own {algorithm} from an .h5, only around one"
            f" of {keras_targets.MODULE[scaled[0]]}, which has no {algorithm}; migrate to keras or to slots"
        )
    return families if scaled is None else scaled


def _is_there_already(state: OptimizerState, families: Sequence[str]) -> bool:
    """Whether a `.keras` of Keras 3 becomes one. Its slots are in the order in which Keras trains the model that it
    loads; another order, that of a person's `--variables`, has to be brought into that of the model."""
    assert state.source is not None
    named = any(each.subject == TRAINED and each.kind == HINT for each in state.origins)
    of_keras3 = state.source.format == keras_zip.NAME and state.source.generation == "keras3"
    return of_keras3 and tuple(families) == (keras_targets.KERAS3,) and not named


def _as_it_is(state: OptimizerState) -> ModelPlan:
    """From `.keras` to `.keras`: nothing of the model has to be understood, custom layers included."""
    frozen.check(stored_model(state).config, state)
    scale = loss_scale.find(state, None)
    _possible(state.algorithm, (keras_targets.KERAS3,), scale, None)
    live = keras_targets.live_class(state, keras_targets.KERAS3)
    flat = _flat(live, state, scale)
    return ModelPlan(live, None, {}, flat, {}, scale, live.notes)


def _passed_through(
    state: OptimizerState, model: StoredModel, families: Sequence[str], scaled: Sequence[str] | None
) -> ModelPlan:
    """From tf.keras to tf_keras: the model as its source describes it, whatever its layers are."""
    passing.check_code(model)
    notes: list[str] = []
    ordered = filled(state, passing.trained(state), notes)
    scale = loss_scale.find(state, None)
    live = keras_targets.best(ordered, _possible(state.algorithm, families, scale, scaled))
    flat = _flat(live, state, scale)
    compiled = compile_arguments(model.training, notes, keras_targets.KERAS3 in families)
    return ModelPlan(live, None, {}, flat, compiled, scale, (*live.notes, *notes))


def _flat(live: keras_targets.LiveClass, state: OptimizerState, scale: LossScale | None) -> tuple[planning.Entry, ...]:
    """The list of the optimizer's variables. Raises UnsupportedError: tf_keras cannot load the model's."""
    narrow = [v.name for v in state.variables if v.dtype == "bfloat16"]
    if narrow and live.family != keras_targets.KERAS3:
        raise UnsupportedError(
            f"{some(narrow, SHOWN)}: bfloat16, which tf_keras cannot load from an .h5; migrate to keras or to slots"
        )
    return planning.newest(live.state, keras_targets.GENERATION[live.family], is_wrapped=scale is not None)


def _trained(
    state: OptimizerState, document: dict[str, Any], places: Mapping[Place, str], notes: list[str]
) -> list[str]:
    """Variables that the loaded model will train, in its order; layers that were trained after all are thawed."""
    owners = {name for per in state.slots.values() for name in per}
    owners = owners or {v.name for v in state.variables if v.trainable}
    for leaf in canonical.leaves(document):
        own = {places[leaf.path, w.role] for w in KINDS[leaf.class_name].weights(leaf.config) if w.trainable}
        if leaf.frozen and own & owners:
            _thaw(document, leaf, own <= owners)
            notes.append(f"the layer {leaf.path[-1]!r} was frozen after training, and is written as trainable")
    found = [
        places[leaf.path, weight.role]
        for leaf in canonical.leaves(document)
        if not leaf.frozen
        for weight in KINDS[leaf.class_name].weights(leaf.config)
        if weight.trainable and not weight.frozen
    ]
    found = list(dict.fromkeys(found))
    strange = sorted(owners - set(found))
    if strange:
        raise UnsupportedError(
            f"{some(strange)} have slots, and no layer of the model would train them; migrate to slots"
        )
    return found


def _has_weights(leaf: canonical.Leaf) -> bool:
    return any(weight.trainable for weight in KINDS[leaf.class_name].weights(leaf.config))


def _thawed(state: OptimizerState, notes: Sequence[str]) -> list[Origin]:
    """A doubt where layers are written as trainable again that a person has not named: of generations that ask at each
    compile, nothing says whether the last one was before or after they were frozen."""
    generation = state.source.generation if state.source is not None else None
    named = any(each.subject == TRAINED and each.kind == HINT for each in state.origins)
    if not notes or named or generation in NATIVE:
        return []
    confirm = surfaces.naming([v.name for v in state.variables if v.trainable])
    return [Origin(TRAINED, None, UNINTERPRETED, doubt="; ".join(notes[:SHOWN]), confirm=confirm)]


def _thaw(document: dict[str, Any], leaf: canonical.Leaf, whole: bool) -> None:
    if not whole:
        raise UnsupportedError(
            f"the layer {leaf.path[-1]!r} was trained in part, which no config can say; migrate to slots"
        )
    level: dict[str, Any] = document
    for name in leaf.path:
        level = next(layer for layer in level["config"]["layers"] if canonical.layer_name(layer) == name)
        if name != leaf.path[-1] and level["config"].get("trainable") is False:
            raise UnsupportedError(f"the model {name!r} is frozen as a whole, and {leaf.path[-1]!r} in it was trained")
    thawed: list[canonical.Layer] = [level]
    for layer in thawed:
        layer["config"]["trainable"] = True
        thawed += canonical.held(layer)


def _left_alone(
    state: OptimizerState, document: dict[str, Any], places: Mapping[Place, str], trained: list[str], notes: list[str]
) -> tuple[list[str], list[Origin]]:
    """What of `trained` the source's optimizer trains, and a doubt where the loaded model trains more than that.

    From TF 2.9's `experimental` on an optimizer trains what it was built with, and nothing else later. Layers of which
    it has nothing are frozen in the model; no config freezes one variable of a layer, as Keras 3 can.
    """
    generation = state.source.generation if state.source is not None else None
    owners = {name for per in state.slots.values() for name in per}
    if not owners or generation not in NEW or owners.issuperset(trained):
        return trained, []
    rest, open_, of_source = dict[str, None](), list[str](), set(trained)
    for leaf in canonical.leaves(document):
        weights_ = [places[leaf.path, w.role] for w in KINDS[leaf.class_name].weights(leaf.config) if w.trainable]
        own = [name for name in dict.fromkeys(weights_) if name in of_source and name not in rest]
        lacking = [name for name in own if name not in owners]
        within = canonical.held({"class_name": leaf.class_name, "config": leaf.config})
        is_plain = not within and leaf.class_name not in NOT_FROZEN
        if own and lacking == own and is_plain:
            leaf.config["trainable"] = False  # in the document
            notes.append(f"the layer {leaf.path[-1]!r} has no slots, and is written as frozen")
            continue
        rest |= dict.fromkeys(own)
        open_ += lacking
    text = f"{some(open_)}: no slots in the source, which trains nothing that has none, and the target trains them"
    return [*rest], [Origin(TRAINED, None, UNINTERPRETED, doubt=text)] if open_ else []


def filled(state: OptimizerState, trained: Sequence[str], notes: list[str]) -> OptimizerState:
    """The state with its variables in that order, and with every slot of each of them."""
    algorithm, by_name = algorithms.find(state.algorithm), {v.name: v for v in state.variables}
    first = [replace(by_name[name], trainable=True) for name in trained]
    rest = [replace(v, trainable=False) for v in state.variables if v.name not in set(trained)]
    slots: dict[str, dict[str, LazyArray]] = {}
    late: list[str] = []
    wanted = state.slots or {key: {} for key in algorithm.adjust(state.hyperparameters, frozenset())[1]}
    for slot, owners in wanted.items():
        slots[slot] = {}
        for variable in first:
            shape = algorithm.shape_of(slot, state.hyperparameters, variable.shape, variable.name)
            if variable.name in owners:
                slots[slot][variable.name] = owners[variable.name]
            elif shape is not None:
                slots[slot][variable.name] = initial(state, slot, variable, shape)
                late.append(variable.name)
    if late:
        named = ", ".join(dict.fromkeys(late))
        notes.append(f"{named}: can be trained and have no slots yet, and get the values with which slots begin")
    return replace(state, variables=(*first, *rest), slots=slots)


def initial(state: OptimizerState, slot: str, variable: StoredVariable, shape: tuple[int, ...]) -> LazyArray:
    if slot == AVERAGE.name and variable.array is not None:
        return variable.array
    value = keras_targets.initial_value(state, slot)
    return LazyArray(
        shape, variable.dtype, lambda: narrowed(np.full(shape, value), variable.dtype), "the initial value"
    )
