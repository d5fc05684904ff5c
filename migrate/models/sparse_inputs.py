"""Find Dense layers with sparse inputs: from TF 2.5 on they look up rows of their kernel, as Embedding does.

`Dense.call` of Keras 2.5 to 2.15 and tf_keras (`layers/core/dense.py`) then uses `tf.nn.embedding_lookup_sparse`, so
the kernel's gradient is sparse. That of 2.4 multiplies matrices, with a dense gradient (run in 2.4, 2.7 and 2.15).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from migrate.facts.rows import LOOKED_UP, SPARSE
from migrate.models import operators
from migrate.models.layers import MODELS
from migrate.models.normalized_config import layer_name
from migrate.releases.narrowing import candidates
from migrate.releases.versions import Versions


def fed(config: Any, generation: str, versions: Versions) -> tuple[frozenset[str], bool]:
    """Return the names of the Dense layers whose kernels have sparse gradients, and whether others may have them too:
    those after layers that pass sparse tensors on, or if the release is unknown."""
    takers = list(_layers_on_sparse_inputs(config))
    dense = frozenset(layer_name(layer) for layer in takers if layer["class_name"] == "Dense")
    releases = candidates(generation, versions)
    if not takers or not LOOKED_UP.may_be(SPARSE, releases):
        return frozenset(), False
    elsewhere = any(layer["class_name"] not in ("Dense", *MODELS) for layer in takers)
    return dense, elsewhere or LOOKED_UP.of(releases) is None


def _layers_on_sparse_inputs(config: Any) -> Iterator[Mapping[str, Any]]:
    items = list(config.values()) if isinstance(config, Mapping) else config if isinstance(config, list) else []
    layers = config.get("layers") if isinstance(config, Mapping) else None
    if isinstance(layers, list) and all(isinstance(layer, Mapping) and "class_name" in layer for layer in layers):
        sparse = {layer_name(layer) for layer in layers if layer.get("config", {}).get("sparse") is True}
        before: list[Any] = [None, *layers[:-1]]
        for layer, last in zip(layers, before, strict=True):
            nodes = layer.get("inbound_nodes")
            ends = {str(end[0]) for end in operators.ends(nodes)} if nodes is not None else {last and layer_name(last)}
            if ends & sparse:
                yield layer
    for item in items:
        yield from _layers_on_sparse_inputs(item)
