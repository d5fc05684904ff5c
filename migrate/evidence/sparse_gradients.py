"""Decide which variables have sparse gradients, as far as the source shows it."""

from __future__ import annotations

from migrate.algorithms import lazy_rows, wrappers
from migrate.algorithms.configuration import Configuration
from migrate.algorithms.lazy_rows import Sparse
from migrate.claims import FILE, GRAPH, NAME, RELEASE
from migrate.models import sparse_inputs
from migrate.releases.versions import YES
from migrate.state import Stored


def of_source(stored: Stored, configuration: Configuration) -> Sparse:
    if stored.sparse is not None:
        return Sparse(GRAPH, stored.sparse)
    if stored.versions.dtensor == YES:
        return Sparse(FILE, frozenset())  # its optimizers raise for sparse gradients
    if stored.traits.has_keras3_layers and not stored.versions.may_be_on_tensorflow:
        return Sparse(FILE, frozenset())  # Keras has no sparse gradients there
    if dense := wrappers.makes_dense(configuration.wrappers, stored.generation or "", stored.versions):
        return Sparse(RELEASE, frozenset())
    model = stored.model.config if stored.model is not None else None
    layers, loose = sparse_inputs.fed(model, stored.generation or "", stored.versions)
    more = frozenset(v.name for v in stored.variables for layer in layers if _is_kernel(v.name, layer))
    kind, stock = NAME if model is None else FILE, lazy_rows.only_stock(model)
    single = frozenset(v.name for v in stored.variables if v.shape[:1] in ((), (1,)))
    return Sparse(kind, None, stock, dense is None, more, loose or (bool(layers) and not more), single)


def _is_kernel(name: str, layer: str) -> bool:
    return f"/{name.removesuffix(':0')}".replace(".", "/").endswith(f"/{layer}/kernel")
