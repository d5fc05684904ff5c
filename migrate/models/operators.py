"""Express TensorFlow's functions between layers as operations of Keras 3. tf.keras from 2.4 on saves them as
`TFOpLambda` and `SlicingOpLambda`.

Sources: `keras/layers/core/tf_op_layer.py` and `keras/engine/node.py` 2.15, `keras/src/ops` 3.0 to 3.15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from migrate.models.layers import ADVICE
from optim.errors import UnsupportedError

SLICING = "__operators__.getitem"
CONSTANT = "_CONSTANT_VALUE"


@dataclass(frozen=True)
class Operator:
    """Keras 3's equivalent of a function of TensorFlow.

    Attributes:
      class_name: in `keras.src.ops`. module: there.
      operands: names of the arguments after the first that are tensors or constants.
      options: TensorFlow's argument -> (Keras's, TensorFlow's default, which is passed to Keras too).
      neutral: arguments that Keras does not have -> the values with which they do not change the result.
      additional: Keras's arguments that TensorFlow does not have -> the same.
    """

    class_name: str
    module: str = "numpy"
    operands: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    additional: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


def _two(class_name: str) -> Operator:
    return Operator(class_name, operands=("y",))


def _reduced(class_name: str) -> Operator:
    return Operator(class_name, options={"axis": ("axis", None), "keepdims": ("keepdims", False)})


LIKE = ("zeros", "ones")
REQUIRED = object()
"""In place of the default of a required argument."""
SOFTMAX = Operator("Softmax", "nn", options={"axis": ("axis", -1)})
SQUEEZE = Operator("Squeeze", options={"axis": ("axis", REQUIRED)})
TRANSPOSE = Operator("Transpose", options={"perm": ("axes", None)}, neutral={"conjugate": (False,)})
SILU = Operator("Silu", "nn", neutral={"beta": (1.0,)})
PRODUCT = Operator(
    "Matmul",
    operands=("b",),
    neutral=dict.fromkeys(
        ("transpose_a", "transpose_b", "adjoint_a", "adjoint_b", "a_is_sparse", "b_is_sparse"), (False,)
    ),
)
FUNCTIONS: dict[str, Operator] = {
    **dict.fromkeys(("__operators__.add", "math.add"), _two("Add")),
    "math.subtract": _two("Subtract"),
    "math.multiply": _two("Multiply"),
    **dict.fromkeys(("math.truediv", "math.divide"), _two("TrueDivide")),
    "math.pow": _two("Power"),
    "math.not_equal": _two("NotEqual"),
    "math.logical_or": Operator("LogicalOr", operands=("y",)),
    "math.maximum": _two("Maximum"),
    "math.minimum": _two("Minimum"),
    "linalg.matmul": PRODUCT,
    "math.negative": Operator("Negative"),
    "math.abs": Operator("Absolute"),
    **{f"math.{name}": Operator(name.capitalize()) for name in ("exp", "log", "sqrt", "square", "sin", "cos", "tanh")},
    "math.rsqrt": Operator("Rsqrt", "math"),
    **{f"nn.{name}": Operator(name.capitalize(), "nn") for name in ("relu", "relu6", "selu")},
    "nn.elu": Operator("Elu", "nn", additional={"alpha": (1.0,)}),
    **dict.fromkeys(("math.sigmoid", "nn.sigmoid"), Operator("Sigmoid", "nn")),
    **dict.fromkeys(("math.softplus", "nn.softplus"), Operator("Softplus", "nn")),
    **dict.fromkeys(("nn.silu", "nn.swish"), SILU),
    "nn.gelu": Operator("Gelu", "nn", options={"approximate": ("approximate", False)}),
    "nn.leaky_relu": Operator("LeakyRelu", "nn", options={"alpha": ("negative_slope", 0.2)}),
    "nn.softmax": SOFTMAX,
    **{f"math.reduce_{name}": _reduced(name.capitalize()) for name in ("mean", "sum", "max", "min", "prod", "any")},
    "reshape": Operator("Reshape", options={"shape": ("newshape", REQUIRED)}),
    **{f"{name}_like": Operator(f"{name.capitalize()}Like", options={"dtype": ("dtype", None)}) for name in LIKE},
    "cast": Operator("Cast", "core", options={"dtype": ("dtype", REQUIRED)}),
    "expand_dims": Operator("ExpandDims", options={"axis": ("axis", REQUIRED)}),
    **dict.fromkeys(("squeeze", "compat.v1.squeeze"), SQUEEZE),
    **dict.fromkeys(("transpose", "compat.v1.transpose"), TRANSPOSE),
    "concat": Operator("Concatenate", options={"axis": ("axis", REQUIRED)}),
    "stack": Operator("Stack", options={"axis": ("axis", 0)}),
    "clip_by_value": Operator(
        "Clip", options={"clip_value_min": ("x_min", REQUIRED), "clip_value_max": ("x_max", REQUIRED)}
    ),
    SLICING: Operator("GetItem", operands=("slice_spec",)),
}


def operator(layer: Mapping[str, Any]) -> Operator:
    """Keras 3's equivalent of a layer of `layers.OPERATORS`. Raises UnsupportedError if Keras 3 lacks it."""
    function = layer["config"].get("function")
    if function not in FUNCTIONS:
        raise UnsupportedError(
            f"the layer {layer['config'].get('name')!r} calls tf.{function}, for which this dtopt knows no operation of"
            f" Keras 3; {ADVICE}"
        )
    return FUNCTIONS[function]


def is_end(item: Any) -> bool:
    """Whether an item of a node is a tensor: [layer, node, tensor, keyword arguments]; the last may be missing."""
    return (
        isinstance(item, Sequence)
        and len(item) in (3, 4)
        and isinstance(item[0], str)
        and item[0] != CONSTANT
        and all(isinstance(number, int) for number in item[1:3])
    )


def ends(node: Any) -> Iterator[Sequence[Any]]:
    """Yield every tensor that a call gets, including keyword arguments."""
    if is_end(node):
        yield node
    if isinstance(node, Mapping):
        node = list(node.values())
    if isinstance(node, Sequence) and not isinstance(node, str):
        for item in node:
            yield from ends(item)


def converted(layer: Mapping[str, Any], tensor: Callable[[Sequence[Any]], Any]) -> tuple[dict[str, Any], list[Any]]:
    """Convert a layer of `layers.OPERATORS` to (the operation's config, its calls).

    Args:
      tensor: an end -> the same tensor in Keras 3's form.

    Raises:
      UnsupportedError: it is called with arguments that the operation does not accept.
    """
    operation = operator(layer)
    calls = [_call(layer, operation, node, tensor) for node in layer.get("inbound_nodes") or []]
    configs = [config for config, _ in calls]
    if any(config != configs[0] for config in configs):
        raise UnsupportedError(f"the layer {layer['config'].get('name')!r} is called in several ways; {ADVICE}")
    return (configs or [{}])[0], [node for _, node in calls]


def _call(
    layer: Mapping[str, Any], operation: Operator, node: Any, tensor: Callable[[Sequence[Any]], Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    first, arguments = _first(node)
    rest = {key: value for key, value in arguments.items() if key not in operation.operands and key != "name"}

    def refuse(what: str) -> UnsupportedError:
        name = layer["config"].get("name")
        return UnsupportedError(f"the layer {name!r} calls tf.{layer['config']['function']} with {what}; {ADVICE}")

    config = {}
    for name, (theirs, default) in operation.options.items():
        value = rest.pop(name, None)
        value = default if value is None else value
        if value is REQUIRED or next(ends(value), None) is not None:
            raise refuse(f"{name} from the graph" if value is not REQUIRED else f"no {name}")
        config[theirs] = value
    for name, value in rest.items():
        if value not in operation.neutral.get(name, (None,)):
            raise refuse(f"{name}={value!r}")
    lacking = [name for name in operation.operands if arguments.get(name) is None]
    if lacking:
        raise refuse(f"no {lacking[0]}")
    operands = [
        _slice_key(arguments[name], refuse) if name == "slice_spec" else arguments[name] for name in operation.operands
    ]

    def operand(item: Any) -> Any:
        if is_end(item):
            return tensor(item)
        if not isinstance(item, list) or operation.class_name == "GetItem":
            return item
        if operation.class_name in ("Concatenate", "Stack") and all(is_end(member) for member in item):
            return [tensor(member) for member in item]
        return _constant(item, layer["config"].get("dtype"), refuse)

    return config, {"args": [operand(argument) for argument in (first, *operands)], "kwargs": {}}


def _first(node: Any) -> tuple[Any, dict[str, Any]]:
    """(the function's first argument, its other arguments) of a node, which keeps the structure of the former."""
    if node and isinstance(node[0], str):
        arguments = node[3] if len(node) > 3 else {}
        return (node[2] if node[0] == CONSTANT else list(node[:3])), dict(arguments)
    arguments = {}
    for item in node:
        arguments |= item[3] if len(item) > 3 else {}
    return [item[2] if item[0] == CONSTANT else list(item[:3]) for item in node], arguments


def _constant(value: list[Any], dtype: Any, refuse: Callable[[str], UnsupportedError]) -> dict[str, Any]:
    """An array of constants. The config has no dtype for it: that of the tensor next to it is used."""
    numbers = np.array(value, object).reshape(-1)
    if dtype != "float32" or not all(type(number) is float for number in numbers):
        raise refuse(f"{value!r}")
    return {"class_name": "__numpy__", "config": {"value": value, "dtype": "float32"}}


def _slice_key(spec: Any, refuse: Callable[[str], UnsupportedError]) -> Any:
    if isinstance(spec, list):
        return [_slice_key(part, refuse) for part in spec]
    if isinstance(spec, Mapping) and set(spec) == {"start", "stop", "step"}:
        if all(value is None or isinstance(value, int) for value in spec.values()):
            return {"class_name": "__slice__", "config": dict(spec)}
    elif spec is None or isinstance(spec, int):
        return spec
    raise refuse(f"slice_spec={spec!r}")
