"""What a peer is: something that can make the same optimizer step.

A peer is one file in `bench/peers/` with a `PEER` record, listed in `bench.peers.PEERS`. It says why it
cannot run a case (`unavailable`), and prepares a `Session` in a process of its own. Its module imports no
framework at the top.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from bench.case import Case


@dataclass
class Session:
    """A prepared peer: parameters and slots exist; four functions drive it.

    Attributes:
      place: (tensor number, float32 array) -> the gradient where and as the peer wants it.
      apply: makes one step with all gradients; may return before the work is done.
      wait: returns when every device has finished.
      read: tensor number -> the whole parameter as a numpy array.
    """

    place: Callable[[int, np.ndarray], Any]
    apply: Callable[[list[Any]], object]
    wait: Callable[[], object]
    read: Callable[[int], np.ndarray]
    gradients: list[Any] = field(default_factory=list)

    def set_gradients(self, arrays: Iterable[np.ndarray]) -> None:
        """Replaces the gradients one by one, so that two full sets never exist together."""
        for index, array in enumerate(arrays):
            placed = self.place(index, array)
            if index < len(self.gradients):
                self.gradients[index] = placed
            else:
                self.gradients.append(placed)

    def step(self) -> None:
        self.apply(self.gradients)

    def synchronise(self) -> None:
        self.wait()

    def parameters(self) -> Iterator[np.ndarray]:
        """The parameters in the order of the workload."""
        return (self.read(index) for index in range(len(self.gradients)))


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
      paper_epsilon: Adam's epsilon joins the bias-corrected root, as in the paper's algorithm 1 (torch,
        optax), not the uncorrected one (Keras).
      note: for the table.
    """

    name: str
    summary: str
    module: str
    unavailable: Callable[[Case], str | None]
    prepare: Callable[[Case], Session]
    packages: tuple[str, ...] = ()
    on_mesh: bool = False
    paper_epsilon: bool = False
    note: str = ""


def needs(*modules: str, install: str) -> str | None:
    """The reason text where one of the modules cannot be found, without importing any."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return f"{' and '.join(missing)} not installed: pip install {install}" if missing else None


def without(case: Case, *algorithms: str) -> str | None:
    """The reason text where the peer lacks the optimizer."""
    return f"has no {case.optimizer} that can be compared" if case.optimizer in algorithms else None
