"""What a peer is: something that can make the same optimizer step.

It says what it has (`bench.peers.abilities`), and prepares a `Session` in a process of its own. The module that holds
it imports no framework at the top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bench.measuring.clock import WALL_CLOCK
from bench.peers.abilities import Abilities, lacking

if TYPE_CHECKING:
    import numpy as np

    from bench.cases.case import Case
    from bench.cases.sparse import Rows
    from bench.measuring.events import Events


@dataclass
class Session:
    """A prepared peer: parameters and slots exist; functions drive it.

    Attributes:
      place: (tensor number, float32 array or rows) -> the gradient where, as and in the dtype that the peer wants.
      apply: gives the optimizer all gradients once; may return before the work is done.
      wait: returns when every device has finished.
      read: tensor number -> the whole parameter as a float32 array.
      read_average: the same for the moving average, where the case has one.
      compute: a small forward and backward pass (`bench.cases.in_situ`) -> gradients for `apply`; None where the case
        has none.
      device_memory: peak bytes of a device so far; None on CPU, where the process says it.
      calls: calls of `apply` that make one step: more than one where gradients are accumulated.
      glance: tensor number -> whatever, once some elements of the parameter are there, for the price of those; None
        where `read` costs no more than that.
      hand: (tensor number, gradient) -> nothing: puts a gradient where the optimizer finds it; None where `apply` is
        all that gives it one.
      remark: for the table, what is known of how it works once it is prepared.
      events: of the GPU's stream that the steps run on, which time them there; None on other devices, and where
        `no_events` is the reason why there are no events.
      many: makes so many steps at once, where a loop of `apply` would not be how it is used; None for the loop.
    """

    place: Callable[[int, np.ndarray | Rows], Any]
    apply: Callable[[list[Any]], object]
    wait: Callable[[], object]
    read: Callable[[int], np.ndarray]
    read_average: Callable[[int], np.ndarray] | None = None
    compute: Callable[[], list[Any]] | None = None
    device_memory: Callable[[], int | None] | None = None
    calls: int = 1
    glance: Callable[[int], object] | None = None
    hand: Callable[[int, Any], object] | None = None
    many: Callable[[int], object] | None = None
    remark: str = ""
    events: Events | None = None
    no_events: str = ""
    gradients: list[Any] = field(default_factory=list)
    made: int = 0
    """Steps made so far."""

    def set_gradients(self, arrays: Iterable[np.ndarray | Rows]) -> None:
        """Replaces the gradients one by one, so that two full sets never exist together."""
        for index, array in enumerate(arrays):
            self.give(index, self.place(index, array))

    def give(self, index: int, placed: Any) -> None:
        """Makes what `place` returned the gradient of the next steps."""
        self.gradients[index : index + 1] = [placed]
        if self.hand is not None:
            self.hand(index, placed)

    def call(self) -> None:
        self.apply(self.gradients)

    def run(self, steps: int) -> None:
        """Makes so many steps; may return before the work is done."""
        self.made += steps
        if self.many is not None:
            self.many(steps)
            return
        for _ in range(steps * self.calls):
            self.apply(self.gradients)

    def synchronise(self) -> None:
        self.wait()

    @property
    def clock(self) -> str:
        """What its steps are timed by."""
        if self.events is not None:
            return f"{WALL_CLOCK}; {self.events.name}"
        return f"{WALL_CLOCK} alone: {self.no_events}" if self.no_events else WALL_CLOCK


@dataclass(frozen=True)
class Conventions:
    """In which of several established ways a peer computes the same thing.

    Attributes:
      paper_epsilon: Adam's epsilon joins the bias-corrected root, as in the paper's algorithm 1 (torch, optax), not the
        uncorrected one (Keras).
      uncorrected_epsilon_of_tables: tables with sparse gradients keep to Keras' way (torch.optim.SparseAdam).
      average_of_first_step: moving averages start as the parameters after the first step (Keras 3), not as those
        before it.
    """

    paper_epsilon: bool = False
    average_of_first_step: bool = False
    uncorrected_epsilon_of_tables: bool = False


@dataclass(frozen=True)
class Home:
    """Where a worker finds `optim`. Attributes: label, for the peer's name; folder, first on its path; python: another
    interpreter, or None; asked: what `--against` named."""

    label: str
    folder: str
    python: str | None = None
    asked: str = ""


@dataclass(frozen=True)
class Peer:
    """One contestant.

    Attributes:
      name: as `-p` takes it and the table prints it.
      summary: one line.
      module: the module that holds this record; a worker imports it by this name.
      has: what it can do.
      prepare: builds the session; runs in the worker.
      packages: distributions whose versions belong to the result.
      on_mesh: whether the tensors are laid out on the mesh (else they are whole, on one device with all
        threads).
      conventions: see there.
      note: for the table.
      own_algorithm: whether it is somebody's own optimizer, which need not compute what the reference does.
      home: where its `optim` is, if not here.
      waits: how its threads wait, by the library that has them: peers of one are disturbed alike by others' load.
    """

    name: str
    summary: str
    module: str
    has: Abilities
    prepare: Callable[[Case], Session]
    packages: tuple[str, ...] = ()
    on_mesh: bool = False
    conventions: Conventions = Conventions()
    note: str = ""
    own_algorithm: bool = False
    waits: str = "tensorflow"
    home: Home | None = None

    def at(self, home: Home) -> Peer:
        """The same peer with the `optim` of another place."""
        return replace(self, name=f"{self.name}@{home.label}", home=home)

    def unavailable(self, case: Case) -> str | None:
        """The reason why this case cannot be measured here, or None. Cheap: no framework is imported."""
        return lacking(case, self.has)

    def way(self, case: Case) -> str:
        """How it is called in this case: "eager", "function" or "fit"."""
        return case.options.where or self.has.ways[0]

    def remark(self, case: Case) -> str:
        """For the table: what sets it apart, and how it is called where that is not as usual for it."""
        return ", ".join(word for word in (self.note, self.way(case) if self.way(case) != "function" else "") if word)
