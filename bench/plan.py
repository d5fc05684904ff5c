"""What a run measures: names and numbers from the user, checked and completed with defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench import algorithms, environment, layouts, peers, workloads
from bench.case import Case
from bench.contest import Settings
from bench.errors import OptionError, UnknownNameError
from bench.options import Options
from bench.peer import Peer
from bench.process import allowed_cpus

BASELINE = "tf_keras-mesh"
WORKLOADS = ("gpt2:layer",)
QUICK_PEERS = ("optim-local", "tf_keras-mesh", "torch-fused")
DEFAULT_PEERS = (*QUICK_PEERS, "optim-portable", "tf_keras-legacy", "optax")
"""Those that answer most; `-p all` takes every peer."""

DEFAULT = Settings(rounds=7, warm_up_seconds=1.0)
QUICK_ROUNDS = 5
"""A dozen tensors, six peers, seven rounds and a second of warm-up keep the default under a minute on two idle cores:
most of it is the start of the frameworks. Quick takes half the peers and the fewest rounds that give a verdict."""

MORE = (
    ("-w resnet50", "a whole model of 161 tensors; -w gpt2 one of 124 million parameters"),
    ("-p all", "every peer"),
    ("-o adamw -o lion", "other optimizers; --clip, --ema and others add to the step"),
    ("--mesh 2x2 --layout fsdp", "another mesh and layout"),
    ("--in-situ", "the step's share behind a forward and backward pass"),
)
"""What the default leaves out, as further options of `dtopt bench`."""


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
      cases, peers: every peer on every case.
      baseline: name of the peer that ratios are taken to; the first that ran takes its place if it cannot.
      settings: rounds and caps.
      seed: of the order within rounds.
      command: what the user typed, for the record.
    """

    cases: tuple[Case, ...]
    peers: tuple[Peer, ...]
    baseline: str
    settings: Settings = field(default_factory=Settings)
    seed: int = 0
    command: str = ""


def make_plan(
    *,
    workload: Sequence[str] = (),
    optimizer: Sequence[str] = (),
    peer: Sequence[str] = (),
    mesh: str = "model=2",
    device: str = "auto",
    layout: str = "megatron",
    baseline: str = BASELINE,
    rounds: int | None = None,
    quick: bool = False,
    seed: int = 0,
    threads: int | None = None,
    timeout: float = DEFAULT.timeout,
    options: Options | None = None,
    command: str = "",
) -> Plan:
    """A plan from the options of `dtopt bench step`; what is left out takes the defaults above.

    Raises: UnknownNameError, OptionError (mesh, threads), UnsupportedError (no such device here).
    """
    here = environment.find_device(device)
    shape = layouts.parse_mesh(mesh)
    if layout not in layouts.RULES:
        raise UnknownNameError(f"no layout rule is called {layout!r}; there are: {', '.join(layouts.RULES)}")
    allowed = len(allowed_cpus())
    if threads is not None and threads > allowed:
        raise OptionError(f"{threads} threads are asked for, and this process may use {allowed} CPUs")
    cases = tuple(
        Case(
            workload=workloads.workload(w).name,
            optimizer=algorithms.algorithm(o).text,
            mesh=shape,
            layout=layout,
            device=here,
            seed=seed,
            threads=threads or allowed,
            options=options or Options(),
        )
        for w in workload or WORKLOADS
        for o in optimizer or ("adam",)
    )
    chosen = tuple(peer) or (QUICK_PEERS if quick else DEFAULT_PEERS)
    return Plan(
        cases,
        peers.find(chosen),
        baseline=peers.find((baseline,))[0].name,
        settings=Settings(rounds or (QUICK_ROUNDS if quick else DEFAULT.rounds), DEFAULT.warm_up_seconds, timeout),
        seed=seed,
        command=command,
    )
