"""PyTorch's optimizers, one tensor at a time (`foreach=False`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import torch_setup
from bench.peer import Conventions, Peer, Session

if TYPE_CHECKING:
    from bench.case import Case


def unavailable(case: Case) -> str | None:
    return torch_setup.unavailable(case)


def prepare(case: Case) -> Session:
    return torch_setup.session(case, foreach=False)


PEER = Peer(
    name="torch-forloop",
    summary="PyTorch, foreach=False",
    module=__name__,
    unavailable=unavailable,
    prepare=prepare,
    packages=("torch",),
    conventions=Conventions(paper_epsilon=True),
    note="no mesh",
)
