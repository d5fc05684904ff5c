"""What a peer is: something that can make the same optimizer step.

A peer is one file in `bench/peers/` with a `PEER` record, listed in `bench.peers.PEERS`. It says why it
cannot run a case (`unavailable`), and prepares a `Session` in a process of its own. Its module imports no
framework at the top.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from bench.case import Case
    from bench.sparse import Rows


@dataclass
class Session:
    """A prepared peer: parameters and slots exist; functions drive it.

    Attributes:
      place: (tensor number, float32 array or rows) -> the gradient where, as and in the dtype that the peer wants.
      apply: gives the optimizer all gradients once; may return before the work is done.
      wait: returns when every device has finished.
      read: tensor number -> the whole parameter as a float32 array.
      read_average: the same for the moving average, where the case has one.
      compute: a small forward and backward pass, see `bench.in_situ` -> gradients for `apply`; None where the case
        has none.
      device_memory: peak bytes of a device so far; None on CPU, where the process says it.
      calls: calls of `apply` that make one step: more than one where gradients are accumulated.
    """

    place: Callable[[int, np.ndarray | Rows], Any]
    apply: Callable[[list[Any]], object]
    wait: Callable[[], object]
    read: Callable[[int], np.ndarray]
    read_average: Callable[[int], np.ndarray] | None = None
    compute: Callable[[], list[Any]] | None = None
    device_memory: Callable[[], int | None] | None = None
    calls: int = 1
    gradients: list[Any] = field(default_factory=list)

    def set_gradients(self, arrays: Iterable[np.ndarray | Rows]) -> None:
        """Replaces the gradients one by one, so that two full sets never exist together."""
        for index, array in enumerate(arrays):
            placed = self.place(index, array)
            if index < len(self.gradients):
                self.gradients[index] = placed
            else:
                self.gradients.append(placed)

    def call(self) -> None:
        self.apply(self.gradients)

    def step(self) -> None:
        for _ in range(self.calls):
            self.apply(self.gradients)

    def synchronise(self) -> None:
        self.wait()


@dataclass(frozen=True)
class Conventions:
    """In which of several established ways a peer computes the same thing.

    Attributes:
      paper_epsilon: Adam's epsilon joins the bias-corrected root, as in the paper's algorithm 1 (torch, optax), not the
        uncorrected one (Keras).
      average_of_first_step: moving averages start as the parameters after the first step (Keras 3), not as those
        before it.
    """

    paper_epsilon: bool = False
    average_of_first_step: bool = False


@dataclass(frozen=True)
class Peer:
    """One contestant.

    Attributes:
      name: as `-p` takes it and the table prints it.
      summary: one line.
      module: the module that holds this record; a worker imports it by this name.
      unavailable: the reason why this case cannot be measured here, or None. Cheap: it runs in the parent and
        imports no framework.
      prepare: builds the session; runs in the worker.
      packages: distributions whose versions belong to the result.
      on_mesh: whether the tensors are laid out on the mesh (else they are whole, on one device with all
        threads).
      conventions: see there.
      note: for the table.
    """

    name: str
    summary: str
    module: str
    unavailable: Callable[[Case], str | None]
    prepare: Callable[[Case], Session]
    packages: tuple[str, ...] = ()
    on_mesh: bool = False
    conventions: Conventions = Conventions()
    note: str = ""


def needs(*modules: str, install: str) -> str | None:
    """The reason text where one of the modules cannot be found, without importing any."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return f"{' and '.join(missing)} not installed: pip install {install}" if missing else None


def without(case: Case, *algorithms: str) -> str | None:
    """The reason text where the peer lacks the optimizer."""
    name = case.algorithm.name
    return f"has no {case.algorithm.class_name} that can be compared" if name in algorithms else None


def wants(case: Case, algorithm: str, argument: str, value: Any) -> str | None:
    """The reason text where the peer's optimizer has one value of an argument that others let choose."""
    found = case.algorithm
    if found.name != algorithm or found.hyperparameters[argument] == value:
        return None
    shown = str(value).lower()
    return f"has {argument}={shown} only: compare with -o {algorithm}:{argument}={shown}"


def first(reasons: Iterable[str | None]) -> str | None:
    """The first reason that is one."""
    return next((reason for reason in reasons if reason), None)
