"""Handle tables of Embedding layers if a batch has a row several times and Keras 3 squares each gradient on TensorFlow.

With a regularizer Keras 3 uses an array with their sum, as on JAX and PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from migrate import algorithms
from migrate.algorithms import repeated_rows
from migrate.bytes.messages import some
from migrate.models.normalized_config import Layer, leaves
from migrate.models.weights import Place
from migrate.releases.versions import UNKNOWN
from migrate.state import OptimizerState

REGULARIZER = "embeddings_regularizer"
NOTHING = {"class_name": "L2", "config": {"l2": 0.0}}


def sum_rows(
    state: OptimizerState, document: Layer, places: Mapping[Place, str], generation: str, notes: list[str]
) -> OptimizerState:
    """Return the state without these tables among those with sparse gradients. If the source adds up the gradients of a
    row and updates all rows, and `generation` handles each gradient, layers get a regularizer that adds nothing."""
    algorithm, values = algorithms.find(state.algorithm), state.hyperparameters
    doing = repeated_rows.done(generation, algorithm, values, UNKNOWN)
    unlike = repeated_rows.of_source(state, algorithm) or values.get("lazy_rows")
    if state.source is None or not doing or unlike or repeated_rows.is_absent(state.origins):
        return state
    tables = {places[leaf.path, "embeddings"]: leaf for leaf in leaves(document) if leaf.class_name == "Embedding"}
    trained = [v.name for v in state.variables if v.trainable]
    sparse = repeated_rows.looked_up(trained, state.source.sparse)
    plain = [name for name in sparse if name in tables and not tables[name].config.get(REGULARIZER)]
    for name in plain:
        tables[name].config[REGULARIZER] = NOTHING
    if plain:
        notes.append(
            f"{some(plain)}: gets a regularizer of 0 there, so that Keras 3 on TensorFlow adds up its gradients too"
            " if a batch has a row several times"
        )
    return replace(state, source=replace(state.source, sparse=frozenset(sparse) - tables.keys()))
