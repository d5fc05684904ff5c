"""Dense layers that are given sparse tensors: from TF 2.5 on they look up rows of their kernel, as Embedding does.

`Dense.call` of Keras 2.5 to 2.15 and tf_keras (`layers/core/dense.py`) takes `tf.nn.embedding_lookup_sparse` there, so
that the kernel's gradient is sparse; that of 2.4 multiplies matrices, with a dense one (run in 2.4, 2.7 and 2.15).
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
    """Names of the Dense layers in a model's config whose kernels have sparse gradients, and whether other ones may
    have them, too: behind layers that hand sparse tensors on, or in a release that nothing tells."""
    takers = list(_takers(config))
    dense = frozenset(layer_name(layer) for layer in takers if layer["class_name"] == "Dense")
    releases = candidates(generation, versions)
    if not takers or not LOOKED_UP.may_be(SPARSE, releases):
        return frozenset(), False
    elsewhere = any(layer["class_name"] not in ("Dense", *MODELS) for layer in takers)
    return dense, elsewhere or LOOKED_UP.of(releases) is None


def _takers(config: Any) -> Iterator[Mapping[str, Any]]:
    """Layers that take what a layer with `sparse=True` gives, however deep."""
    items = list(config.values()) if isinstance(config, Mapping) else config if isinstance(config, list) else []
    layers = config.get("layers") if isinstance(config, Mapping) else None
    if isinstance(layers, list) and all(isinstance(each, Mapping) and "class_name" in each for each in layers):
        sparse = {layer_name(each) for each in layers if each.get("config", {}).get("sparse") is True}
        before: list[Any] = [None, *layers[:-1]]
        for layer, last in zip(layers, before, strict=True):
            nodes = layer.get("inbound_nodes")
            given = {str(end[0]) for end in operators.ends(nodes)} if nodes is not None else {last and layer_name(last)}
            if given & sparse:
                yield layer
    for item in items:
        yield from _takers(item)
