"""Damages every file of every case in every way that a seed can think of: `python -m tests.mutations [FOLDER...]`.

Each FOLDER holds cases as `corpus` and `wild` of `tests/fixtures/cases` do, which are the default. `--rounds N` damages
each file N times: as bytes, with knowledge of its format (`structures`), and so that it looks as sound as before
(`plausible`). A child process does some and is left behind, so that what one of them does to memory or
open files is seen, and hurts no other. Each printed line is a fault: a traceback, a refusal of many or unprintable
characters, more than a minute, more than 1 GB, a file left behind, `inspect` that refuses what is migrated.

The last lines are a table: what became of each kind of damage to each kind of file. What is still exact is compared
with what the sound file says: `the same` also where variables only have other names; else what is said otherwise is
named, and the release's own next steps say whether it matters: `right` or `denied` (`not replayed` where a case has
none). The file and seed of one are shown. `denied` is no fault where nothing in the file tells, see docs/limits.md.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import hashlib
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

import numpy as np

import migrate
from migrate import surfaces
from migrate.bytes.messages import LONGEST
from optim.errors import DtoptError
from tests import adversary
from tests.helpers.damages import BYTES
from tests.helpers.plausible import altered
from tests.helpers.structures import restructured, strange_hint
from tests.places import CORPUS, WILD
from tests.test_migrate.confirm import confirmed

SECONDS = 60
MEMORY = 1 << 30
AT_ONCE = 40
"""Damages that one child does."""
HARMLESS = {"variables named otherwise", "variables exchanged"}
"""Slots are with the values of their variables, whatever these are called."""
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


@dataclass(frozen=True)
class Said:
    """All that a state says of the next step, so small that it can be kept."""

    options: dict[str, Any]
    slots: dict[tuple[str, str], bytes]
    variables: dict[str, bytes]
    trained: frozenset[str]

    @classmethod
    def of(cls, state: migrate.OptimizerState) -> Said:
        options = {"class": state.algorithm, "counter": state.iterations, **state.hyperparameters, **state.scalars}
        slots = {(s, n): _digest(a) for s, owners in state.slots.items() for n, a in owners.items()}
        variables = {v.name: _digest(v.array) for v in state.variables}
        return cls(options, slots, variables, frozenset(v.name for v in state.variables if v.trainable))

    def beside(self, sound: Said) -> list[str]:
        """What it says otherwise than another state."""
        keys = sorted((self.options.keys() | sound.options.keys()) - {"name"})
        found = [k for k in keys if repr(self.options.get(k)) != repr(sound.options.get(k))]
        if self._by_value() != sound._by_value():
            found += _kinds("slots", self.slots, sound.slots)
        if self.variables != sound.variables:
            found += _kinds("variables", self.variables, sound.variables)
        elif self.trained != sound.trained:
            found.append("trained")
        return found

    def _by_value(self) -> set[tuple[str, bytes, bytes]]:
        """Each slot with the value of its variable, whatever that is called."""
        return {(slot, self.variables.get(name, b""), data) for (slot, name), data in self.slots.items()}


def _digest(array: Any) -> bytes:
    if array is None:
        return b""
    try:
        value = np.asarray(array.load())
    except DtoptError:  # of a list the values of variables are no part
        return b"damaged"
    return repr((array.dtype, array.shape)).encode() + hashlib.sha1(value.tobytes()).digest()


def _kinds(what: str, one: dict[Any, bytes], other: dict[Any, bytes]) -> list[str]:
    """How arrays by name differ from others."""
    held = set(other.values())
    kinds = {
        f"{what} gone": other.keys() - one.keys() and len(one) < len(other),
        f"{what} more": len(one) > len(other),
        f"{what} named otherwise": one.keys() != other.keys() and len(one) == len(other),
        f"numbers of {what}": set(one.values()) - held,
        f"{what} exchanged": set(one.values()) <= held and any(one[k] != other[k] for k in one.keys() & other.keys()),
    }
    return [kind for kind, is_so in kinds.items() if is_so]


def changed(path: Path, hints: dict[str, Any], rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Damage a file in place, or a hint; what was done, and the hints."""
    choice = rng.random()
    if choice < 0.08 and hints.get("optimizer_config"):
        return "hint", {**hints, "optimizer_config": strange_hint(hints["optimizer_config"], rng)}
    if choice < 0.75:
        done = altered(path, rng) if choice < 0.45 else restructured(path, rng)
        if done:
            return done, hints
    data = path.read_bytes()
    change = rng.choice(BYTES)
    path.write_bytes(change(data, rng) if len(data) > 1 else b"\0")
    return change.__name__, hints


@surfaces.speaking(surfaces.SHELL)
def attempted(subject: Subject, seed: int, scratch: Path, original: Said | None) -> tuple[str, list[str]]:
    """What became of one damage, and what is wrong with that. Messages are those of the command line."""
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
        if verdict == "exact" and original is not None:
            changes = Said.of(migrate.read(source, **hints)).beside(original)
            verdict = f"exact, {_replayed(subject, source, scratch / 'replayed', hints, changes)}"
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
    faults += [f"long or unprintable: {error!r}" for error in refusals if _is_bad(error)]
    faults += [f"out of memory: {error}" for error in refusals if "MemoryError" in str(error)]
    faults += [f"left behind: {p.name}" for p in scratch.iterdir() if p.name not in ("source", dest.name)]
    return f"{done}: {verdict}", faults


def _is_bad(error: DtoptError) -> bool:
    """A command may be as long as what it repeats: it is never cut."""
    return _bad(error.text) or not all(command.isprintable() for command in error.commands)


def _bad(text: str) -> bool:
    """An option to type is left whole in a text, and is not counted."""
    prose = len(text) - sum(end - start for start, end in surfaces.spans(text))
    return prose > LONGEST or not text.isprintable() or not text


def _replayed(subject: Subject, source: Path, target: Path, hints: dict[str, Any], changes: list[str]) -> str:
    """Whether the next steps of the release deny what was called exact and says something else than the sound file."""
    if not changes or set(changes) <= HARMLESS:
        return ": ".join(("the same", *changes))
    try:
        denied = _is_denied(subject, source, target, hints)
        if denied and _is_denied(subject, subject.folder / subject.source, target, subject.hints):
            return f"not replayed: {', '.join(changes)}"  # what was confirmed for this case is not so
    except (DtoptError, LookupError, FileNotFoundError):
        return f"not replayed: {', '.join(changes)}"
    return f"{'denied' if denied else 'right'}: {', '.join(changes)}"


def _is_denied(subject: Subject, source: Path, target: Path, hints: dict[str, Any]) -> bool:
    try:
        migrate.migrate_checkpoint(source, target, **hints)
        return adversary.error(subject.folder.parent, target) > adversary.ROUNDING
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _child(subject: Subject, seeds: range, scratch: Path, original: Said | None, out: int) -> None:
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


def in_a_child(
    subject: Subject, seeds: range, scratch: Path, original: Said | None
) -> list[tuple[int, str, list[str]]]:
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


def _original(subject: Subject) -> Said | None:
    """What the sound file says, to compare with."""
    try:
        return Said.of(migrate.read(subject.folder / subject.source, **subject.hints))
    except DtoptError:
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folders", nargs="*", type=Path, default=[CORPUS, WILD])
    parser.add_argument("--rounds", type=int, default=AT_ONCE)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--match", default="")
    given = parser.parse_args()
    imported = ("readers.keras_h5", "readers.tf_object", "writers.slots", "writers.keras_zip", "writers.keras_h5")
    for name in ("tensorflow", *(f"migrate.{each}" for each in imported)):
        import_module(name)  # once, and not in each child
    every = [subject for folder in given.folders for subject in subjects(folder, given.match)]
    counts: collections.Counter[str] = collections.Counter()
    first_of: dict[str, str] = {}
    broken = 0
    with tempfile.TemporaryDirectory() as scratch:
        for first in range(given.first, given.first + given.rounds, AT_ONCE):
            for subject in every:
                seeds = range(first, min(first + AT_ONCE, given.first + given.rounds))
                for seed, verdict, faults in in_a_child(subject, seeds, Path(scratch) / "one", _original(subject)):
                    verdict = verdict and f"{Path(subject.file).suffix.partition('-')[0]:7} {verdict}"
                    counts[verdict] += bool(verdict)
                    first_of.setdefault(verdict, f"{subject.case}/{subject.file} {seed}")
                    broken += len(faults)
                    for fault in faults:
                        print(f"{subject.case}/{subject.file} {seed} {verdict}: {fault}", flush=True)
            print(f"{sum(counts.values())} done, {broken} faults", flush=True)
    for verdict, count in sorted(counts.items()):
        told = "exact, the same" not in verdict and ": exact" in verdict
        print(f"{count:7} {verdict}" + (f"   ({first_of[verdict]})" if told else ""))
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
