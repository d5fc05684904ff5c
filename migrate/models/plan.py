"""Plan how to write a model with its optimizer for Keras 3 or tf_keras, before anything is written."""

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
from migrate.lists import planning
from migrate.models import (
    dense_tables,
    frozen,
    keras1_weights,
    loss_scale,
    mask_order,
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
from migrate.releases import modules
from migrate.rules import keras_targets
from migrate.rules.keras_targets import LiveClass
from migrate.state import OptimizerState, StoredModel, StoredVariable
from optim import slot_layout
from optim.errors import UnsupportedError

SHOWN = 2
"""Most layers named in a message."""
WITHOUT_MODEL = "the source does not describe its model, which the target needs; migrate to slots or to a list"


@dataclass(frozen=True)
class ModelPlan:
    """Everything a writer needs.

    Attributes:
      live: the optimizer's class, its config, and the state in its terms with variables in its order and every slot.
      document: the model, as `normalized_config.canonical` returns it; None if the source's own description and
        places of weights are right for the target too (`_copied_keras3`, `_passed_through`).
      places: (layer, role) -> name of its variable; empty without document.
      flat: (slot or scalar, variable, array) in the order of the optimizer's list.
      compiled: loss and metrics, see `compiled.compile_arguments`.
      scale: the loss scale, if a LossScaleOptimizer wraps the optimizer.
      notes: changes on the way, for the user.
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
            raise UnsupportedError(f"the source does not contain the values of {name}, so no model can be written")
        return array


def stored_model(state: OptimizerState) -> StoredModel:
    """The source's model. Raises UnsupportedError if the source lacks it."""
    if state.source is None or state.source.model is None:
        raise UnsupportedError(WITHOUT_MODEL)
    return state.source.model


def model_plan(state: OptimizerState, families: Sequence[str], scaled: Sequence[str] | None = None) -> ModelPlan:
    """Plan what to write for a state.

    Args:
      families: of `modules.GENERATION`, in order of preference; the most exact one is used.
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
            f"the learning rate is {rate['class_name']}, which is not a schedule of Keras, so no file can"
            f" contain it; {ADVICE}"
        )
    if not any(keras_targets.has(family, state.algorithm) for family in families):
        raise UnsupportedError(f"{modules.MODULE[families[0]]} has no {state.algorithm}")
    is_whole = bool(state.slots) or not algorithms.slot_names(state.algorithm, state.hyperparameters)
    if is_whole and _is_there_already(state, families) and trained_layers.is_as_stored(state):
        return _copied_keras3(state)
    try:
        document = copy.deepcopy(normalized_config.canonical(model.config, source.generation))
    except UnsupportedError:
        if _is_there_already(state, families):
            return _copied_keras3(state)
        if to_tf_keras.possible(state, families):
            return _passed_through(state, model, families, scaled)
        raise
    state = keras1_weights.modern(state)
    assert state.source is not None
    places = weights.assign(state.source, stored_model(state), document)
    weights.settle_input(document, places, {v.name: v.shape for v in state.variables})
    doubles = weights.settle_dtypes(document, places, {v.name: v.dtype for v in state.variables})
    trained = trained_layers.flag(state, document, places)
    notes = [*trained.notes]
    if doubles and modules.KERAS_3 in families:
        notes.append(
            f"{some(doubles)}: float64; call keras.config.set_floatx('float64') before training, because Keras 3"
            " computes losses in its floatx, and cannot add a regularizer of another dtype"
        )
    ordered = filled(replace(state, origins=(*state.origins, *trained.doubts)), trained.order, notes)
    scope_names.rename(document, notes)
    scope_names.check(document, nested=modules.KERAS_3 in families)
    if modules.KERAS_3 in families:
        frozen.check(document, state)
        if not source.traits.has_keras3_layers:
            mask_order.check(document)
        training.name_hard_sigmoids(document, source)
        ordered = dense_tables.sum_rows(ordered, document, places, modules.GENERATION[modules.KERAS_3], notes)
    training.raise_epsilons(document, source, notes)
    scale = loss_scale.find(state, document)
    live = keras_targets.best(ordered, _possible(state.algorithm, families, scale, scaled))
    flat = _flat(live, state, scale)
    compiled = compile_arguments(model.training, notes, modules.KERAS_3 in families)
    return ModelPlan(live, document, places, flat, compiled, scale, (*live.notes, *notes))


def _possible(
    algorithm: str, families: Sequence[str], scale: LossScale | None, scaled: Sequence[str] | None
) -> Sequence[str]:
    """The possible families; inside a LossScaleOptimizer only some are.

    Raises:
      UnsupportedError: there is no possible family.
    """
    if scale is None:
        return families
    what = "the loss is scaled, and"
    if modules.KERAS_3 in families and algorithms.find(algorithm).state_scalars:
        raise UnsupportedError(
            f"{what} Keras 3 does not keep the product of {algorithm}'s momenta within a LossScaleOptimizer,"
            f" and cannot load a file that contains one; {ADVICE}"
        )
    if scaled is not None and not any(keras_targets.has(family, algorithm) for family in scaled):
        raise UnsupportedError(
            f"{what} tf_keras cannot load a LossScaleOptimizer around its own {algorithm} from an .h5, only around one"
            f" of {modules.MODULE[scaled[0]]}, which has no {algorithm}; migrate to keras or to slots"
        )
    return families if scaled is None else scaled


def _is_there_already(state: OptimizerState, families: Sequence[str]) -> bool:
    """Whether a `.keras` of Keras 3 becomes one. Its slots are in the order in which Keras trains the loaded model;
    another order, from the user's `--variables`, must be changed to the model's."""
    assert state.source is not None
    of_keras3 = state.source.format == keras_zip.NAME and state.source_traits.has_keras3_layers
    return of_keras3 and tuple(families) == (modules.KERAS_3,) and not trained_layers.is_named(state)


def _copied_keras3(state: OptimizerState) -> ModelPlan:
    notes: list[str] = []
    if not trained_layers.is_as_stored(state):
        state = trained_layers.flag_as_stored(state, trained_layers.of_state(state), notes)
    frozen.check(stored_model(state).config, state)
    scale = loss_scale.find(state, None)
    _possible(state.algorithm, (modules.KERAS_3,), scale, None)
    live = keras_targets.live_class(state, modules.KERAS_3)
    flat = _flat(live, state, scale)
    return ModelPlan(live, None, {}, flat, {}, scale, (*live.notes, *notes))


def _passed_through(
    state: OptimizerState, model: StoredModel, families: Sequence[str], scaled: Sequence[str] | None
) -> ModelPlan:
    """Plan from tf.keras to tf_keras: the model is copied as its source describes it, with any layers."""
    to_tf_keras.check_code(model)
    notes: list[str] = []
    trained = to_tf_keras.trained(state)
    ordered = filled(trained_layers.flag_as_stored(state, trained, notes), trained, notes)
    scale = loss_scale.find(state, None)
    live = keras_targets.best(ordered, _possible(state.algorithm, families, scale, scaled))
    flat = _flat(live, state, scale)
    compiled = compile_arguments(model.training, notes, modules.KERAS_3 in families)
    return ModelPlan(live, None, {}, flat, compiled, scale, (*live.notes, *notes))


def _flat(live: keras_targets.LiveClass, state: OptimizerState, scale: LossScale | None) -> tuple[planning.Entry, ...]:
    """The list of the optimizer's variables. Raises UnsupportedError if tf_keras cannot load their dtype."""
    narrow = [v.name for v in state.variables if v.dtype == "bfloat16"]
    if narrow and live.family != modules.KERAS_3:
        raise UnsupportedError(
            f"{some(narrow, SHOWN)}: bfloat16, which tf_keras cannot load from an .h5; migrate to keras or to slots"
        )
    return planning.newest(live.state, modules.GENERATION[live.family], is_wrapped=scale is not None)


def filled(state: OptimizerState, trained: Sequence[str], notes: list[str]) -> OptimizerState:
    """Return the state with its variables in that order, each with every slot."""
    algorithm, by_name = algorithms.find(state.algorithm), {v.name: v for v in state.variables}
    first = [replace(by_name[name], trainable=True) for name in trained]
    rest = [replace(v, trainable=False) for v in state.variables if v.name not in set(trained)]
    slots: dict[str, dict[str, LazyArray]] = {}
    late: list[str] = []
    wanted = state.slots or {key: {} for key in algorithms.slot_names(state.algorithm, state.hyperparameters)}
    for slot, owners in wanted.items():
        if slot == slot_layout.GATHERED:  # it marks accumulated gradients of optim, and no Keras has it
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
        notes.append(f"{named}: trainable without slots yet; their slots get initial values")
    return replace(state, variables=(*first, *rest), slots=slots)


def initial(state: OptimizerState, slot: str, variable: StoredVariable, shape: tuple[int, ...]) -> LazyArray:
    if slot == AVERAGE.name and variable.array is not None:
        return variable.array
    value = keras_targets.initial_value(state, slot)
    return LazyArray(
        shape, variable.dtype, lambda: narrowed(np.full(shape, value), variable.dtype), "the initial value"
    )
