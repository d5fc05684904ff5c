"""dtopt's own optimizers on a mesh with the portable executor, the step inside tf.function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import optim_setup
from bench.peer import Peer, Session

if TYPE_CHECKING:
    from bench.case import Case


def unavailable(case: Case) -> str | None:
    return optim_setup.unavailable(case)


def prepare(case: Case) -> Session:
    return optim_setup.portable(case)


PEER = Peer(
    name="optim-portable",
    summary="optim, portable executor, tf.function",
    module=__name__,
    unavailable=unavailable,
    prepare=prepare,
    packages=("dtopt", "tensorflow"),
    on_mesh=True,
    note="",
)
