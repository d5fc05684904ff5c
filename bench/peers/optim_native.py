"""dtopt's own optimizers as in `optim_local`, on dtopt's own kernel, which is compiled once if it was not before."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from bench import optim_setup
from bench.peer import Peer, Session

if TYPE_CHECKING:
    from bench.case import Case

COMPILERS = ("g++", "c++", "clang++")


def unavailable(case: Case) -> str | None:
    if case.device != "cpu":
        return "its kernel runs on CPU devices"
    if not any(shutil.which(name) for name in (os.environ.get("CXX", ""), *COMPILERS) if name):
        return f"no C++ compiler ({', '.join(COMPILERS)}) for its kernel"
    return optim_setup.local_unavailable(case)


def prepare(case: Case) -> Session:
    return optim_setup.local(case, kernels="build")


PEER = Peer(
    name="optim-native",
    summary="optim, local executor on dtopt's own kernel, eager",
    module=__name__,
    unavailable=unavailable,
    prepare=prepare,
    packages=("dtopt", "tensorflow"),
    on_mesh=True,
    note="eager",
)
