"""Decide which variables had sparse gradients, if rows without a gradient then kept their state.

A checkpoint does not store it. The convention: the weight of a Keras `Embedding` layer, whose name ends in
`embeddings`, had sparse gradients. This is true whenever it was trained through that layer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from migrate.algorithms import repeated_rows
from migrate.algorithms.arguments import Arguments
from migrate.algorithms.keras_config import EXCLUDED, LAZY, LAZY_ROWS, PER_STEP
from migrate.algorithms.repeated_rows import embeddings
from migrate.algorithms.spec import APART, NEARLY, STILL, Algorithm
from migrate.bytes.messages import some
from migrate.claims import NAME, Origin, confirming
from migrate.generations import traits
from migrate.releases.versions import UNKNOWN, Versions
from optim.errors import HyperparameterError

KEEP_SLOTS = "lazy_rows_keep_slots"
_DENSE = f"{confirming(LAZY_ROWS, [])}, if their gradients are dense"
"""The option that resolves it if `optim` has no option for what the release did to other rows."""
_STOCK = """
Activation ActivityRegularization Add AdditiveAttention AlphaDropout Attention Average AveragePooling1D
AveragePooling2D AveragePooling3D BatchNormalization BatchNormalizationV1 BatchNormalizationV2 Bidirectional
CategoryEncoding CenterCrop Concatenate Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose
ConvLSTM1D ConvLSTM2D ConvLSTM3D Convolution1D Convolution2D Convolution3D Cropping1D Cropping2D Cropping3D CuDNNGRU
CuDNNLSTM Dense DepthwiseConv1D DepthwiseConv2D Discretization Dot Dropout ELU EinsumDense Embedding Flatten
Functional GRU GRUCell GaussianDropout GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D
GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization Hashing
InputLayer IntegerLookup LSTM LSTMCell LayerNormalization LeakyReLU LocallyConnected1D LocallyConnected2D Masking
MaxPooling1D MaxPooling2D MaxPooling3D Maximum Merge Minimum Model MultiHeadAttention Multiply Normalization PReLU
Permute RNN RandomBrightness RandomContrast RandomCrop RandomFlip RandomHeight RandomRotation RandomTranslation
RandomWidth RandomZoom ReLU RepeatVector Rescaling Reshape Resizing SeparableConv1D SeparableConv2D
SeparableConvolution1D SeparableConvolution2D Sequential SimpleRNN SimpleRNNCell Softmax SpatialDropout1D
SpatialDropout2D SpatialDropout3D StackedRNNCells StringLookup Subtract TextVectorization ThresholdedReLU
TimeDistributed UnitNormalization UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
"""
STOCK = frozenset(_STOCK.split())
"""Layers and models of Keras itself, of every generation."""
_ROLE = re.compile(
    r"(?:.*[/.])?(?:embeddings|(?:recurrent_|depthwise_|pointwise_|attention_)?kernel|bias|gamma|beta|alpha)(?:_\d+)?"
)
"""Names of the weights of Keras's own layers. Of these, only embeddings are looked up.

A Dense layer that gets sparse tensors is the exception (`migrate.models.sparse_inputs`).
"""
_KERNEL = re.compile(r"(?:.*[/.])?kernel(?:_\d+)?")


@dataclass(frozen=True)
class Sparse:
    """What a source shows of sparse gradients.

    Attributes:
      kind: of the origin.
      names: the variables that have sparse gradients, None if only names show it.
      stock: whether the model has only Keras's own layers; of these, only Embedding has sparse gradients.
      scaled: whether the loss was scaled, in a release that the source does not show.
      more: variables that have sparse gradients, in addition to those that names show.
      loose: whether other kernels of Dense layers may have them, too.
      single: variables of at most one row; no lookup leaves out a row of these.
    """

    kind: str = NAME
    names: frozenset[str] | None = None
    stock: bool = False
    scaled: bool = False
    more: frozenset[str] = frozenset()
    loose: bool = False
    single: frozenset[str] = frozenset()


def only_stock(model: Any) -> bool:
    """Return whether every layer of a model's config is one of Keras's own."""
    if not isinstance(model, Mapping):
        return False
    classes: list[str] = []
    rest: list[Any] = [model]
    while rest:
        item = rest.pop()
        if isinstance(item, Mapping):
            rest.extend(item.values())
            if "class_name" in item and "config" in item and ("name" in item or "inbound_nodes" in item):
                classes.append(str(item["class_name"]))
            elif isinstance(item.get("layers"), list):
                classes += [str(layer.get("class_name")) for layer in item["layers"] if isinstance(layer, Mapping)]
        elif isinstance(item, (list, tuple)):
            rest.extend(item)
    return bool(classes) and all(name in STOCK for name in classes)


def put_in(
    arguments: Arguments,
    config: Mapping[str, Any],
    algorithm: Algorithm,
    generation: str,
    names: Sequence[str],
    sparse: Sparse | None = None,
    versions: Versions = UNKNOWN,
) -> None:
    """Add the arguments `lazy_rows` and `repeated_rows` if they are needed, each with its origin.

    Args:
      config: as `keras_config.completed` returns it. Its own `lazy_rows`, a list of regular expressions, wins, and so
        does its `repeated_rows`.
      names: of the trained variables.
      versions: of the software that wrote the source.
    """
    sparse = sparse or Sparse()
    tables = repeated_rows.looked_up(names, sparse.names)
    repeated_rows.put_in(arguments, config, algorithm, generation, tables, versions)
    tables += [name for name in names if name in sparse.more and name not in tables]
    if LAZY_ROWS in config:
        arguments.values[LAZY_ROWS] = _patterns(config[LAZY_ROWS])
        return
    kind = algorithm.lazy({**config, **arguments.values}, generation)
    if kind is None:
        if config.get(PER_STEP):  # only rows with a gradient decay; in SGD without momentum, no rows do
            _doubt_decay(arguments, tables, _unsure(names, tables, sparse), algorithm)
        return
    if tables and (kind == APART or arguments.values.get("lookahead")):
        arguments.doubt(
            LAZY_ROWS,
            f"{', '.join(tables)}: {algorithm.name} of that release leaves rows without a gradient unchanged,"
            " and optim has no option that does the same: here they move",
            confirm=_DENSE,
        )
        return
    if tables:
        if kind in (STILL, NEARLY):
            arguments.values[KEEP_SLOTS] = False
        arguments.values[LAZY_ROWS] = [f"^{re.escape(name)}$" for name in tables]
        arguments.warnings.append(
            f"{', '.join(tables)}: this generation leaves rows without a gradient unchanged (lazy_rows). If"
            f" your gradients are dense, use {confirming(LAZY_ROWS, [])}"
        )
    _doubt(arguments, names, tables, sparse)
    if tables and config.get(LAZY) and traits(generation).counts_in_program and sparse.names is None:
        arguments.doubt(
            LAZY_ROWS,
            f"{', '.join(tables)}: LazyAdamOptimizer leaves rows without a gradient unchanged; up to TF 1.11 it"
            " moved those of resource variables, which all variables of eager programs are. No graph shows"
            " which applies",
            confirm=f"{confirming(LAZY_ROWS, arguments.values[LAZY_ROWS])} or {confirming(LAZY_ROWS, [])}",
        )
    if tables and kind == NEARLY:
        arguments.doubt(
            LAZY_ROWS,
            f"{', '.join(tables)}: {algorithm.name} of that release leaves rows without a gradient unchanged,"
            " but updates their slots in another way than here",
            confirm=_DENSE,
        )


def _doubt_decay(arguments: Arguments, tables: Sequence[str], unsure: Sequence[str], algorithm: Algorithm) -> None:
    """Warn that all rows of tables decay here, unless the user leaves these tables out."""
    left_out = arguments.values.get(EXCLUDED) or ()
    decaying = [n for n in (*tables, *unsure) if not any(re.search(pattern, n) for pattern in left_out)]
    if decaying:
        arguments.doubt(
            LAZY_ROWS,
            f"{some(decaying)}: rows without a sparse gradient do not decay in {algorithm.name} of that"
            " release, and optim has no option that does the same: here they decay",
            confirm=_DENSE,
        )


def _patterns(setting: Any) -> list[str]:
    if not isinstance(setting, (list, tuple)) or not all(isinstance(pattern, str) for pattern in setting):
        raise HyperparameterError(f"lazy_rows must be a list of regular expressions, got {setting!r}")
    return list(setting)


def _doubt(arguments: Arguments, names: Sequence[str], tables: Sequence[str], sparse: Sparse) -> None:
    """Add how `migrate` knows the rows that keep their state, and warn about what is uncertain."""
    patterns = arguments.values.get(LAZY_ROWS, [])
    arguments.origins[LAZY_ROWS] = Origin(LAZY_ROWS, patterns, sparse.kind, "Embedding layers")
    unsure = _unsure(names, tables, sparse)
    if tables and sparse.scaled:
        arguments.doubt(
            LAZY_ROWS,
            f"{', '.join(tables)}: dtopt assumes that rows without a gradient stay unchanged. Before TF 2.3"
            " they moved, because LossScaleOptimizer made gradients dense; the source does not show the"
            " release",
            confirm=f"{confirming(LAZY_ROWS, patterns)} or {confirming(LAZY_ROWS, [])}",
        )
    elif unsure:
        arguments.doubt(
            LAZY_ROWS,
            f"{some(unsure)}: the source does not show whether their gradients are sparse, as those of an"
            " embedding table. If they are, rows without a gradient keep their state",
            confirm=confirming(LAZY_ROWS, patterns),
        )


def _unsure(names: Sequence[str], tables: Sequence[str], sparse: Sparse) -> list[str]:
    """Return further variables whose gradients may be sparse: the source does not show it."""
    is_known = sparse.names is not None or sparse.stock
    unsure = [] if is_known else [name for name in names if not _ROLE.fullmatch(name) and name not in sparse.single]
    return unsure + [name for name in names if sparse.loose and _KERNEL.fullmatch(name) and name not in tables]


def is_dense(name: str) -> bool:
    """Return whether a variable is named like a weight of Keras's own layers that never has sparse gradients."""
    return bool(_ROLE.fullmatch(name)) and not embeddings([name])
