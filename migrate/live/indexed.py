"""Keras 3, and tf_keras as from Keras 2.11: slots in lists, in the order of `build`'s variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from migrate.algorithms import repeated_rows
from migrate.algorithms.nadam import PRODUCT
from migrate.generations import traits
from migrate.live import keras
from migrate.live.step_answers import Asks
from migrate.models.loss_scale import Scaling
from migrate.releases.versions import UNKNOWN
from migrate.rules import comparison
from migrate.rules import step_factors as factors
from optim import slot_layout
from optim.errors import UnsupportedError
from optim.state.tracked import plain_name, unwrap

NADAM_IN_FUNCTIONS = (
    "tf_keras multiplies Nadam's product of momenta once per variable instead of once per step inside a tf.function, as"
    " under fit; step eagerly for exact steps"
)


class Indexed:
    """See `migrate.live.base.Live`."""

    def __init__(self, optimizer: Any, library: str, generation: str, home: str, version: str):
        self._optimizer = optimizer
        self.generation, self._version = generation, version
        self._spec, self._stock = keras.algorithm_of(optimizer, home)
        self.algorithm = self._spec.name
        self.what = f"{library}.optimizers.{type(optimizer).__name__} ({library} {version})"
        self._values: Mapping[str, Any] = {}
        self.scaling: Scaling | None = None
        self.asks: Asks = {
            **keras.asks(self._spec, self.generation, lambda: self._values),
            factors.DECAYED: lambda row: bool(self._optimizer._use_weight_decay(row.variable)),
        }
        if traits(generation).has_backends:
            self._check_backend()

    def _check_backend(self) -> None:
        if not hasattr(unwrap_or_none(self._optimizer._iterations), "assign"):
            raise UnsupportedError(
                "the live optimizer is of Keras 3 on another backend than TensorFlow; restore into one on TensorFlow"
                " (KERAS_BACKEND=tensorflow), or migrate to a list"
            )

    def rule(self, dtypes: Sequence[str]) -> comparison.Rule:
        rule = keras.rule_of(self._optimizer, self._spec, self._stock, self.generation, self._version, dtypes)
        self._values = rule.values
        if self.algorithm == "Nadam" and traits(self.generation).multiplies_product_by_variable:
            return comparison.Rule(
                rule.algorithm,
                rule.values,
                rule.unknown_rate,
                (*rule.reasons, NADAM_IN_FUNCTIONS),
                rule.warnings,
            )
        return rule

    @property
    def _built(self) -> bool:
        name = "built" if traits(self.generation).has_keras3_layers else "_built"
        return bool(getattr(self._optimizer, name, False))

    def _index(self) -> dict[Any, int]:
        name = "_trainable_variables_indices" if traits(self.generation).has_keras3_layers else "_index_dict"
        return dict(getattr(self._optimizer, name))

    def missing(self, variables: Sequence[Any]) -> tuple[list[str], list[str]]:
        if not self._built:
            return [], []
        index = self._index()
        known = {self._optimizer._var_key(v): v for v in variables}
        unknown = [plain_name(v) for key, v in known.items() if key not in index]
        return unknown, [f"its variable {i}" for key, i in index.items() if key not in known]

    def known(self) -> Sequence[Any]:
        return list(getattr(self._optimizer, "_trainable_variables", ())) if self._built else []  # of Keras 3

    def build(self, variables: Sequence[Any]) -> None:
        if not self._built:
            self._optimizer.build(list(variables))

    def slots(self, variable: Any) -> Mapping[str, Any]:
        place = self._index()[self._optimizer._var_key(variable)]
        shape = tuple(variable.shape)
        found = {}
        for slot, members in keras.by_attribute(self._optimizer, self._spec).items():
            wanted = self._spec.slot(slot).shape(shape)
            if wanted is not None and members[place] is not None:  # Adafactor has placeholders of slots
                found[slot] = unwrap(members[place])
        return found

    def scalars(self, values: Mapping[str, float]) -> list[tuple[str, Any, float]]:
        batches = int(self._values.get("gradient_accumulation_steps") or 1)
        count = values[slot_layout.ITERATIONS] * batches + values.get(slot_layout.ACCUMULATED_STEPS, 0)
        found = [(slot_layout.ITERATIONS, unwrap(self._optimizer._iterations), count)]
        if self.algorithm == "Nadam":
            found.append((PRODUCT, unwrap(self._optimizer._u_product), values[PRODUCT]))
        return found

    def start(self, slot: str) -> float | None:
        return keras.start_of(slot, self._values)

    def lazy_reasons(self, names: Sequence[str]) -> list[str]:
        return keras.lazy_reasons(self._spec, self._values, self.generation, names)

    def repeated(self) -> tuple[str, ...]:
        return repeated_rows.done(self.generation, self._spec, self._values, UNKNOWN)

    def settle(self, values: Mapping[str, float]) -> None:
        if hasattr(self._optimizer, "_u_product_counter"):  # it prevents tf_keras's Nadam from multiplying twice
            self._optimizer._u_product_counter = int(values[slot_layout.ITERATIONS]) + 1


def unwrap_or_none(variable: Any) -> Any:
    """The `tf.Variable` of a variable, None for another framework's."""
    from optim.errors import GradientsError

    try:
        return unwrap(variable)
    except GradientsError:
        return None
