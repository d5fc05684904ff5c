"""Keras's own layers as data: their weights in Keras 3's order and places, and their changed arguments.

A weight's place is relative to its layer's group in Keras 3's `model.weights.h5`. Roles are the suffixes of Keras 2's
weight names, prefixed with the part's name for layers with parts. Sources: `keras/layers` 2.2.4 and 2.15,
`keras/src/layers` 3.0 to 3.15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from migrate.readers.keras.layers import snake_case
from migrate.readers.keras.model import MOVING, RENORM

Config = Mapping[str, Any]
ADVICE = "migrate to slots"
"""The advice for other layers, in addition to that of `advice.instead`."""


@dataclass(frozen=True)
class Weight:
    """`frozen`: whether the inner layer that it belongs to is frozen."""

    role: str
    place: str
    trainable: bool = True
    frozen: bool = False


@dataclass(frozen=True)
class Kind:
    """One class of layer.

    Attributes:
      weights: config -> its weights, in Keras 3's order.
      renamed: argument in Keras 2 -> in Keras 3.
      dropped: argument that Keras 3 does not have -> the values with which it does not change the result.
      inner: arguments that contain a layer or a list of layers.
    """

    weights: Callable[[Config], tuple[Weight, ...]] = lambda config: ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    inner: tuple[str, ...] = ()


def _weights_with_bias(*roles: str) -> Callable[[Config], tuple[Weight, ...]]:

    def weights(config: Config) -> tuple[Weight, ...]:
        used = (*roles, "bias") if config.get("use_bias", True) else roles
        return tuple(Weight(role, f"vars/{i}") for i, role in enumerate(used))

    return weights


def _fixed(*roles: str) -> Callable[[Config], tuple[Weight, ...]]:
    return lambda config: tuple(Weight(role, f"vars/{i}") for i, role in enumerate(roles))


def _normalized(*moving: str) -> Callable[[Config], tuple[Weight, ...]]:
    """Factory for gamma and beta if they are used, then moving statistics."""

    def weights(config: Config) -> tuple[Weight, ...]:
        affine = [name for name, key in (("gamma", "scale"), ("beta", "center")) if config.get(key, True)]
        return tuple(Weight(role, f"vars/{i}", role in affine) for i, role in enumerate((*affine, *moving)))

    return weights


def _batch_normalized(config: Config) -> tuple[Weight, ...]:
    return _normalized(*MOVING, *(RENORM if config.get("renorm") else ()))(config)


def _recurrent(config: Config) -> tuple[Weight, ...]:
    roles = ("kernel", "recurrent_kernel", *(("bias",) if config.get("use_bias", True) else ()))
    return tuple(Weight(role, f"cell/vars/{i}") for i, role in enumerate(roles))


def _normalization(config: Config) -> tuple[Weight, ...]:
    """The statistics of `adapt`; empty if mean and variance are arguments."""
    roles = ("mean", "variance", "count") if config.get("mean") is None else ()
    return tuple(Weight(role, f"vars/{i}", False) for i, role in enumerate(roles))


def _attention_scale(config: Config) -> tuple[Weight, ...]:
    used = (("scale", config.get("use_scale")), ("concat_score_weight", config.get("score_mode") == "concat"))
    roles = [role for role, on in used if on]
    return tuple(Weight(role, f"vars/{i}") for i, role in enumerate(roles))


def _within(config: Config, argument: str, place: str, role: str) -> tuple[Weight, ...]:
    return tuple(_of_inner(config[argument], place, role))


def _of_inner(layer: Mapping[str, Any], place: str, role: str) -> Iterator[Weight]:
    frozen = layer["config"].get("trainable") is False
    for w in KINDS[layer["class_name"]].weights(layer["config"]):
        yield Weight(role + w.role, f"{place}/{w.place}", w.trainable, w.frozen or frozen)


def _bidirectional(config: Config) -> tuple[Weight, ...]:
    back = "backward_layer" if config.get("backward_layer") else "layer"
    return (
        *_within(config, "layer", "forward_layer", "forward/"),
        *_within(config, back, "backward_layer", "backward/"),
    )


def _time_distributed(config: Config) -> tuple[Weight, ...]:
    return _within(config, "layer", "layer", "")


def _of_cell(config: Config) -> tuple[Weight, ...]:
    return _within(config, "cell", "cell", "")


def _weights_of_cells(config: Config) -> tuple[Weight, ...]:
    weights: list[Weight] = []
    used: dict[str, int] = {}
    for i, cell in enumerate(config["cells"]):
        name = snake_case(cell["class_name"])
        count = used[name] = used.get(name, -1) + 1
        place = f"cells/{name}_{count}" if count else f"cells/{name}"
        weights += _of_inner(cell, place, f"{i}/")
    return tuple(weights)


def _attention(config: Config) -> tuple[Weight, ...]:
    roles = ("kernel", "bias") if config.get("use_bias", True) else ("kernel",)
    parts = (("query", "query_dense"), ("key", "key_dense"), ("value", "value_dense"))
    return tuple(
        Weight(f"{part}/{role}", f"{place}/vars/{i}")
        for part, place in (*parts, ("attention_output", "output_dense"))
        for i, role in enumerate(roles)
    )


def _einsum(config: Config) -> tuple[Weight, ...]:
    roles = ("kernel", "bias") if config.get("bias_axes") else ("kernel",)
    return tuple(Weight(role, f"vars/{i}") for i, role in enumerate(roles))


CONV = Kind(_weights_with_bias("kernel"))
CONV_TRANSPOSE = Kind(_weights_with_bias("kernel"), dropped={"groups": (1,)})
UNUSED = {"groups": (1,), "kernel_initializer": (...,), "kernel_regularizer": (None,), "kernel_constraint": (None,)}
DEPTHWISE = Kind(_weights_with_bias("depthwise_kernel"), dropped=UNUSED)
SEPARABLE = Kind(_weights_with_bias("depthwise_kernel", "pointwise_kernel"), dropped=UNUSED)
AROUND_CELL: dict[str, tuple[Any, ...]] = {"time_major": (False,), "input_length": (None,), "num_constants": (None, 0)}
RECURRENT = Kind(_recurrent, dropped={"implementation": (0, 1, 2), **AROUND_CELL})
CONV_LSTM = Kind(_recurrent, dropped={**RECURRENT.dropped, "zero_output_for_mask": (...,)})
CELL = Kind(_weights_with_bias("kernel", "recurrent_kernel"), dropped={"implementation": (0, 1, 2)})
RANDOM = (
    *("RandomFlip", "RandomTranslation", "RandomRotation", "RandomZoom", "RandomContrast", "RandomBrightness"),
    "RandomCrop",
)
"""Layers that augment images in training."""
OPERATORS = ("TFOpLambda", "SlicingOpLambda")
"""tf.keras's layers for functions of TensorFlow, see `operators`."""
ATTENDED = ("value", "key")
"""The arguments of a MultiHeadAttention after the query: by place in Keras 3, by name in tf.keras."""
MERGING = ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate")
"""Layers that merge tensors of one shape (except along Concatenate's axis)."""
SPATIAL_DROPOUT = Kind(dropped={"trainable": (...,), "noise_shape": (None,)})
NONE = Kind()
KINDS: dict[str, Kind] = {
    "InputLayer": Kind(dropped={"ragged": (False,)}, renamed={"batch_input_shape": "batch_shape"}),
    "Dense": Kind(_weights_with_bias("kernel")),
    "EinsumDense": Kind(_einsum),
    **{f"Conv{n}D": CONV for n in (1, 2, 3)},
    **{f"Conv{n}DTranspose": CONV_TRANSPOSE for n in (1, 2, 3)},
    **{f"DepthwiseConv{n}D": DEPTHWISE for n in (1, 2)},
    **{f"SeparableConv{n}D": SEPARABLE for n in (1, 2)},
    "Embedding": Kind(_fixed("embeddings"), dropped={"input_length": (...,), "sparse": (False,)}),
    "BatchNormalization": Kind(
        _batch_normalized,
        dropped={
            "renorm": (False,),
            "virtual_batch_size": (None,),
            "fused": (...,),
            "adjustment": (None,),
            "renorm_clipping": (None,),
            "renorm_momentum": (...,),
        },
    ),
    "LayerNormalization": Kind(_normalized()),
    "GroupNormalization": Kind(_normalized()),
    "UnitNormalization": NONE,
    "Normalization": Kind(_normalization),
    "Attention": Kind(_attention_scale, dropped={"causal": (False,)}),
    "AdditiveAttention": Kind(_attention_scale, dropped={"causal": (False,)}),
    "PReLU": Kind(_fixed("alpha")),
    "LeakyReLU": Kind(renamed={"alpha": "negative_slope"}),
    **dict.fromkeys(("SimpleRNN", "LSTM"), RECURRENT),
    "GRU": RECURRENT,
    **{f"ConvLSTM{n}D": CONV_LSTM for n in (1, 2, 3)},
    **dict.fromkeys(("SimpleRNNCell", "GRUCell", "LSTMCell"), CELL),
    "StackedRNNCells": Kind(_weights_of_cells, dropped={"reverse_state_order": (False,)}, inner=("cells",)),
    "RNN": Kind(_of_cell, dropped=AROUND_CELL, inner=("cell",)),
    "Bidirectional": Kind(_bidirectional, inner=("layer", "backward_layer")),
    "TimeDistributed": Kind(_time_distributed, inner=("layer",)),
    "MultiHeadAttention": Kind(
        _attention,
        dropped={
            **dict.fromkeys(("query_shape", "key_shape", "value_shape"), (...,)),
            "softmax_robust_masking": (False,),
        },
    ),
    **{f"SpatialDropout{n}D": SPATIAL_DROPOUT for n in (1, 2, 3)},
    **dict.fromkeys(
        (
            *("Dropout", "GaussianNoise", "GaussianDropout", "AlphaDropout"),
            *("Activation", "Flatten", "Reshape", "Permute", "RepeatVector", "Masking", "ActivityRegularization"),
            *("ELU", "ReLU", "Softmax"),
            *("Dot", "Identity", "Rescaling", "Resizing", "CenterCrop", "CategoryEncoding"),
            *MERGING,
            *RANDOM,
            *OPERATORS,
            *(f"{kind}Pooling{n}D" for kind in ("Max", "Average", "GlobalMax", "GlobalAverage") for n in (1, 2, 3)),
            *(f"{kind}{n}D" for kind in ("ZeroPadding", "Cropping", "UpSampling") for n in (1, 2, 3)),
        ),
        NONE,
    ),
}
ALWAYS_SAVED = {
    **dict.fromkeys(
        ("Softmax", "Concatenate", "UnitNormalization", "BatchNormalization", "LayerNormalization"), "axis"
    ),
    **dict.fromkeys(
        ("Dropout", "GaussianDropout", "AlphaDropout", *(f"SpatialDropout{n}D" for n in (1, 2, 3))), "rate"
    ),
    **dict.fromkeys(("Attention", "AdditiveAttention"), "use_scale"),
    **dict.fromkeys(("LeakyReLU", "ELU"), "alpha"),
    **dict.fromkeys(("Resizing", "CenterCrop"), "height"),
    **dict.fromkeys(("Dense", "SimpleRNN", "LSTM", "GRU"), "units"),
    **{f"{kind}Pooling{n}D": "pool_size" for kind in ("Max", "Average") for n in (1, 2, 3)},
    **{f"ZeroPadding{n}D": "padding" for n in (1, 2, 3)},
    **{f"Cropping{n}D": "cropping" for n in (1, 2, 3)},
    **{f"UpSampling{n}D": "size" for n in (1, 2, 3)},
    "ReLU": "max_value",
    "GaussianNoise": "stddev",
    "Activation": "activation",
    "Masking": "mask_value",
    "Reshape": "target_shape",
    "Permute": "dims",
    "RepeatVector": "n",
    "Rescaling": "scale",
    "Dot": "axes",
    "MultiHeadAttention": "num_heads",
    "GroupNormalization": "groups",
    "Embedding": "input_dim",
}
"""An argument that Keras's own layer saves in each release, in Keras 2's terms."""
MODELS = ("Sequential", "Functional")
INERT = ("batch_input_shape", "input_dtype", "dynamic", "autocast", "sparse_input")
"""Arguments of any Keras 2 layer that do not change its result."""


def is_stock(class_name: str, config: Config) -> bool:
    """Whether a layer is one of these. Custom layers may have names of Keras's, and few files have modules; but configs
    of custom layers lack Keras's arguments."""
    return class_name in KINDS and (class_name not in ALWAYS_SAVED or ALWAYS_SAVED[class_name] in config)


def of_another_module(item: Config) -> bool:
    """Whether an object of Keras 3 or tf_keras 2.13 and later, which save modules, is not Keras's."""
    home = str(item["module"] or "").partition(".")[0]
    return home not in ("keras", "tf_keras", "builtins") and bool(home or item.get("registered_name"))
