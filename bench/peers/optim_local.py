"""dtopt's own optimizers on a mesh with the local executor, called eagerly, on TensorFlow's fused kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import optim_setup
from bench.peer import Peer, Session

if TYPE_CHECKING:
    from bench.case import Case


def unavailable(case: Case) -> str | None:
    return optim_setup.local_unavailable(case)


def prepare(case: Case) -> Session:
    return optim_setup.local(case, kernels="off")


PEER = Peer(
    name="optim-local",
    summary="optim, local executor on TensorFlow's kernels, eager",
    module=__name__,
    unavailable=unavailable,
    prepare=prepare,
    packages=("dtopt", "tensorflow"),
    on_mesh=True,
    note="eager",
)
