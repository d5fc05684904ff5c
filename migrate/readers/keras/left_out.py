"""Derive layer settings that Keras 3 does not save from others that it saves.

- `output_padding` of transposed convolutions, before 3.14: from the shapes that layers are called with. A graph has
  them with each tensor, other models in the `build_config` of the layer.
- `rms_scaling` of LayerNormalization, before 3.4: such a layer has one weight, not two.
- The module of a function: `activation=tf.nn.softmax` is saved as `softmax_v2`, which Keras 3 itself cannot load.

Sources: `base_conv_transpose.py`, `compute_conv_transpose_output_shape` in `backend_utils.py`,
`layer_normalization.py` 3.0 to 3.15.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

Layer = Mapping[str, Any]
Shape = Sequence[int | None] | None
PADDING = "output_padding"
SCALING = "rms_scaling"
TRANSPOSED = ("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose")
SAME_SHAPE = (
    *("Activation", "ReLU", "LeakyReLU", "ELU", "Softmax", "Dropout", "SpatialDropout1D", "SpatialDropout2D"),
    *("SpatialDropout3D", "GaussianNoise", "GaussianDropout", "AlphaDropout", "ActivityRegularization", "Identity"),
)
"""Layers without weights that store no shape and return the shape of their input."""

OF_TENSORFLOW = {"softmax_v2": "softmax", "log_softmax_v2": "log_softmax"}
"""`__name__` of a function in `tf.nn` -> Keras's name of the same function, as in tf.keras's `activations.py`."""


def complete(model: Layer, weights: Collection[str]) -> dict[str, Any]:
    """Complete a model's config from Keras 3 with the derived settings; `weights`: their names."""
    config: dict[str, Any] = _completed(with_paddings(model), [f"/{name}" for name in weights])
    return config


def _completed(item: Any, weights: Collection[str]) -> Any:
    """Name functions of TensorFlow as Keras names them, and add `rms_scaling`."""
    if isinstance(item, list):
        return [_completed(member, weights) for member in item]
    if not isinstance(item, Mapping):
        return item
    kind, config = item.get("class_name"), item.get("config")
    if kind == "function" and isinstance(config, str) and config in OF_TENSORFLOW:
        return OF_TENSORFLOW[config]
    completed = {key: _completed(member, weights) for key, member in item.items()}
    if kind == "LayerNormalization" and isinstance(config, Mapping) and _is_rms_scaled(config, weights):
        completed["config"][SCALING] = True
    return completed


def _is_rms_scaled(config: Mapping[str, Any], weights: Collection[str]) -> bool:
    """Whether a LayerNormalization that stores no `rms_scaling` has it: a gamma and no beta."""
    if SCALING in config or config.get("center") != config.get("scale"):
        return False
    return sum(f"/{config.get('name')}/" in name for name in weights) == 1


def with_paddings(model: Layer, after: Shape = None) -> dict[str, Any]:
    """Complete a model's config with each `output_padding` that its shapes determine: None for that of the default.

    Args:
      model: its config from Keras 3.
      after: the shape of its output, if an outer model shows it.
    """
    config = model.get("config")
    layers = config.get("layers") if isinstance(config, Mapping) else None
    if not isinstance(layers, list) or not isinstance(config, Mapping):
        return dict(model)
    listed = [layer for layer in layers if isinstance(layer, Mapping)]
    is_sequence = model.get("class_name") == "Sequential"
    outputs = _output_shapes(listed, after) if is_sequence else [_output_shape(config, x, after) for x in listed]
    layers_ = []
    for layer, shape in zip(listed, outputs, strict=True):
        inside = with_paddings(layer, shape)
        layer_config = inside.get("config")
        if inside.get("class_name") in TRANSPOSED and isinstance(layer_config, Mapping) and PADDING not in layer_config:
            inside["config"] = {**layer_config, **_padding(layer_config, _input_shape(layer), shape)}
        layers_.append(inside)
    return {**model, "config": {**config, "layers": layers_}}


def _output_shapes(layers: Sequence[Layer], after: Shape) -> list[Shape]:
    shapes: list[Shape] = []
    for layer in reversed(layers):
        shapes.append(after)
        after = _input_shape(layer) or (after if layer.get("class_name") in SAME_SHAPE else None)
    return shapes[::-1]


def _input_shape(layer: Layer) -> Shape:
    built = layer.get("build_config")
    shape = built.get("input_shape") if isinstance(built, Mapping) else None
    if isinstance(shape, list):
        return shape
    shapes = [shape for _, shape in _call_tensors(layer.get("inbound_nodes"))]
    return shapes[0] if shapes and all(shape == shapes[0] for shape in shapes) else None


def _output_shape(config: Layer, layer: Layer, after: Shape) -> Shape:
    name, layer_config = layer.get("name"), layer.get("config")
    asks = layer.get("class_name") in TRANSPOSED or (isinstance(layer_config, Mapping) and "layers" in layer_config)
    if not isinstance(name, str) or not asks:
        return None
    shapes = [shape for end, shape in _call_tensors(config.get("layers")) if end[0] == name and end[2] == 0]
    if not shapes and config.get("output_layers") in ([name, 0, 0], [[name, 0, 0]]):
        return after
    return shapes[0] if shapes and all(shape == shapes[0] for shape in shapes) else None


def _call_tensors(item: Any) -> Iterator[tuple[list[Any], Shape]]:
    if isinstance(item, list):
        for member in item:
            yield from _call_tensors(member)
    elif isinstance(item, Mapping):
        tensor_config = item.get("config")
        if item.get("class_name") == "__keras_tensor__" and isinstance(tensor_config, Mapping):
            end, shape = tensor_config.get("keras_history"), tensor_config.get("shape")
            if isinstance(end, list) and len(end) == 3 and isinstance(shape, list):
                yield end, shape
            return
        for key, member in item.items():
            if key != "config":
                yield from _call_tensors(member)


def _padding(config: Layer, before: Shape, after: Shape) -> dict[str, Any]:
    """`output_padding`, or nothing if these shapes do not determine it (`compute_conv_transpose_output_shape`)."""
    settings: list[Any] = [config.get(key) for key in ("kernel_size", "strides", "dilation_rate")]
    if before is None or after is None or len(before) != len(after) or not all(isinstance(x, list) for x in settings):
        return {}
    kernels, strides, dilations = settings
    places = slice(2, None) if config.get("data_format") == "channels_first" else slice(1, -1)
    paddings = []
    for old, new, kernel, stride, dilation in zip(
        before[places], after[places], kernels, strides, dilations, strict=True
    ):
        if not isinstance(old, int) or not isinstance(new, int):
            return {}
        reach = (kernel - 1) * dilation + 1
        margin = 2 * (reach // 2) if config.get("padding") == "same" else 0
        usual = old * stride + (0 if config.get("padding") == "same" else max(reach - stride, 0))
        added = new - ((old - 1) * stride + reach - margin)
        paddings.append((new == usual, added, 0 <= added < stride))
    if all(is_usual for is_usual, _, _ in paddings):
        return {PADDING: None}
    return {PADDING: [added for _, added, _ in paddings]} if all(possible for _, _, possible in paddings) else {}
