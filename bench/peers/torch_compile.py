"""PyTorch's multi-tensor optimizers under `torch.compile`."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from bench import torch_setup
from bench.peer import Conventions, Peer, Session

if TYPE_CHECKING:
    from bench.case import Case


def unavailable(case: Case) -> str | None:
    compilers = [name for name in (os.environ.get("CXX", ""), "g++", "clang++") if name]
    missing = case.device == "cpu" and not any(shutil.which(name) for name in compilers)
    return (
        torch_setup.unavailable(case)
        or torch_setup.overwrites_gradients(case)
        or ("no C++ compiler for torch.compile" if missing else None)
    )


def prepare(case: Case) -> Session:
    return torch_setup.session(case, compiled=True, foreach=True)


PEER = Peer(
    name="torch-compile",
    summary="PyTorch, foreach=True, torch.compile",
    module=__name__,
    unavailable=unavailable,
    prepare=prepare,
    packages=("torch",),
    conventions=Conventions(paper_epsilon=True),
    note="no mesh",
)
