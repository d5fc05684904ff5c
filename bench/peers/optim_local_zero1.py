"""As `optim_local`, with slots sharded further over the mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import optim_setup
from bench.peer import Peer, Session

if TYPE_CHECKING:
    from bench.case import Case


def unavailable(case: Case) -> str | None:
    return optim_setup.zero1_unavailable(case) or optim_setup.local_unavailable(case)


def prepare(case: Case) -> Session:
    return optim_setup.local(optim_setup.with_zero1(case), kernels="off")


PEER = Peer(
    name="optim-local-zero1",
    summary="optim, local executor on TensorFlow's kernels, slots sharded further, eager",
    module=__name__,
    unavailable=unavailable,
    prepare=prepare,
    packages=("dtopt", "tensorflow"),
    on_mesh=True,
    note="eager, zero1",
)
