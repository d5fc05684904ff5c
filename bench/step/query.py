"""Decide what a run measures: check names and numbers from the user, and complete them with defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import peers
from bench.cases import algorithms, layouts, workloads
from bench.cases.case import Case
from bench.cases.options import Options
from bench.cases.shapes import Shapes
from bench.errors import OptionError, UnknownNameError
from bench.measuring import environment
from bench.measuring.process import threads_of
from bench.measuring.rounds import Pace
from bench.peers.peer import Home, Peer
from bench.step.contest import Settings

BASELINE = "tf_keras-mesh"
WORKLOADS = ("gpt2:layer",)
QUICK_PEERS = ("optim-native", "keras3", "tf_keras-mesh", "torch-fused")  # TensorFlow installs Keras 3
DEFAULT_PEERS = (*QUICK_PEERS, "tf_keras")
"""The most informative peers; `-p all` uses every peer."""

AGAINST_PEERS = ("optim-native",)
"""Measured in both versions if `--against` names another and `-p` names no peer."""

BUDGET, QUICK_BUDGET = 60.0, 25.0
A_FEW, PER_PEER = 8, 15.0
"""Seconds to add for each peer beyond a few, so that each has a second process and enough rounds."""

WARM_UP_SECONDS = 1.0
"""Default budget in seconds. A dozen tensors, five peers and a second of warm-up leave half of a minute for rounds on
two idle cores; the frameworks use the rest to start. `--quick` uses the most informative peers, in one process each.
"""

MORE = (
    ("-w resnet50", "a whole model of 161 tensors; -w gpt2 one of 124 million parameters"),
    ("-p all", "every peer"),
    ("-o adamw -o lion", "other optimizers; --clipnorm, --use-ema and others add to the step"),
    ("--mesh 2x2 --layout fsdp", "another mesh and layout"),
    ("--in-situ", "the step's share of the time with a forward and backward pass"),
)
"""Options of `dtopt bench` that go beyond the default."""


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
      cases, peers: every peer on every case.
      baseline: name of the peer that ratios are taken to; the first that ran takes its place if it cannot.
      settings: rounds and caps.
      seed: of the order within rounds.
      command: what the user typed, for the record; again: the words of it that every row's `rerun` repeats.
    """

    cases: tuple[Case, ...]
    peers: tuple[Peer, ...]
    baseline: str
    settings: Settings = field(default_factory=Settings)
    seed: int = 0
    command: str = ""
    again: tuple[str, ...] = ()


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
    budget: float | None = None,
    processes: int | None = None,
    shapes: Shapes | None = None,
    against: Home | None = None,
    quick: bool = False,
    seed: int = 0,
    threads: int | None = None,
    timeout: float = Settings.timeout,
    options: Options | None = None,
    profile: Path | None = None,
    command: str = "",
) -> Plan:
    """Make a plan from the options of `dtopt bench step`; missing options use the defaults above.

    Raises: UnknownNameError, OptionError (mesh, threads), UnsupportedError (this machine lacks the device).
    """
    if shapes and workload:
        raise OptionError("--workload and --shapes exclude each other; give one")
    if layout not in layouts.RULES:
        raise UnknownNameError(f"no layout rule is called {layout!r}; there are: {', '.join(layouts.RULES)}")
    shared: dict[str, Any] = {
        "mesh": layouts.parse_mesh(mesh),
        "layout": layout,
        "device": environment.find_device(device),
        "seed": seed,
        "threads": threads_of(threads),
        "options": options or Options(),
    }
    if shapes:
        shared |= {"shapes": shapes.tensors, "shapes_from": shapes.source}
    names = [shapes.name] if shapes else [workloads.workload(name).name for name in workload or WORKLOADS]
    texts = [algorithms.algorithm(text).text for text in optimizer or ("adam",)]
    cases = tuple(Case(workload=name, optimizer=text, **shared) for name in names for text in texts)
    if profile and len(cases) > 1:
        raise OptionError(f"--profile traces one case, and these are {len(cases)}; name one workload and one optimizer")
    peers_, base = _versions(against, peer) if against else _peers(peer, quick, baseline)
    pace = Pace(rounds, budget or (QUICK_BUDGET if quick else BUDGET + PER_PEER * max(0, len(peers_) - A_FEW)))
    again = ["--against", against.source] if against else ["--baseline", baseline]
    again += ["--rounds", str(rounds)] if rounds else ["--budget", f"{pace.budget:g}"]
    again += ["--processes", str(processes or 1)] if processes or quick else []
    many = processes or (1 if quick else None)
    path, forked = profile and profile.absolute(), _share_an_import(peers_, cases[0])
    settings = Settings(pace, many, WARM_UP_SECONDS, timeout, path, forked)
    return Plan(cases, peers_, base, settings, seed, command, tuple(again))


def _peers(names: Sequence[str], quick: bool, baseline: str) -> tuple[tuple[Peer, ...], str]:
    """Return the peers to measure, and the name of the baseline."""
    selection = peers.find(tuple(names) or (QUICK_PEERS if quick else DEFAULT_PEERS))
    return selection, peers.find((baseline,))[0].name


def _share_an_import(selection: Sequence[Peer], case: Case) -> bool:
    """Whether the peers are versions that can be forked from one process with TensorFlow.

    Interpreters of two environments would need two processes, and the addresses of their code would look like a
    difference between the versions. The memory of other peers would not be comparable with that of peers without
    TensorFlow.
    """
    homes = [peer.home for peer in selection if peer.home]
    alike = all("tensorflow" in peer.has.modules for peer in selection) and not any(home.python for home in homes)
    return bool(homes) and alike and case.device == "cpu"


def _versions(other: Home, names: Sequence[str]) -> tuple[tuple[Peer, ...], str]:
    """Return each peer in both versions; the first of the other version is the baseline."""
    chosen = peers.find(tuple(names) or AGAINST_PEERS)
    versions = tuple(version for one in chosen for version in (one, one.at(other)))
    return versions, versions[1].name
