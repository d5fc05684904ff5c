"""Find layers that are frozen by their config, and that a Keras 3 trains nevertheless.

Tested on Keras 3.0 to 3.15: layers frozen before and after they are built, and loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from migrate.bytes.messages import some
from migrate.models.layers import KINDS
from migrate.models.normalized_config import Leaf
from migrate.state import OptimizerState, Stored
from optim.errors import UnsupportedError

IN_PARTS = (
    *("MultiHeadAttention", "GroupQueryAttention", "GroupedQueryAttention"),
    *("ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"),
)
"""Layers that create their parts and do not pass on that they are frozen (`build` in `multi_head_attention.py`,
`grouped_query_attention.py`, `__init__` in `conv_lstm.py` 3.0 to 3.15). Frozen before they are built, they are trained;
and loading freezes before it builds."""
WITHIN = ("layers", "layer", "backward_layer", "cell", "cells")
"""Arguments that contain layers."""


def thawed_by_loading(config: Any, frozen: bool = False) -> Iterator[str]:
    """Yield the names of frozen layers in a model's config that are trainable after Keras 3 loads them."""
    if isinstance(config, list):
        for member in config:
            yield from thawed_by_loading(member, frozen)
    if not isinstance(config, Mapping) or not isinstance(config.get("config"), Mapping):
        return
    inner = config["config"]
    frozen = frozen or inner.get("trainable") is False
    if config.get("class_name") in IN_PARTS:
        yield from [str(inner.get("name"))] if frozen else []
        return
    for key in WITHIN:
        yield from thawed_by_loading(inner.get(key), frozen)


def check(config: Any, state: OptimizerState) -> None:
    """Raise UnsupportedError if Keras 3, after loading this, would train variables without slots: it drops all
    slots."""
    owners = [f"/{name}" for per in state.slots.values() for name in per]
    names = [name for name in thawed_by_loading(config) if not any(f"/{name}/" in owner for owner in owners)]
    if owners and names:
        raise UnsupportedError(
            f"{some(names)}: frozen, but when Keras 3 loads a frozen layer of this class, it trains the layer"
            " and drops the optimizer's state. Build the model in today's code, freeze it, and restore into it"
        )


def may_train(config: Any, leaves: list[Leaf], source: Stored, by_keras3_since: tuple[int, ...] | None) -> list[str]:
    """Explain why layers that are frozen in a source's config may be trained although no slots show it.

    Args:
      leaves: of the model, empty if it has unknown layers.
      by_keras3_since: the release that wrote the source, None if it was not Keras 3.
    """
    if source.weights is None or any(array.shape != () for _, array in source.weights):
        return []
    reasons = []
    parted = list(thawed_by_loading(config))
    if parted:
        reasons.append(
            f"{some(parted)}: frozen, but Keras 3 trains a layer of this class that was frozen before it was"
            " built, as a loaded layer is"
        )
    rest = [x.path[-1] for x in leaves if x.frozen and x.path[-1] not in parted and _has_weights(x)]
    if by_keras3_since is not None and by_keras3_since < (3, 2) and rest:
        reasons.append(
            f"{some(rest)}: frozen, but Keras before 3.2 trains a layer that was frozen before it had weights"
        )
    return reasons


def _has_weights(leaf: Leaf) -> bool:
    return any(weight.trainable for weight in KINDS[leaf.class_name].weights(leaf.config))
