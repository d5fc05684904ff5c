"""OptimizerV2: tf_keras.optimizers.legacy, whose slots are requested by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from migrate.algorithms import repeated_rows
from migrate.algorithms.nadam import PRODUCT
from migrate.live import keras
from migrate.live.step_answers import Asks
from migrate.models.loss_scale import Scaling
from migrate.releases.versions import UNKNOWN
from migrate.rules import comparison
from migrate.rules import step_factors as factors
from optim import slot_layout
from optim.state.tracked import unwrap

GENERATION = factors.LEGACY


class Legacy:
    """See `migrate.live.base.Live`. It creates slots of any variable at any time, so there are never too few or too
    many."""

    generation = GENERATION

    def __init__(self, optimizer: Any, home: str, version: str):
        self._optimizer, self._version = optimizer, version
        self._spec, self._stock = keras.algorithm_of(optimizer, home)
        self.algorithm = self._spec.name
        self.what = f"tf_keras.optimizers.legacy.{type(optimizer).__name__} (tf_keras {version})"
        self._values: Mapping[str, Any] = {}
        self.scaling: Scaling | None = None
        self.asks: Asks = keras.asks(self._spec, GENERATION, lambda: self._values)

    def rule(self, dtypes: Sequence[str]) -> comparison.Rule:
        rule = keras.rule_of(self._optimizer, self._spec, self._stock, GENERATION, self._version, dtypes)
        self._values = rule.values
        return rule

    def missing(self, variables: Sequence[Any]) -> tuple[list[str], list[str]]:
        return [], []

    def known(self) -> Sequence[Any]:
        return []

    def build(self, variables: Sequence[Any]) -> None:
        import tensorflow as tf

        with tf.init_scope():
            self._optimizer._create_all_weights(list(variables))

    def slots(self, variable: Any) -> Mapping[str, Any]:
        found = {}
        for name in self._optimizer.get_slot_names():
            slot = self._spec.slot_of(name)
            if slot is not None:
                found[slot] = unwrap(self._optimizer.get_slot(variable, name))
        return found

    def scalars(self, values: Mapping[str, float]) -> list[tuple[str, Any, float]]:
        found = [(slot_layout.ITERATIONS, self._optimizer.iterations, values[slot_layout.ITERATIONS])]
        if self.algorithm == "Nadam":
            found.append((PRODUCT, self._optimizer._m_cache, values[PRODUCT]))
        return found

    def start(self, slot: str) -> float | None:
        return keras.start_of(slot, self._values)

    def lazy_reasons(self, names: Sequence[str]) -> list[str]:
        return keras.lazy_reasons(self._spec, self._values, GENERATION, names)

    def repeated(self) -> tuple[str, ...]:
        return repeated_rows.done(GENERATION, self._spec, self._values, UNKNOWN)

    def settle(self, values: Mapping[str, float]) -> None:
        pass
