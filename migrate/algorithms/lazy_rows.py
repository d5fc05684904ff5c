"""Which variables had sparse gradients, where that makes a difference: rows without a gradient then kept their state.

A checkpoint does not say it. The convention: the weight of a Keras `Embedding` layer, whose name ends in `embeddings`,
had sparse gradients, as it has whenever it was trained through that layer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from migrate.algorithms.keras_config import LAZY_ROWS, LIMITS, Arguments
from migrate.algorithms.spec import APART, STILL, Algorithm
from migrate.bytes.messages import some
from migrate.evidence import NAME, Origin, confirming
from optim.errors import HyperparameterError

KEEP_SLOTS = "lazy_rows_keep_slots"
REPEATED, ABSENT = "repeated_rows", "absent"
"""An override: no batch has a row of a table several times."""
CONFIRMED = confirming(REPEATED, ABSENT)
SUMS = ("keras1", "tf1")
"""Generations that add up the gradients of such a row first, as `optim` does; of tf.train the graph tells."""
SUMS_FOR_NORMS = ("keras2", "keras2.3")
"""As those, but for `clipvalue` (on TensorFlow 1.15)."""
SQUARES = ("experimental", "keras3")
"""Those that square each of its gradients (update_step of 2.9; Keras 3 on TensorFlow, backend/tensorflow/sparse.py)."""
LINEAR = ("SGD", "Lion")
"""Algorithms that use no power of a gradient alone."""
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
"""Names of the weights of Keras's own layers: of these only the embeddings are looked up."""
_EMBEDDINGS = re.compile(r"(?:^|.*[/.])embeddings(?:_\d+)?")


@dataclass(frozen=True)
class Sparse:
    """What a source tells of sparse gradients.

    `kind`: of the origin. `names`: the variables that have them, None where only names tell. `stock`: whether the
    model has no layers but Keras's own, of which Embedding alone has sparse gradients.
    """

    kind: str = NAME
    names: frozenset[str] | None = None
    stock: bool = False


def only_stock(model: Any) -> bool:
    """Whether every layer of a model's config is one of Keras's own."""
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
    told: Arguments,
    config: Mapping[str, Any],
    algorithm: Algorithm,
    generation: str,
    names: Sequence[str],
    sparse: Sparse | None = None,
) -> None:
    """Add the argument `lazy_rows` where it is called for, and where that is known from.

    Args:
      config: as `keras_config.completed` returns it; its own `lazy_rows`, a list of regular expressions, wins.
      names: of the trained variables.
    """
    if LAZY_ROWS in config:
        given = config[LAZY_ROWS]
        if not isinstance(given, (list, tuple)) or not all(isinstance(pattern, str) for pattern in given):
            raise HyperparameterError(f"lazy_rows must be a list of regular expressions, got {given!r}")
        told.values[LAZY_ROWS] = list(given)
        return
    _doubt_repeated(told, config, algorithm, generation, names, sparse or Sparse())
    kind = algorithm.lazy({**config, **told.values}, generation)
    if kind is None:
        return
    sparse = sparse or Sparse()
    found = _tables(names, sparse)
    unsure = [] if sparse.names is not None or sparse.stock else [name for name in names if not _ROLE.fullmatch(name)]
    if found and (kind == APART or told.values.get("lookahead")):
        told.doubt(
            LAZY_ROWS,
            f"{', '.join(found)}: rows without a gradient stay as they are in {algorithm.name} of that release, and"
            " move here: no option of optim leaves them alone as it did",
            confirm=confirming(LAZY_ROWS, []),
        )
        return
    if found:
        if kind == STILL:
            told.values[KEEP_SLOTS] = False
        told.values[LAZY_ROWS] = [f"^{re.escape(name)}$" for name in found]
        told.warnings.append(
            f"{', '.join(found)}: rows without a gradient stay as they are in this generation (lazy_rows); for dense"
            f" gradients say {confirming(LAZY_ROWS, [])}"
        )
    patterns = told.values.get(LAZY_ROWS, [])
    told.origins[LAZY_ROWS] = Origin(LAZY_ROWS, patterns, sparse.kind, "Embedding layers")
    if unsure:
        told.doubt(
            LAZY_ROWS,
            f"{some(unsure)}: nothing says whether their gradients are sparse, as those of a table that rows are looked"
            " up in; rows without a gradient would keep their state then",
            confirm=confirming(LAZY_ROWS, patterns),
        )


def apart(generation: str | None, algorithm: Algorithm, values: Mapping[str, Any]) -> tuple[str, ...]:
    """What a generation does with each gradient of a row that a batch has several times, and `optim` with their sum.

    Args:
      values: with the limits of gradients.
    """
    if generation is None or generation in SUMS:
        return ()
    squares = ("squares",) if generation in SQUARES and algorithm.name not in LINEAR else ()
    limits = ("clipvalue",) if generation in SUMS_FOR_NORMS else LIMITS
    return (*squares, *(("clips",) if any(values.get(key) for key in limits) else ()))


def _doubt_repeated(
    told: Arguments,
    config: Mapping[str, Any],
    algorithm: Algorithm,
    generation: str,
    names: Sequence[str],
    sparse: Sparse,
) -> None:
    """Say of tables where rows that a batch has several times move otherwise than here."""
    if REPEATED in config:
        if config[REPEATED] != ABSENT:
            raise HyperparameterError(f"{REPEATED} takes {ABSENT}, got {config[REPEATED]!r}")
        return
    tables, doing = _tables(names, sparse), apart(generation, algorithm, told.values or config)
    if tables and doing:
        told.doubt(
            REPEATED,
            f"{some(tables)}: no batch is taken to have a row several times, as that release {' and '.join(doing)} each"
            " of its gradients, and optim their sum",
            confirm=CONFIRMED,
        )


def _tables(names: Sequence[str], sparse: Sparse) -> list[str]:
    return embeddings(names) if sparse.names is None else [name for name in names if name in sparse.names]


def is_dense(name: str) -> bool:
    """Whether a variable is called as those weights of Keras's own layers whose gradients are never sparse."""
    return bool(_ROLE.fullmatch(name)) and not embeddings([name])


def embeddings(names: Sequence[str]) -> list[str]:
    """Those of the variables that are taken for the weights of Embedding layers."""
    return [name for name in names if _EMBEDDINGS.fullmatch(name)]
