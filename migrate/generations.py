"""The generations of Keras optimizers.

| name | releases |
|---|---|
| `keras1` | standalone Keras 1.x |
| `keras2` | standalone Keras 2.0 - 2.2.5 |
| `keras2.3` | standalone Keras 2.3 |
| `optimizer_v1` | tf.keras of TF 1.4 - 1.13, and what later releases keep of it |
| `optimizer_v2` | tf.keras of TF 1.14 - 2.10, `optimizers.legacy` from 2.11 on |
| `experimental` | `optimizers.experimental` and DTensor optimizers of TF 2.9 and 2.10 |
| `optimizer` | tf.keras 2.11 - 2.15 and tf_keras |
| `keras3` | Keras 3 |
| `tf1` | tf.train.* |
"""

from __future__ import annotations

from optim.errors import HyperparameterError

KERAS1, KERAS2, KERAS2_3, OPTIMIZER_V1 = "keras1", "keras2", "keras2.3", "optimizer_v1"
OPTIMIZER_V2, EXPERIMENTAL, OPTIMIZER, KERAS3, TF1 = "optimizer_v2", "experimental", "optimizer", "keras3", "tf1"
GENERATIONS = (KERAS1, KERAS2, KERAS2_3, OPTIMIZER_V1, OPTIMIZER_V2, EXPERIMENTAL, OPTIMIZER, KERAS3, TF1)
STANDALONE = frozenset({KERAS1, KERAS2, KERAS2_3})
NATIVE = STANDALONE | {OPTIMIZER_V1}
"""Generations with Keras's own update code, before OptimizerV2."""
NEW = frozenset({EXPERIMENTAL, OPTIMIZER, KERAS3})


def check(name: str) -> str:
    """The name itself; HyperparameterError with the list if it is none of GENERATIONS."""
    if name not in GENERATIONS:
        raise HyperparameterError(f"unknown generation {name!r}; --generation takes one of: {', '.join(GENERATIONS)}")
    return name
