"""Alters every case of a folder in every way and replays what is called exact: `python -m tests.adversary [FOLDER]`.

FOLDER holds cases as `corpus` of `tests/fixtures/cases` does, which is the default, or as `wild` there. Each printed
line is an alteration after which a report said `exact` and the next steps were not the release's; `told` marks those
that the source could have told.
The last lines count, for each kind, how many were tried, refused, approximate, exact and right, exact and denied.
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import migrate
from migrate.bytes.checkpoint_paths import find_prefix
from optim.errors import DtoptError
from tests import wild_table
from tests.alterations import Case
from tests.alterations.alteration import Alteration
from tests.helpers import next_steps
from tests.places import CORPUS
from tests.test_migrate.confirm import confirmed

LISTS = ("weights.npz", "weights.npy", "weights.pkl")
SAYS_ALL = ("h5", "keras", "saved_model")
ROUNDING = 4.0
"""Times what rounding explains: some of these releases were not deterministic."""


@dataclass(frozen=True)
class Outcome:
    """`verdict`: refused, approximate, same (exact, and the very state of the source), right or denied."""

    alteration: Alteration
    verdict: str
    why: str = ""


def cases(folder: Path) -> list[str]:
    """Names of the cases in a folder that say what happened next."""
    return sorted(p.name for p in folder.iterdir() if (p / "oracle.npz").is_file())


def case(folder: Path) -> Case:
    """One case with the hints that its format needs."""
    document = json.loads((folder / "case.json").read_text())
    if "format" not in document:
        return _wild(folder, document)
    kind, optimizer = document["format"], document["optimizer"]
    if kind in (*LISTS, "saved_model"):
        source = kind
    else:
        source = next(f for f in document["source"] if f.endswith((".index", ".h5", ".keras"))).removesuffix(".index")
    hints: dict[str, Any] = {}
    if kind not in SAYS_ALL:
        config = optimizer.get("config") or optimizer["args"]
        hints["optimizer_config"] = {"class_name": optimizer["class"].split(".")[-1], "config": dict(config)}
    if kind in LISTS:
        hints["variables"] = [{"name": v["name"], "shape": v["shape"]} for v in document["trainable"]]
        hints["generation"] = generation(document)
    return Case(folder / "source", source, hints)


def _wild(folder: Path, document: dict[str, Any]) -> Case:
    """A case as `tests/fixtures/cases/wild` has them."""
    source = folder / document["source"]
    within = find_prefix(str(source)) or str(source)
    return Case(folder / "source", str(Path(within).relative_to(folder / "source")), wild_table.hints_of(document))


def generation(document: dict[str, Any]) -> str:
    name, module = document["generation"], document["optimizer"].get("module", "")
    if document["framework"] == "keras":
        return {"keras122": "keras1", "keras231": "keras2.3"}.get(name, "keras2")
    if document.get("plan") == "exp" or "experimental" in module:
        return "experimental"
    if document.get("plan") == "new":
        return "optimizer"
    return "optimizer_v1" if name in ("tf10", "tf14", "tf112", "tf113") else "optimizer_v2"


def fingerprint(state: migrate.OptimizerState) -> str:
    """All that the next step depends on, as text that can be compared."""
    arrays = {
        f"{slot}/{name}": (array.dtype, array.shape, np.asarray(array.load()).tobytes())
        for slot, owners in state.slots.items()
        for name, array in owners.items()
    }
    trained = [(v.name, v.shape, v.dtype) for v in state.variables if v.trainable]
    values = sorted((k, v) for k, v in state.hyperparameters.items() if k != "name")
    return repr(
        (
            state.algorithm,
            values,
            state.iterations,
            sorted(state.scalars.items()),
            sorted(arrays.items()),
            sorted(trained),
        )
    )


def error(folder: Path, target: Path) -> float:
    """The worst error of the next steps, in units of what rounding explains."""
    import optim

    document, oracle = json.loads((folder / "case.json").read_text()), np.load(folder / "oracle.npz")
    if "format" not in document:
        try:
            return wild_table.replayed(target, document, wild_table.oracle_of(folder / "oracle.npz", document))
        except LookupError:  # other variables are called trained
            return float("inf")
    found = [v.name for v in optim.describe_checkpoint(target).variables if v.trainable]
    named = [v["name"].removesuffix(":0") for v in document["trainable"]]
    trained = named if set(named) == set(found) else found
    if len(trained) != len(named):
        return float("inf")
    return next_steps.of_slots(target, oracle, document["n"], trained)


def attacked(folder: Path, scratch: Path, *, only_told: bool = False) -> list[Outcome]:
    """Every alteration of one case, and what became of it; nothing if it is refused or wrongly confirmed."""
    original = case(folder)
    try:
        state = migrate.read(original.folder / original.source, **original.hints)
        if state.fidelity != "exact":  # what a person would confirm is confirmed, so that nothing else may be doubted
            told = confirmed(original.folder / original.source, **original.hints)
            told.pop("iterations", None)  # else nothing would be learnt from the counter
            original.hints["overrides"] = told
            state = migrate.read(original.folder / original.source, **original.hints)
            migrate.migrate_checkpoint(original.folder / original.source, scratch / "confirmed", **original.hints)
            if state.fidelity == "exact" and error(folder, scratch / "confirmed") > ROUNDING:
                return []  # what was assumed is wrong in this case, and confirmed by mistake
    except (DtoptError, AssertionError):
        return []
    known = {fingerprint(state): "same"}
    made = (each for each in original.alterations() if each.told or not only_told)
    return [_outcome(folder, original, each, scratch / str(i), known) for i, each in enumerate(made)]


def _outcome(folder: Path, original: Case, each: Alteration, scratch: Path, known: dict[str, str]) -> Outcome:
    shutil.copytree(original.folder, scratch / "source")
    hints = copy.deepcopy(original.hints)
    each.alter(scratch / "source", hints)
    source, target = scratch / "source" / original.source, scratch / "target"
    try:
        report = migrate.migrate_checkpoint(source, target, dry_run=True, **hints)
        if report.fidelity != "exact":
            return Outcome(each, "approximate", "; ".join(report.reasons))
        said = fingerprint(migrate.read(source, **hints))
        if said not in known:
            migrate.migrate_checkpoint(source, target, **hints)
            worst = error(folder, target)
            known[said] = "right" if worst <= ROUNDING else f"denied: {worst:.3g} times what rounding explains"
        verdict, _, why = known[said].partition(": ")
        return Outcome(each, verdict, why)
    except DtoptError as refused:
        return Outcome(each, "refused", str(refused))
    finally:
        shutil.rmtree(scratch)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", nargs="?", type=Path, default=CORPUS)
    parser.add_argument("--match", default="")
    given = parser.parse_args()
    counts: dict[str, collections.Counter[str]] = {}
    told = 0
    for name in (name for name in cases(given.folder) if given.match in name):
        with tempfile.TemporaryDirectory() as scratch:
            for found in attacked(given.folder / name, Path(scratch)):
                counts.setdefault(found.alteration.kind, collections.Counter())[found.verdict] += 1
                if found.verdict == "denied":
                    told += found.alteration.told
                    mark = "TOLD" if found.alteration.told else "    "
                    print(f"{mark} {name}: {found.alteration.kind}, {found.alteration.what}: {found.why}", flush=True)
    for kind, verdicts in counts.items():
        print(f"{kind}: {sum(verdicts.values())} tried; {', '.join(f'{n} {v}' for v, n in verdicts.most_common())}")
    return int(told > 0)


if __name__ == "__main__":
    sys.exit(main())
