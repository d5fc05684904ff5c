"""A model with its optimizer as Keras 3 or tf_keras is to load it: what goes where, before anything is written."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from migrate import algorithms
from migrate.algorithms import rates
from migrate.algorithms.spec import AVERAGE
from migrate.bytes.arrays import LazyArray, narrowed
from migrate.bytes.messages import some
from migrate.generations import KERAS3
from migrate.lists import planning
from migrate.models import (
    dense_tables,
    frozen,
    keras1_weights,
    loss_scale,
    normalized_config,
    scope_names,
    to_tf_keras,
    trained_layers,
    training,
    weights,
)
from migrate.models.compiled import compile_arguments
from migrate.models.layers import ADVICE
from migrate.models.loss_scale import LossScale
from migrate.models.weights import Place
from migrate.readers import keras_zip
from migrate.rules import keras_targets
from migrate.rules.keras_targets import LiveClass
from migrate.state import OptimizerState, StoredModel, StoredVariable
from optim import slot_layout
from optim.errors import UnsupportedError

SHOWN = 2
"""Layers in a message."""
WITHOUT_MODEL = "the source does not describe its model, which the target has to hold; migrate to slots or to a list"


@dataclass(frozen=True)
class ModelPlan:
    """Everything a writer needs.

    Attributes:
      live: the optimizer's class, its config, and the state in its terms with variables in its order and every slot.
      document: the model, as `normalized_config.canonical` returns it; None if the source's own description of it and
        its own places for the weights are right there, too (`_as_it_is`, `_passed_through`).
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
    rate = rates.in_keras(state.hyperparameters["learning_rate"])
    if isinstance(rate, Mapping) and rate["class_name"] not in rates.SCHEDULES:
        raise UnsupportedError(
            f"the learning rate is {rate['class_name']}, no schedule of Keras's, which no file can hold; {ADVICE}"
        )
    if not any(keras_targets.has(family, state.algorithm) for family in families):
        raise UnsupportedError(f"{keras_targets.MODULE[families[0]]} has no {state.algorithm}")
    is_whole = bool(state.slots) or not algorithms.slot_names(state.algorithm, state.hyperparameters)
    if is_whole and _is_there_already(state, families) and trained_layers.is_as_stored(state):
        return _as_it_is(state)
    try:
        document = copy.deepcopy(normalized_config.canonical(model.config, source.generation))
    except UnsupportedError:
        if _is_there_already(state, families):
            return _as_it_is(state)
        if to_tf_keras.possible(state, families):
            return _passed_through(state, model, families, scaled)
        raise
    state = keras1_weights.modern(state)
    assert state.source is not None
    places = weights.assign(state.source, stored_model(state), document)
    weights.settle_input(document, places, {v.name: v.shape for v in state.variables})
    trained = trained_layers.flag(state, document, places)
    notes = [*trained.notes]
    ordered = filled(replace(state, origins=(*state.origins, *trained.doubts)), trained.order, notes)
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
    loads; another order, that of the user's `--variables`, has to be brought into that of the model."""
    assert state.source is not None
    of_keras3 = state.source.format == keras_zip.NAME and state.source.generation == KERAS3
    return of_keras3 and tuple(families) == (keras_targets.KERAS3,) and not trained_layers.is_named(state)


def _as_it_is(state: OptimizerState) -> ModelPlan:
    """From `.keras` to `.keras`: nothing of the model has to be understood, custom layers included."""
    notes: list[str] = []
    if not trained_layers.is_as_stored(state):
        state = trained_layers.flag_as_stored(state, trained_layers.of_state(state), notes)
    frozen.check(stored_model(state).config, state)
    scale = loss_scale.find(state, None)
    _possible(state.algorithm, (keras_targets.KERAS3,), scale, None)
    live = keras_targets.live_class(state, keras_targets.KERAS3)
    flat = _flat(live, state, scale)
    return ModelPlan(live, None, {}, flat, {}, scale, (*live.notes, *notes))


def _passed_through(
    state: OptimizerState, model: StoredModel, families: Sequence[str], scaled: Sequence[str] | None
) -> ModelPlan:
    """From tf.keras to tf_keras: the model as its source describes it, whatever its layers are."""
    to_tf_keras.check_code(model)
    notes: list[str] = []
    trained = to_tf_keras.trained(state)
    ordered = filled(trained_layers.flag_as_stored(state, trained, notes), trained, notes)
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


def filled(state: OptimizerState, trained: Sequence[str], notes: list[str]) -> OptimizerState:
    """The state with its variables in that order, and with every slot of each of them."""
    algorithm, by_name = algorithms.find(state.algorithm), {v.name: v for v in state.variables}
    first = [replace(by_name[name], trainable=True) for name in trained]
    rest = [replace(v, trainable=False) for v in state.variables if v.name not in set(trained)]
    slots: dict[str, dict[str, LazyArray]] = {}
    late: list[str] = []
    wanted = state.slots or {key: {} for key in algorithms.slot_names(state.algorithm, state.hyperparameters)}
    for slot, owners in wanted.items():
        if slot == slot_layout.GATHERED:  # which marks the gradients of optim that were added up, and no Keras has
            continue
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
