"""PyTorch's multi-tensor optimizers (`foreach=True`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import torch_setup
from bench.peer import Conventions, Peer, Session

if TYPE_CHECKING:
    from bench.case import Case


def unavailable(case: Case) -> str | None:
    return torch_setup.unavailable(case) or torch_setup.overwrites_gradients(case)


def prepare(case: Case) -> Session:
    return torch_setup.session(case, foreach=True)


PEER = Peer(
    name="torch-foreach",
    summary="PyTorch, foreach=True",
    module=__name__,
    unavailable=unavailable,
    prepare=prepare,
    packages=("torch",),
    conventions=Conventions(paper_epsilon=True),
    note="no mesh",
)
