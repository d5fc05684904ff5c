"""Live optimizers of Keras 3 on every backend, and of tf_keras, new and legacy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from migrate import algorithms, claims
from migrate.algorithms import keras_config, lazy_rows, nadam, rates, repeated_rows
from migrate.algorithms.arguments import Arguments
from migrate.algorithms.spec import ACCUMULATED, AVERAGE, Algorithm
from migrate.generations import traits
from migrate.live import values
from migrate.live.base import Live, Numbers, replaced
from migrate.live.step_answers import exceptions, lazy
from migrate.models.loss_scale import Scaling
from migrate.releases.versions import Versions
from migrate.rules import comparison
from migrate.rules import step_factors as factors
from optim import slot_layout
from optim.errors import UnsupportedError
from optim.schedules import documents
from optim.state.names import plain_name

PLACEHOLDER_RATE = 1.0
CONSTANT = 2**31 - 1
"""Steps until a loss scale of Keras 3 grows, if it never does."""
NADAM_IN_FUNCTIONS = (
    "tf_keras multiplies Nadam's product of momenta once per variable instead of once per step inside a tf.function, as"
    " under fit; step eagerly for exact steps"
)


class KerasLive(Live):
    """The common part of all of them: their rule is in `get_config()`.

    Args:
      homes: beginnings of the names of the library's modules.
      where: the module of the public class, for messages.
      versions: the release, and the backend of Keras 3.
    """

    product = "_u_product"
    """The attribute with Nadam's product of momenta."""

    def __init__(self, optimizer: Any, generation: str, homes: tuple[str, ...], where: str, versions: Versions):
        self._spec, self._is_stock = _algorithm_of(optimizer, homes)
        library = where.partition(".")[0]
        what = f"{where}.{type(optimizer).__name__} ({library} {versions.keras or 'of unknown release'})"
        super().__init__(optimizer, self._spec.name, generation, what)
        self._versions = versions
        self.asks |= {
            factors.EXCEPTED: lambda row: exceptions(self._values, plain_name(row.variable)),
            factors.LAZY: lambda row: lazy(self._lazy_arguments([row.stored.name]).values, row.stored.name),
        }

    def rule(self, dtypes: Sequence[str]) -> comparison.Rule:
        optimizer = self._optimizer
        rate = getattr(optimizer, "_hyper", {}).get("learning_rate", getattr(optimizer, "_learning_rate", None))
        config, unknown = _config(optimizer, rate)
        full, _ = keras_config.completed(config, self._spec, self.generation)
        arguments = keras_config.arguments(full, {}, self._spec, self.generation, self._versions, dtypes)
        origins = (o for o in arguments.origins.values() if o.subject != keras_config.EXCLUDED)  # it is asked itself
        reasons = [*claims.reasons(origins), *replaced(optimizer), *self._reasons()]
        self._values = comparison.spelled_out(self._spec.name, arguments.values)
        called = _called(rate) if unknown is not None else None
        return comparison.Rule(
            self._spec.name, self._values, unknown, tuple(reasons), tuple(arguments.warnings), called
        )

    def _reasons(self) -> Iterator[str]:
        optimizer = self._optimizer
        if getattr(optimizer, "gradient_transformers", None):
            yield "the live optimizer has gradient_transformers, and what they do is not compared"
        aggregator = getattr(optimizer, "gradient_aggregator", None)
        if aggregator is not None and not str(getattr(aggregator, "__module__", "")).startswith("tf_keras."):
            yield "the live optimizer has a gradient_aggregator of your own, and what it does is not compared"
        if not self._is_stock:
            yield f"{type(optimizer).__name__} is a class of your own: its rule was not compared"

    def scalars(self, values: Numbers) -> list[tuple[str, Any, float]]:
        batches = int(self._values.get("gradient_accumulation_steps") or 1)
        count = values[slot_layout.ITERATIONS] * batches + values.get(slot_layout.ACCUMULATED_STEPS, 0)
        scalars = [(slot_layout.ITERATIONS, self._counter(), count)]
        if self._spec.name == "Nadam":
            scalars.append((nadam.PRODUCT, getattr(self._optimizer, self.product), values[nadam.PRODUCT]))
        return scalars

    def _counter(self) -> Any:
        return self._optimizer._iterations

    def start(self, slot: str) -> float | None:
        return values.initial(slot, self._spec.name, self._values)

    def lazy_reasons(self, names: Sequence[str]) -> list[str]:
        origins = self._lazy_arguments(names).origins.values()
        return list(claims.reasons(o for o in origins if o.subject != repeated_rows.REPEATED))

    def _lazy_arguments(self, names: Sequence[str]) -> Arguments:
        arguments = Arguments()
        config = {k: v for k, v in self._values.items() if k != keras_config.LAZY_ROWS}
        lazy_rows.put_in(arguments, config, self._spec, self.generation, names)
        return arguments

    def repeated(self) -> tuple[str, ...]:
        backend = Versions(backend=self._versions.backend)
        return repeated_rows.done(self.generation, self._spec, self._values, backend)


class Indexed(KerasLive):
    """Keras 3, and tf_keras as from Keras 2.11: slots in lists, in the order of `build`'s variables."""

    def __init__(self, optimizer: Any, generation: str, homes: tuple[str, ...], where: str, versions: Versions):
        super().__init__(optimizer, generation, homes, where, versions)
        self.asks[factors.DECAYED] = lambda row: bool(optimizer._use_weight_decay(row.variable))
        self._is_keras3 = traits(generation).has_keras3_layers

    def _reasons(self) -> Iterator[str]:
        yield from super()._reasons()
        if self.algorithm == "Nadam" and traits(self.generation).multiplies_product_by_variable:
            yield NADAM_IN_FUNCTIONS

    @property
    def _is_built(self) -> bool:
        return bool(getattr(self._optimizer, "built" if self._is_keras3 else "_built", False))

    def _index(self) -> dict[Any, int]:
        return dict(getattr(self._optimizer, "_trainable_variables_indices" if self._is_keras3 else "_index_dict"))

    def missing(self, variables: Sequence[Any]) -> tuple[list[str], list[str]]:
        if not self._is_built:
            return [], []
        index = self._index()
        known = {self._optimizer._var_key(v): v for v in variables}
        unknown = [plain_name(v) for key, v in known.items() if key not in index]
        return unknown, [f"its variable {i}" for key, i in index.items() if key not in known]

    def known(self) -> Sequence[Any]:
        return list(getattr(self._optimizer, "_trainable_variables", ())) if self._is_built else []  # of Keras 3

    def build(self, variables: Sequence[Any]) -> None:
        if not self._is_built:
            self._optimizer.build(list(variables))

    def slots(self, variable: Any) -> Mapping[str, Any]:
        place, shape = self._index()[self._optimizer._var_key(variable)], tuple(variable.shape)
        lists = by_attribute(self._optimizer, self._spec).items()
        slots = {slot: members[place] for slot, members in lists if self._spec.slot(slot).shape(shape) is not None}
        return {slot: array for slot, array in slots.items() if array is not None}  # Adafactor has placeholders

    def settle(self, values: Numbers) -> None:
        if hasattr(self._optimizer, "_u_product_counter"):  # it prevents tf_keras's Nadam from multiplying twice
            self._optimizer._u_product_counter = int(values[slot_layout.ITERATIONS]) + 1


class Legacy(KerasLive):
    """OptimizerV2: tf_keras.optimizers.legacy, whose slots are requested by name.

    It creates slots of any variable at any time, so there are never too few or too many.
    """

    product = "_m_cache"

    def build(self, variables: Sequence[Any]) -> None:
        import tensorflow as tf

        with tf.init_scope():
            self._optimizer._create_all_weights(list(variables))

    def slots(self, variable: Any) -> Mapping[str, Any]:
        names = {name: self._spec.slot_of(name) for name in self._optimizer.get_slot_names()}
        return {slot: self._optimizer.get_slot(variable, name) for name, slot in names.items() if slot is not None}

    def _counter(self) -> Any:
        return self._optimizer.iterations


def _algorithm_of(optimizer: Any, homes: tuple[str, ...]) -> tuple[Algorithm, bool]:
    """Return the algorithm of an optimizer, and whether its class is the library's own.

    Raises:
      UnsupportedError: neither its class nor a base class is a known one of the library.
    """
    is_stock = type(optimizer).__module__.startswith(homes)
    for cls in type(optimizer).__mro__:
        for algorithm in algorithms.ALGORITHMS if cls.__module__.startswith(homes) else ():
            if algorithm.name == cls.__name__:
                return algorithm, is_stock and cls.__name__ == type(optimizer).__name__
    known = ", ".join(a.name for a in algorithms.ALGORITHMS)
    raise UnsupportedError(
        f"{type(optimizer).__name__} is not an optimizer whose state dtopt restores, nor derived from one: {known}"
    )


def _config(optimizer: Any, rate: Any) -> tuple[dict[str, Any], str | None]:
    """The optimizer's config, and its learning rate in words if that is neither a number nor a known schedule."""
    config = dict((_with_constant_rate(optimizer) if callable(rate) else optimizer).get_config())
    config = {k: (v.item() if hasattr(v, "item") and getattr(v, "ndim", 1) == 0 else v) for k, v in config.items()}
    unknown = None
    if documents.is_schedule(rate):
        document = documents.to_config(rate)
        config["learning_rate"] = {key: document[key] for key in ("class_name", "config")}
        if document["class_name"] not in rates.SCHEDULES:
            unknown = f"the schedule {type(rate).__name__}"
    elif callable(rate) or not isinstance(config.get("learning_rate"), (int, float)):
        unknown = f"a callable ({type(rate).__name__})"
    return (config if unknown is None else {**config, "learning_rate": PLACEHOLDER_RATE}), unknown


def _with_constant_rate(optimizer: Any) -> Any:
    """A view for `get_config`, which would load TensorFlow on other backends to serialize a schedule."""
    if "_learning_rate" not in vars(optimizer):  # OptimizerV2
        return optimizer
    view = object.__new__(type(optimizer))
    vars(view).update(vars(optimizer), _learning_rate=PLACEHOLDER_RATE)
    return view


def _called(rate: Any) -> Callable[[int], float] | None:
    """A custom schedule as its library calls it; None for a callable without a step argument."""
    homes = {c.__module__.partition(".")[0] for c in type(rate).__mro__ if c.__name__ == "LearningRateSchedule"}
    return (lambda step: float(rate(step))) if homes & {"keras", "tf_keras"} else None


def scaling(wrapper: Any) -> Scaling | None:
    """The loss scale of a LossScaleOptimizer of Keras 3 or tf_keras; None without one."""
    if wrapper is None:
        return None
    growth, now = getattr(wrapper, "dynamic_growth_steps", None), getattr(wrapper, "dynamic_scale", None)
    if hasattr(wrapper, "loss_scale"):  # of tf_keras
        growth, now = (growth if wrapper.dynamic else None), wrapper.loss_scale
    elif now is None:  # of Keras 3, before it is built
        now = getattr(wrapper, "initial_scale", None)
    steps = CONSTANT if growth is None else int(growth)
    return Scaling(steps if steps < CONSTANT else None, None if now is None else float(now))


def by_attribute(optimizer: Any, algorithm: Algorithm) -> dict[str, Sequence[Any]]:
    """Lists of slot variables by `optim`'s slot name, found under the library's attributes."""
    shared = {AVERAGE: "_model_variables_moving_average", ACCUMULATED: "_accumulated_gradients"}
    lists: dict[str, Sequence[Any]] = {}
    for slot in (*algorithm.slots, *shared):
        names = [shared[slot]] if slot in shared else [f"{u}{n}" for n in (*slot.aliases, slot.name) for u in ("_", "")]
        for name in names:
            value = getattr(optimizer, name, None)
            if isinstance(value, (list, tuple)) and len(value):
                lists[slot.name] = value
                break
    return lists
