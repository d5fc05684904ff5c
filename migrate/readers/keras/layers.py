"""Names, flags and order of a Keras model's variables, from the tree of `vars` groups and the config if there is one.

Layers are stored under their class in snake case and a counter, not under their names: `layers/dense_1` is the second
Dense of `model.layers` under any name (`saving_lib.py::_save_container_state`). The config has the names and the order;
without it (`.weights.h5`) the order among layers of different classes is unknown (see `layer_order`).
No layer is built or imported.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from migrate.bytes.arrays import LazyArray
from migrate.readers.keras.model import MOVING, RENORM, layer_name, leaves, never_trained, sublayers
from migrate.readers.keras.tree import Node, by_class
from migrate.state import Layers, LayerVariable, StoredVariable, Twins

LISTS = ("layers", "_layer_checkpoint_dependencies")
"""Groups of a model's layers; tf.keras 2.12 to 2.14 wrote the second."""
CONV = {2: ("kernel", "bias"), 1: ("kernel",)}
CELL = {3: ("kernel", "recurrent_kernel", "bias"), 2: ("kernel", "recurrent_kernel")}
NORM: dict[int, tuple[str, ...]] = {2: ("gamma", "beta")}
SEED: dict[int, tuple[str, ...]] = {1: ("seed_generator_state",)}
SEPARABLE = {3: ("depthwise_kernel", "pointwise_kernel", "bias"), 2: ("depthwise_kernel", "pointwise_kernel")}
ROLES: dict[str, dict[int, tuple[str, ...]]] = {
    **dict.fromkeys(("dense", "einsum_dense"), CONV),
    **{f"conv{n}d{t}": CONV for n in (1, 2, 3) for t in ("", "_transpose", "transpose")},
    "embedding": {1: ("embeddings",)},
    "batch_normalization": {
        7: ("gamma", "beta", *MOVING, *RENORM),
        6: ("0", *MOVING, *RENORM),
        5: (*MOVING, *RENORM),
        4: ("gamma", "beta", *MOVING),
        3: ("0", *MOVING),
        2: MOVING,
    },
    **dict.fromkeys(("layer_normalization", "group_normalization"), NORM),
    "normalization": {3: ("mean", "variance", "count")},
    **{f"separable_conv{n}d": SEPARABLE for n in (1, 2)},
    **dict.fromkeys(("cell", "lstm_cell", "gru_cell", "simple_rnn_cell"), CELL),
    "p_re_lu": {1: ("alpha",)},
    "spectral_normalization": {2: ("kernel", "vector_u")},
    **dict.fromkeys(("seed_generator", "random_seed_generator"), SEED),
}
"""Names of a stock layer's variables, by class and how many there are."""
RECURRENT = ("lstm", "gru", "simple_rnn", *(f"conv_lstm{n}d" for n in (1, 2, 3)))
"""Layers that have the variables of their cells."""
PARTS = (
    ("forward_layer", "backward_layer"),
    ("query_dense", "key_dense", "gate_dense", "value_dense", "output_dense"),
    ("cell",),
    ("layer",),
)
"""Attributes of stock layers that contain layers, in the order of training."""
FLOAT8 = 6
"""Additional variables of a layer that is trained in float8."""
UNTRAINED = ("normalization", "spectral_normalization")
"""Layers without trained variables; the second contains a layer with its kernel, which is saved twice."""
ATTENTION = {
    **{f"{part}_dense": part for part in ("query", "key", "gate", "value")},
    "output_dense": "attention_output",
}
"""Names of the einsum_dense layers in MultiHeadAttention and GroupQueryAttention."""


def misplaced(layer: Mapping[str, Any] | None, weights: Sequence[str]) -> tuple[str, str] | None:
    """Two weights of one stock layer that no release lists in this order; None if the order is right."""
    kinds = {leaf.name: snake_case(leaf.kind) for leaf in leaves(layer)} if layer is not None else {}
    seen: dict[str, str] = {}
    for weight in weights:
        scope, _, tail = weight.removesuffix(":0").rpartition("/")
        roles = _orders_of_stock_layer(kinds, scope)
        role = re.sub(r"_\d+$", "", tail)
        before = seen.get(scope, "")
        if {role, before} <= set(roles) and roles.index(role) < roles.index(before):
            return f"{scope}/{before}", weight
        seen[scope] = role
    return None


def _orders_of_stock_layer(kinds: Mapping[str, str], scope: str) -> tuple[str, ...]:
    kind = next((kinds[part] for part in scope.split("/") if part in kinds), "")
    orders = ROLES.get("cell" if kind in (*RECURRENT, "bidirectional") else kind, {})
    return orders[max(orders)] if orders else ()


def snake_case(class_name: str) -> str:
    """`Conv2DTranspose` -> `conv2d_transpose`, like `to_snake_case` of Keras 3 `naming.py` and tf_keras
    `generic_utils.py`."""
    name = re.sub(r"\W+", "", class_name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    name = re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
    return "private" + name if name.startswith("_") else name


@dataclass(frozen=True)
class _At:
    """A place in a model: the prefix of its variables' names, and their known flags."""

    scope: tuple[str, ...] = ()
    full: tuple[str, ...] = ()
    """Like `scope`, with the names of all models around it."""
    frozen: bool = False
    is_known: bool = False
    """Whether the config contains the trainable flags."""

    def inside(self, name: str, config: Any, is_known: bool) -> _At:
        settings = config.get("config") if isinstance(config, Mapping) else None
        frozen = self.frozen or (isinstance(settings, Mapping) and settings.get("trainable") is False)
        return _At((*self.scope, name), (*self.full, name), frozen, is_known)


@dataclass
class _Index:
    keras3: bool | None
    rows: dict[str, tuple[str, str, LazyArray]] = field(default_factory=dict)
    """By path in the file: (short name, full name, array)."""
    alike: list[tuple[str, ...]] = field(default_factory=list)
    """Paths of the variables of custom layers of one class and shape in one list or dict. The file does not show
    whether it was a dict, which tf_keras trains by its keys, or a list that grew at its front."""


def arrange(
    root: Node, config: Mapping[str, Any] | None, keras3: bool | None
) -> tuple[tuple[StoredVariable, ...], Layers, Twins | None]:
    """Return the model's variables, in their order if it is known, what is known of the order, and the assumptions.

    Args:
      root: the tree, without the optimizer and metrics.
      config: `config.json`, or None.
      keras3: whether Keras 3 wrote it; None if unknown. Its `variable.path` begins with a Sequential's own name, and
        its layers and models train their own variables first. In tf.keras layers do so too, but models train theirs
        last (`engine/base_layer.py`, `engine/training.py` 2.12 - 2.15).
    """
    index = _Index(keras3)
    name = layer_name(config) if config is not None else root.name or ""
    at = replace(_At().inside(name, config, config is not None), full=())
    if config is not None and keras3 and sublayers(config.get("config")) is not None:
        at = replace(at, frozen=False)
    at = replace(at, scope=(name,) if name and keras3 and _is_sequential(config, root) else ())
    layers = _node(root, config, at, index)
    names = _unique(index.rows)
    arrays = {names[path]: array for path, (_, _, array) in index.rows.items()}
    layers = _renamed(layers, names)
    variables = tuple(
        StoredVariable(v.name, arrays[v.name], v.shape, arrays[v.name].dtype, v.trainable) for v in layers.variables()
    )
    alike = tuple(tuple(names[path] for path in group) for group in index.alike)
    twins = Twins(tuple(name for group in alike for name in group), alike, False) if alike else None
    return variables, layers, twins


def _unique(rows: Mapping[str, tuple[str, str, LazyArray]]) -> dict[str, str]:
    """Name by path: the short one; the full one if short ones are shared; the path if full ones are shared too."""
    short = Counter(brief for brief, _, _ in rows.values())
    names = {path: brief if short[brief] == 1 else long for path, (brief, long, _) in rows.items()}
    chosen = Counter(names.values())
    return {path: name if chosen[name] == 1 else path for path, name in names.items()}


def _renamed(layers: Layers, names: Mapping[str, str]) -> Layers:
    variables = tuple(LayerVariable(names[v.name], v.shape, v.trainable) for v in layers.own_variables)
    chains = tuple(tuple(_renamed(x, names) for x in chain) for chain in layers.chains)
    return Layers(variables, chains, layers.own_last)


def _node(node: Node, config: Mapping[str, Any] | None, at: _At, index: _Index, kind: str | None = None) -> Layers:
    """Read one layer or model. `kind`: its class in snake case if neither config nor path shows it."""
    settings = config.get("config") if config is not None else None
    listed = sublayers(settings) if settings is not None else None
    chains: list[tuple[Layers, ...]] = []
    for name in LISTS:
        if name in node.children:
            chains += _model(node.children[name], listed, at, index)
    kind = kind or (snake_case(str(config.get("class_name", ""))) if config is not None else _class_of_path(node))
    keys = [key for key in node.children if key not in LISTS]
    chains += _attributes(node, keys, kind, settings, at, index)
    own_last = False if index.keras3 else True if index.keras3 is False and not node.path else None
    return Layers(_own(node, config, at, index, kind), tuple(chains), own_last)


def _own(node: Node, config: Mapping[str, Any] | None, at: _At, index: _Index, kind: str) -> tuple[LayerVariable, ...]:
    roles = _roles(kind, len(node.arrays), config) or tuple(node.arrays)
    variables = []
    scales = list(node.arrays)[-FLOAT8:] if in_float8([array.shape for array in node.arrays.values()]) else []
    for key, role in zip(node.arrays, roles, strict=True):
        array, path = node.arrays[key], f"{node.path}/vars/{key}".lstrip("/")
        numeric = array.dtype.startswith(("float", "bfloat", "complex"))
        flag: bool | None = True if at.is_known else None
        if at.frozen or not numeric or never_trained(role) or kind in UNTRAINED or key in scales:
            flag = False
        index.rows[path] = "/".join((*at.scope, role)), "/".join((*at.full, role)), array
        variables.append(LayerVariable(path, array.shape, flag))
    return tuple(variables)


def in_float8(shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether a layer's last variables are three scales with their histories, as for training in float8.

    No optimizer has slots for them: Keras overwrites them with their gradients (`_float8_build` in `dense.py` and
    `einsum_dense.py` of Keras 3.4 to 3.15).
    """
    return len(shapes) > FLOAT8 and [len(shape) for shape in shapes[-FLOAT8:]] == [0, 1] * (FLOAT8 // 2)


def _class_of_path(node: Node) -> str:
    last = node.path.rpartition("/")[2]
    head, _, tail = last.rpartition("_")
    return head if tail.isdecimal() and head else last


def _roles(kind: str, count: int, config: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    settings = config.get("config") if config is not None else None
    if kind == "batch_normalization" and isinstance(settings, Mapping):
        roles = [name for name, key in (("gamma", "scale"), ("beta", "center")) if settings.get(key, True)]
        roles += [*MOVING, *(RENORM if settings.get("renorm") else ())]
        return tuple(roles) if count == len(roles) else None
    return ROLES.get(kind, {}).get(count)


def _model(node: Node, listed: Sequence[Mapping[str, Any]] | None, at: _At, index: _Index) -> list[tuple[Layers, ...]]:
    """The layers of a model: one chain if the config has their order, else one for each class."""
    placed = _placed(node, listed) if listed is not None else None
    if placed is not None:
        return [tuple(_layer(member, layer, at, index) for layer, member in placed)]
    return [
        tuple(_layer(member, None, at, index) for _, member in members) for members in by_class(node.children).values()
    ]


def _placed(node: Node, listed: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], Node]] | None:
    """(config, group) of each layer that has a group, in the config's order; None if they do not match."""
    members = list(node.children.values())
    names = [layer_name(layer) for layer in listed]
    by_name = {member.name: member for member in members if member.name is not None}
    if len(by_name) == len(members) and by_name.keys() <= set(names) and len(set(names)) == len(names):
        return [(layer, by_name[name]) for layer, name in zip(listed, names, strict=True) if name in by_name]
    kinds = [snake_case(str(layer.get("class_name", ""))) for layer in listed]
    groups: dict[int, Node] = {}
    for kind in dict.fromkeys(kinds):
        groups_of_kind = _of_class(node.children, kind, kinds)
        places = [i for i, k in enumerate(kinds) if k == kind]
        if len(groups_of_kind) == len(places):
            groups |= dict(zip(places, groups_of_kind, strict=True))
    placed = [id(group) for group in groups.values()]
    if any(_has_variables(member) and placed.count(id(member)) != 1 for member in members):
        return None
    return [(listed[i], groups[i]) for i in sorted(groups)]


def _of_class(children: Mapping[str, Node], kind: str, kinds: Sequence[str]) -> list[Node]:
    numbered = re.compile(re.escape(kind) + r"_([1-9]\d*)")
    numbered_keys = [(int(m.group(1)), key) for key in children if key not in kinds and (m := numbered.fullmatch(key))]
    return [children[key] for _, key in sorted([(0, kind)] * (kind in children) + numbered_keys)]


def _has_variables(node: Node) -> bool:
    return any(group.arrays for group in node.walk())


def _layer(node: Node, config: Mapping[str, Any] | None, at: _At, index: _Index) -> Layers:
    """Read a layer of a model under its own name. Its short name contains no model except Keras 3's Sequential."""
    name = layer_name(config) if config is not None else ""
    name = name or node.name or node.path.rpartition("/")[2]
    below = at.inside(name, config, config is not None)
    if config is not None and index.keras3 and sublayers(config.get("config")) is not None:
        below = replace(below, frozen=at.frozen)  # freezing it froze its layers; some may be trainable again
    if any(key in node.children for key in LISTS):
        below = replace(below, scope=(name,) if index.keras3 and _is_sequential(config, node) else ())
    return _node(node, config, below, index)


def _is_sequential(config: Mapping[str, Any] | None, node: Node) -> bool:
    if config is not None:
        return str(config.get("class_name")) == "Sequential"
    # A file without config does not show the model's class; only Keras 3's Sequential lists no input layer.
    listed = node.children.get("layers", node).children
    return _class_of_path(node) == "sequential" or (not node.path and "input_layer" not in listed)


def _attributes(
    node: Node, keys: Sequence[str], kind: str, settings: Any, at: _At, index: _Index
) -> list[tuple[Layers, ...]]:
    """Read the attributes: one chain for a stock layer, else one for each attribute."""
    plain = {key: key.lstrip("_") for key in keys}
    stock_parts = next((parts for parts in PARTS if set(plain.values()) & set(parts)), ())
    chain: list[Layers] = []
    loose: list[tuple[Layers, ...]] = []
    for key in sorted(keys, key=lambda k: stock_parts.index(plain[k]) if plain[k] in stock_parts else len(stock_parts)):
        child, part = node.children[key], _inner_config(key, settings)
        own_name, own_kind = _stock_part(plain[key], kind)
        name = child.name or (layer_name(part) if part is not None else "") or own_name
        is_known = at.is_known and (plain[key] in stock_parts or part is not None)
        below = at.inside(name, part, is_known)
        if plain[key] in stock_parts:
            chain.append(_node(child, part, below, index, own_kind if part is None else None))
        elif child.arrays or part is not None or child.name is not None:
            loose.append((_node(child, part, below, index),))
        else:
            stacked = key == "cells" and node.path.endswith("/cell")  # of StackedRNNCells, a list that never changes
            inner = _model(child, _cells(settings) if stacked else None, at, index)
            if not stacked:
                index.alike += [group for chain_ in inner for group in _same_shapes(chain_)]
            loose += inner
    return [tuple(chain), *loose] if chain else loose


def _cells(settings: Any) -> list[Mapping[str, Any]] | None:
    cells = settings.get("cells") if isinstance(settings, Mapping) else None
    are_configs = isinstance(cells, list) and all(isinstance(x, Mapping) and "class_name" in x for x in cells)
    return cells if are_configs else None


def _same_shapes(layers: Sequence[Layers]) -> list[tuple[str, ...]]:
    kinds: dict[tuple[tuple[int, ...], ...], list[list[str]]] = {}
    for layer in layers:
        trained = [v for v in layer.variables() if v.trainable is not False]
        kinds.setdefault(tuple(v.shape for v in trained), []).append([v.name for v in trained])
    return [names for same in kinds.values() if len(same) > 1 for names in zip(*same, strict=True)]


def _stock_part(key: str, kind: str) -> tuple[str, str | None]:
    """Name and class of a stock layer's attribute: the cell of an LSTM is an `lstm_cell`."""
    if key in ATTENTION:
        return ATTENTION[key], "einsum_dense"
    if key == "cell":
        cell = f"{kind}_cell"
        return (cell, cell) if cell in ROLES else (key, key)
    return key, None


def _inner_config(key: str, settings: Any) -> Mapping[str, Any] | None:
    if not isinstance(settings, Mapping):
        return None
    part, wrapped = settings.get(key), settings.get("layer")
    if isinstance(part, Mapping) and "class_name" in part:
        return part
    inner = wrapped.get("config") if isinstance(wrapped, Mapping) else None
    if key in ("forward_layer", "backward_layer") and isinstance(wrapped, Mapping) and isinstance(inner, Mapping):
        # Keras 3 stores the wrapped layer under the name that it already has in the wrapper.
        name = f"{key.removesuffix('_layer')}_{layer_name(wrapped).removeprefix('forward_')}"
        return {"class_name": wrapped.get("class_name", ""), "config": {**inner, "name": name}}
    return None
