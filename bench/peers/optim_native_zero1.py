"""As `optim_native`, with slots sharded further over the mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import optim_setup
from bench.peer import Peer, Session
from bench.peers import optim_native

if TYPE_CHECKING:
    from bench.case import Case


def unavailable(case: Case) -> str | None:
    return optim_setup.zero1_unavailable(case) or optim_native.unavailable(case)


def prepare(case: Case) -> Session:
    return optim_setup.local(optim_setup.with_zero1(case), kernels="build")


PEER = Peer(
    name="optim-native-zero1",
    summary="optim, local executor on dtopt's own kernel, slots sharded further, eager",
    module=__name__,
    unavailable=unavailable,
    prepare=prepare,
    packages=("dtopt", "tensorflow"),
    on_mesh=True,
    note="eager, zero1",
)
