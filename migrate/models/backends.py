"""Layers that train differently on another backend of Keras 3 than on TensorFlow.

Found by training each layer, activation and loss of Keras 3.15.1 alone on TensorFlow, JAX and PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from migrate.bytes.messages import some
from migrate.readers.keras.model import objects
from migrate.releases.versions import JAX_OR_PYTORCH, TENSORFLOW


@dataclass(frozen=True)
class BackendDifference:
    """What a layer does on `backend`. `chosen`: whether a class and config are concerned."""

    backend: str
    chosen: Callable[[str, Mapping[str, Any]], bool]
    way: str


def _bicubic(_: str, config: Mapping[str, Any]) -> bool:
    return config.get("interpolation") == "bicubic"


def _padded(kind: str, config: Mapping[str, Any]) -> bool:
    """Whether means include the values with which PyTorch pads: neither a constant nor a repetition."""
    size = config.get("pool_size")
    sizes = size if isinstance(size, list) else [size]
    return kind.startswith("AveragePooling") and config.get("padding") == "same" and sizes not in ([1], [2], [2, 2])


BACKEND_DIFFERENCES = (
    BackendDifference(
        "jax", lambda kind, _: kind == "SpectralNormalization", "learns through the norm that it divides by"
    ),
    BackendDifference(
        "jax", lambda kind, config: kind == "Resizing" and _bicubic(kind, config), "interpolates differently"
    ),
    BackendDifference("torch", _bicubic, "interpolates differently"),
    BackendDifference("torch", _padded, "includes padding in its means"),
)
SHOWN = {TENSORFLOW: "", "jax": " on JAX", "torch": " on PyTorch", JAX_OR_PYTORCH: " on JAX or PyTorch"}


def differences(config: Any, backend: str) -> Iterator[str]:
    """Explain why a model trained on one backend does not train the same on TensorFlow.

    Args:
      backend: `tensorflow`, `jax`, `torch`, or `JAX_OR_PYTORCH` if it is one of these two.
    """
    layers = list(_classes_and_configs(config)) if backend != TENSORFLOW else []
    for difference in BACKEND_DIFFERENCES:
        names = dict.fromkeys(str(inside.get("name")) for kind, inside in layers if difference.chosen(kind, inside))
        if names and backend in (difference.backend, JAX_OR_PYTORCH):
            written = "wrote" if difference.backend == backend else "may have written"
            by = f"Keras 3{shown(difference.backend)}, which {written} it,"
            yield f"{some(list(names))}: {by} {difference.way}, and not on TensorFlow"


def shown(backend: str) -> str:
    """The suffix for Keras 3's name; empty for TensorFlow, the target's backend."""
    return SHOWN.get(backend, f" on {backend}")


def _classes_and_configs(config: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for part in objects(config):
        if isinstance(part.get("class_name"), str) and isinstance(part.get("config"), Mapping):
            yield part["class_name"], part["config"]
