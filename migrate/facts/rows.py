"""What releases do with sparse gradients: rows of a table that a batch lacks, or has several times."""

from __future__ import annotations

from functools import lru_cache

from migrate.facts.fact import Fact
from migrate.releases.table import Release
from migrate.releases.versions import TENSORFLOW

SUM, EACH = "sum", "each"
SLICED = {"clipnorm": (1, 13), "clipvalue": (1, 14)}
"""Limit -> the TensorFlow from which on it acts on each slice (`clip_ops.py`). Before, slices become an array."""


@lru_cache
def clipped(limit: str) -> Fact:
    """Return the row on whether a limit acts on each gradient of a row that a batch has several times."""

    def way(r: Release) -> str:
        if r.traits.has_keras1_layers or r.is_tf_train or r.backend != TENSORFLOW:
            return SUM
        if not r.is_native:
            return EACH
        since = SLICED.get(limit) if limit == "clipvalue" or not r.is_standalone else None
        return EACH if since is not None and r.tensorflow >= since else SUM

    return Fact(
        limit,
        f"What does `{limit}` limit if a batch has a row several times?",
        way,
        {SUM: "limited the sum of its gradients", EACH: "limited each of its gradients"},
        "`clip_ops.py` of TF 1.12 to 1.15, run on 1.15; `optimizer_v2.py`; Keras 3.0 to 3.15 on TensorFlow, run",
    )


def _squared(r: Release) -> str:
    if r.is_keras_3:
        return EACH if r.backend == TENSORFLOW else SUM
    return EACH if r.traits.repeats_in_own_way and r.tensorflow < (2, 10) else SUM


SQUARED = Fact(
    "repeated_rows",
    "Are the gradients of a row that a batch has several times squared before they are added?",
    _squared,
    {SUM: "squared the sum of its gradients", EACH: "squared each of its gradients"},
    "`update_step` and `_deduplicate_sparse_grad` of `optimizer_experimental` in TF 2.9 and 2.10",
)
DENSE, SPARSE = "dense", "sparse"
SCALED = Fact(
    "lazy_rows",
    "Are sparse gradients dense after a LossScaleOptimizer?",
    lambda r: DENSE if r.is_optimizer_v2 and r.tensorflow < (2, 3) else SPARSE,
    {DENSE: "made them dense, so that all rows moved", SPARSE: "kept them sparse"},
    "`loss_scale_optimizer.py` of TF 1.15, 2.0 and 2.2; run in 2.0, 2.1, 2.2 and 2.3",
)
LOOKED_UP = Fact(
    "lazy_rows",
    "Is the gradient of a Dense kernel sparse if the layer is given sparse tensors?",
    lambda r: SPARSE if r.is_optimizer_v2 and r.tensorflow >= (2, 5) else DENSE,
    {DENSE: "made it dense", SPARSE: "kept it sparse"},
    "`Dense.call` of Keras 2.4 to 2.15 (`layers/core/dense.py`), run in 2.4, 2.7 and 2.15",
)
FACTS = (*map(clipped, SLICED), SQUARED, SCALED, LOOKED_UP)
