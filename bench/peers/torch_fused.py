"""PyTorch's fused optimizers (`fused=True`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import torch_setup
from bench.peer import Conventions, Peer, Session

if TYPE_CHECKING:
    from bench.case import Case


def unavailable(case: Case) -> str | None:
    return torch_setup.without_fused(case)


def prepare(case: Case) -> Session:
    return torch_setup.session(case, fused=True)


PEER = Peer(
    name="torch-fused",
    summary="PyTorch, fused=True",
    module=__name__,
    unavailable=unavailable,
    prepare=prepare,
    packages=("torch",),
    conventions=Conventions(paper_epsilon=True),
    note="no mesh",
)
