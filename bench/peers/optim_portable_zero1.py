"""As `optim_portable`, with slots sharded further over the mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import optim_setup
from bench.peer import Peer, Session

if TYPE_CHECKING:
    from bench.case import Case


def unavailable(case: Case) -> str | None:
    return optim_setup.zero1_unavailable(case) or optim_setup.unavailable(case)


def prepare(case: Case) -> Session:
    return optim_setup.portable(optim_setup.with_zero1(case))


PEER = Peer(
    name="optim-portable-zero1",
    summary="optim, portable executor, slots sharded further, tf.function",
    module=__name__,
    unavailable=unavailable,
    prepare=prepare,
    packages=("dtopt", "tensorflow"),
    on_mesh=True,
    note="zero1",
)
