"""A peer: an implementation that can make the same optimizer step.

It declares its abilities (`bench.peers.abilities`), and prepares a `Session` in its own process. Its module imports no
framework at the top.
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
      place: (tensor number, float32 array or rows) -> the gradient on the device, in the form and dtype that the peer
        needs.
      apply: gives the optimizer all gradients once; may return before the work is done.
      wait: returns when every device has finished.
      read: tensor number -> the whole parameter as a float32 array.
      read_average: the same for the moving average, if the case has one.
      compute: a small forward and backward pass (`bench.cases.in_situ`) -> gradients for `apply`; None if the case
        does not measure one.
      device_memory: peak bytes of a device so far; None on CPU, because the process reports it.
      calls: calls of `apply` that make one step: more than one if gradients are accumulated.
      glance: tensor number -> any value, after some elements of the parameter are ready, at the cost of reading only
        those; None if `read` costs no more than that.
      hand: (tensor number, gradient) -> nothing: puts a gradient where the optimizer finds it; None if only `apply`
        passes gradients.
      remark: for the table: how it works, known once it is prepared.
      events: of the GPU's stream that the steps run on, which time them there; None on other devices, and if
        `no_events` is the reason why there are no events.
      many: makes several steps in one call, if a loop of `apply` is not the usual way to use it; None for the loop.
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
    steps_made: int = 0
    """Steps made so far."""

    def set_gradients(self, arrays: Iterable[np.ndarray | Rows]) -> None:
        """Replace the gradients one by one, so that two full sets never exist together."""
        for index, array in enumerate(arrays):
            self.give(index, self.place(index, array))

    def give(self, index: int, placed: Any) -> None:
        """Make the result of `place` the gradient of the next steps."""
        self.gradients[index : index + 1] = [placed]
        if self.hand is not None:
            self.hand(index, placed)

    def call(self) -> None:
        self.apply(self.gradients)

    def run(self, steps: int) -> None:
        """Make `steps` steps; may return before the work is done."""
        self.steps_made += steps
        if self.many is not None:
            self.many(steps)
            return
        for _ in range(steps * self.calls):
            self.apply(self.gradients)

    def synchronise(self) -> None:
        self.wait()

    @property
    def clock(self) -> str:
        """What times its steps."""
        if self.events is not None:
            return f"{WALL_CLOCK}; {self.events.name}"
        return f"{WALL_CLOCK} alone: {self.no_events}" if self.no_events else WALL_CLOCK


@dataclass(frozen=True)
class Conventions:
    """Which of several established conventions a peer follows.

    Attributes:
      paper_epsilon: Adam's epsilon is added to the bias-corrected root, as in the paper's algorithm 1 (torch, optax),
        not to the uncorrected one (Keras).
      uncorrected_epsilon_of_tables: tables with sparse gradients follow Keras (torch.optim.SparseAdam).
      average_of_first_step: moving averages start as the parameters after the first step (Keras 3), not as those before
        it.
    """

    paper_epsilon: bool = False
    average_of_first_step: bool = False
    uncorrected_epsilon_of_tables: bool = False


@dataclass(frozen=True)
class Home:
    """Where a worker finds `optim`.

    Attributes: label, for the peer's name; folder, first on its path; python: another interpreter, or None; source: the
      value of `--against`.
    """

    label: str
    folder: str
    python: str | None = None
    source: str = ""


@dataclass(frozen=True)
class Peer:
    """One contestant.

    Attributes:
      name: as `-p` takes it and the table prints it.
      summary: one line.
      module: the module that contains this record; a worker imports it by this name.
      has: its abilities.
      prepare: builds the session; runs in the worker.
      packages: distributions whose versions belong to the result.
      on_mesh: whether the tensors are laid out on the mesh (if not, they are whole, on one device with all threads).
      conventions: see there.
      note: for the table.
      own_algorithm: whether it is a user's own optimizer, which need not match the reference.
      home: where its `optim` is, if not here.
      waits: how its threads wait, by the library that has them: load of others disturbs peers of one library equally.
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
        """Return the same peer with the `optim` of another place."""
        return replace(self, name=f"{self.name}@{home.label}", home=home)

    def unavailable(self, case: Case) -> str | None:
        """Return the reason why this case cannot be measured here, or None. Cheap: no framework is imported."""
        return lacking(case, self.has)

    def way(self, case: Case) -> str:
        """Return how it is called in this case: "eager", "function" or "fit"."""
        return case.options.where or self.has.ways[0]

    def remark(self, case: Case) -> str:
        """Return a remark for the table: its difference from other peers, and how it is called if that is not its usual
        way."""
        return ", ".join(word for word in (self.note, self.way(case) if self.way(case) != "function" else "") if word)
