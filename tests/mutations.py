"""Damages every file of every case in every way that a seed can think of: `python -m tests.mutations [FOLDER...]`.

Each FOLDER holds cases as `tests/fixtures/corpus` and `tests/fixtures/wild` do, which are the default. `--rounds N`
damages each file N times, half of them with knowledge of its format (`tests.structures`). A child process does some and
is left behind, so that what one of them does to memory or open files is seen, and hurts no other. Each printed line is
a fault: a traceback, a refusal of many or unprintable characters, more than 20 seconds, more than 1 GB, a file left
behind, `inspect` that refuses what is migrated. The last lines count what became of each kind of damage; `changed` is
exact with other names, options or numbers than the original and so another sound file, of which the format keeps no
trace.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import traceback
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import migrate
from migrate.bytes.messages import LONGEST
from optim.errors import DtoptError
from tests import adversary
from tests.damages import BYTES
from tests.structures import restructured, strange_hint
from tests.test_migrate.confirm import confirmed

FIXTURES = Path(__file__).parent / "fixtures"
SECONDS = 20
MEMORY = 1 << 30
AT_ONCE = 40
"""Damages that one child does."""
SUFFIX = {"slots": "", "keras": ".keras", "tf-keras": ".h5", "list": ".npz"}


@dataclass(frozen=True)
class Subject:
    """A file of a case, which is damaged, and what is migrated."""

    case: str
    folder: Path
    source: str
    file: str
    hints: dict[str, Any]


def subjects(folder: Path, match: str) -> list[Subject]:
    """Every file of every case in a folder whose name has `match` in it, with what a person would confirm."""
    found = []
    for name in sorted(p.name for p in folder.iterdir() if match in p.name and (p / "case.json").is_file()):
        case = adversary.case(folder / name)
        with contextlib.suppress(DtoptError, AssertionError):
            case.hints["overrides"] = confirmed(case.folder / case.source, **case.hints)
        files = (p for p in sorted(case.folder.rglob("*")) if p.is_file())
        found += [Subject(name, case.folder, case.source, str(p.relative_to(case.folder)), case.hints) for p in files]
    return found


def changed(path: Path, hints: dict[str, Any], rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Damage a file in place, or a hint; what was done, and the hints."""
    choice = rng.random()
    if choice < 0.08 and hints.get("optimizer_config"):
        return "hint", {**hints, "optimizer_config": strange_hint(hints["optimizer_config"], rng)}
    if choice < 0.55:
        done = restructured(path, rng)
        if done:
            return done, hints
    data = path.read_bytes()
    change = rng.choice(BYTES)
    path.write_bytes(change(data, rng) if len(data) > 1 else b"\0")
    return change.__name__, hints


def with_values(state: migrate.OptimizerState) -> set[tuple[str, bytes, bytes]]:
    """Each slot with the value of its variable, whatever that is called."""
    values = {v.name: b"" if v.array is None else v.array.load().tobytes() for v in state.variables}
    return {
        (slot, values[name], array.load().tobytes())
        for slot, owners in state.slots.items()
        for name, array in owners.items()
    }


def attempted(subject: Subject, seed: int, scratch: Path, original: Any) -> tuple[str, list[str]]:
    """What became of one damage, and what is wrong with that."""
    rng = random.Random(f"{subject.case}/{subject.file}/{seed}")
    shutil.copytree(subject.folder, scratch / "source")
    source = scratch / "source" / subject.source
    done, hints = changed(scratch / "source" / subject.file, subject.hints, rng)
    to = rng.choice(("slots", "slots", "slots", *SUFFIX))
    dest = scratch / f"out{SUFFIX[to]}"
    faults: list[str] = []
    verdict = "refused"
    refusals = []
    try:
        report = migrate.migrate_checkpoint(source, dest, to=to, **hints)
        verdict = report.fidelity
        faults += [f"long or unprintable: {text!r}" for text in (*report.reasons, *report.warnings) if _bad(text)]
        if verdict == "exact" and to == "slots" and original is not None and done != "hint":
            verdict = _compared(migrate.read(dest), original)
    except DtoptError as error:
        refusals.append(error)
        if dest.exists():
            faults.append(f"refused, and there is a target: {error}")
    try:
        migrate.inspect(source, stats=True, **hints)
    except DtoptError as error:
        refusals.append(error)
        if verdict != "refused":
            faults.append(f"migrated, and not inspected: {error}")
    faults += [f"long or unprintable: {error!r}" for error in refusals if _bad(str(error))]
    faults += [f"out of memory: {error}" for error in refusals if "MemoryError" in str(error)]
    faults += [f"left behind: {p.name}" for p in scratch.iterdir() if p.name not in ("source", dest.name)]
    return f"{done}: {verdict}", faults


def _bad(text: str) -> bool:
    return len(text) > LONGEST or not text.isprintable() or not text


def _compared(state: migrate.OptimizerState, original: Any) -> str:
    """An exact state beside that of the sound file."""
    said, pairs = original
    if adversary.fingerprint(state) == said:
        return "exact, the same"
    return "exact, changed" if with_values(state) <= pairs else "exact, changed numbers"


def _child(subject: Subject, seeds: range, scratch: Path, original: Any, out: int) -> None:
    """Do some damages, and say of each on the pipe when it begins and how it ends."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2 * MEMORY,) * 2)
    before, files = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, len(os.listdir("/proc/self/fd"))
    for seed in seeds:
        os.write(out, json.dumps({"begins": seed}).encode() + b"\n")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            verdict, faults = attempted(subject, seed, scratch, original)
        except Exception:
            verdict, faults = "traceback", [traceback.format_exc()[-1200:]]
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        if grown > MEMORY:
            faults.append(f"{grown >> 20} MB")
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        os.write(out, json.dumps({"verdict": verdict, "faults": faults}).encode() + b"\n")
    gc.collect()
    left = len(os.listdir("/proc/self/fd")) - files
    if left > 0:
        os.write(out, json.dumps({"verdict": "", "faults": [f"{left} files stay open"]}).encode() + b"\n")


def in_a_child(subject: Subject, seeds: range, scratch: Path, original: Any) -> list[tuple[int, str, list[str]]]:
    """(seed, what became of it, faults) of each; a child that hangs is ended, and the rest left out."""
    came, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(came)
        try:
            _child(subject, seeds, scratch, original, out)
        finally:
            os._exit(0)
    os.close(out)
    found: list[tuple[int, str, list[str]]] = []
    seed, buffer, ended = seeds.start, b"", ""
    while not ended:
        if not select.select([came], [], [], SECONDS)[0]:
            os.kill(pid, signal.SIGKILL)
            ended = f"more than {SECONDS} s"
        data = os.read(came, 1 << 16)
        buffer += data
        *lines, buffer = buffer.split(b"\n")
        for line in map(json.loads, lines):
            seed = line.get("begins", seed)
            if "verdict" in line:
                found.append((seed, line["verdict"], line["faults"]))
        if not data:
            break
    os.close(came)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        found.append((seed, "killed", [ended or f"died of signal {os.WTERMSIG(status)}"]))
    return found


def _original(subject: Subject) -> Any:
    """What the sound file says, to compare with."""
    try:
        state = migrate.read(subject.folder / subject.source, **subject.hints)
        return adversary.fingerprint(state), with_values(state)
    except DtoptError:
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folders", nargs="*", type=Path, default=[FIXTURES / "corpus", FIXTURES / "wild"])
    parser.add_argument("--rounds", type=int, default=AT_ONCE)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--match", default="")
    given = parser.parse_args()
    for name in ("readers.keras_h5", "readers.tf_object", "writers.slots", "writers.keras_zip", "writers.keras_h5"):
        import_module(f"migrate.{name}")  # once, and not in each child
    every = [subject for folder in given.folders for subject in subjects(folder, given.match)]
    counts: collections.Counter[str] = collections.Counter()
    broken = 0
    with tempfile.TemporaryDirectory() as scratch:
        for first in range(given.first, given.first + given.rounds, AT_ONCE):
            for subject in every:
                seeds = range(first, min(first + AT_ONCE, given.first + given.rounds))
                for seed, verdict, faults in in_a_child(subject, seeds, Path(scratch) / "one", _original(subject)):
                    counts[verdict] += bool(verdict)
                    broken += len(faults)
                    for fault in faults:
                        print(f"{subject.case}/{subject.file} {seed} {verdict}: {fault}", flush=True)
            print(f"{sum(counts.values())} done, {broken} faults", flush=True)
    for verdict, count in sorted(counts.items()):
        print(f"{count:7} {verdict}")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
