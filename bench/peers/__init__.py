"""The peers, in the order of the table. A new one is a record in a file here; a new file is a word below."""

from __future__ import annotations

import importlib

from bench.errors import UnknownNameError
from bench.peers import keras3, optax, ours, ours_elsewhere, own, tf_keras, torch
from bench.peers.peer import Peer

_FILES = (ours, ours_elsewhere, tf_keras, keras3, torch, optax)
PEERS: tuple[Peer, ...] = tuple(peer for file in _FILES for peer in file.PEERS)


def find(names: tuple[str, ...]) -> tuple[Peer, ...]:
    """The peers of these names, in the order of PEERS. A name that is no peer may be the start of several
    (`torch`); `all` is everyone; `module:NAME` is a custom one.

    Raises: UnknownNameError.
    """
    chosen: set[str] = set()
    known = [peer.name for peer in PEERS]
    for name in names:
        if ":" in name:
            continue
        matches = {name} if name in known else {peer for peer in known if name == "all" or peer.startswith(name)}
        if not name or not matches:
            raise UnknownNameError(f"no peer is called {name!r}; there are: {', '.join(known)}")
        chosen |= matches
    mine = tuple(own.peer(name) for name in dict.fromkeys(names) if ":" in name)
    return tuple(peer for peer in PEERS if peer.name in chosen) + mine


def load(module: str, name: str) -> Peer:
    """The peer of that name in a module: its `PEERS`, or any Peer in it. Raises: LookupError."""
    if module == own.__name__:
        return own.peer(name)
    members = vars(importlib.import_module(module))
    for value in (*members.get("PEERS", ()), *members.values()):
        if isinstance(value, Peer) and value.name == name:
            return value
    raise LookupError(f"{module} holds no Peer named {name!r}")
