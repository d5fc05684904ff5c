"""The object graph of a TF2 checkpoint (TrackableObjectGraph), made from its keys without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable

from optim.bytes import protos
from optim.slot_layout import unescape

ATTRIBUTES = "/.ATTRIBUTES/"


def serialize(keys: Iterable[str]) -> bytes:
    """The graph whose tree is that of the keys, so that tf.train.Checkpoint restores them by attribute."""
    graph = protos.ObjectGraph()
    graph.nodes.add().has_checkpoint_values.value = True
    ids: dict[tuple[str, ...], int] = {(): 0}
    for key in keys:
        path, attribute = key.split(ATTRIBUTES)
        parts = tuple(path.split("/"))
        for depth in range(1, len(parts) + 1):
            if parts[:depth] not in ids:
                ids[parts[:depth]] = len(graph.nodes)
                graph.nodes.add().has_checkpoint_values.value = True
                parent = graph.nodes[ids[parts[: depth - 1]]]
                parent.children.add(node_id=ids[parts[:depth]], local_name=unescape(parts[depth - 1]))
        full_name = "/".join(map(unescape, parts))
        graph.nodes[ids[parts]].attributes.add(name=attribute, full_name=full_name, checkpoint_key=key)
    return bytes(graph.SerializeToString(deterministic=True))
