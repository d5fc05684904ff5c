"""The peers, in the order of the table. A new one is a file here and a line below."""

from __future__ import annotations

from bench.errors import UnknownNameError
from bench.peer import Peer
from bench.peers import (
    keras3,
    keras3_jax,
    optax,
    optim_local,
    optim_local_zero1,
    optim_native,
    optim_native_zero1,
    optim_portable,
    optim_portable_zero1,
    tf_keras_eager,
    tf_keras_legacy,
    tf_keras_mesh,
    tf_keras_mesh_eager,
    tf_keras_plain,
    torch_compile,
    torch_foreach,
    torch_forloop,
    torch_fused,
)

PEERS: tuple[Peer, ...] = (
    optim_local.PEER,
    optim_native.PEER,
    optim_portable.PEER,
    optim_local_zero1.PEER,
    optim_native_zero1.PEER,
    optim_portable_zero1.PEER,
    tf_keras_mesh.PEER,
    tf_keras_mesh_eager.PEER,
    tf_keras_plain.PEER,
    tf_keras_eager.PEER,
    tf_keras_legacy.PEER,
    keras3.PEER,
    keras3_jax.PEER,
    torch_fused.PEER,
    torch_foreach.PEER,
    torch_forloop.PEER,
    torch_compile.PEER,
    optax.PEER,
)


def find(names: tuple[str, ...]) -> tuple[Peer, ...]:
    """The peers of these names, in the order of PEERS. A name that is no peer may be the start of several
    (`torch`); `all` is everyone.

    Raises: UnknownNameError.
    """
    chosen: set[str] = set()
    known = [peer.name for peer in PEERS]
    for name in names:
        matches = {name} if name in known else {peer for peer in known if name == "all" or peer.startswith(name)}
        if not name or not matches:
            raise UnknownNameError(f"no peer is called {name!r}; there are: {', '.join(known)}")
        chosen |= matches
    return tuple(peer for peer in PEERS if peer.name in chosen)
