"""Every report of every fixture, one fact a line: `python -m tests.golden_reports [--write] [--match TEXT]`.

For each source: `inspect`, `checkpoint` to each target, and `verify` of what was written, as the command line prints
them in JSON. A source that asks for its config gets the one of its `case.json`. The commands that print a fact are
named before it, so that a fact of several commands is one line. Paths, times and measured errors are left out.

Without `--write` it prints how the reports differ from `tests/fixtures/reports.txt` and ends with 1 if they do.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
import hashlib
import io
import json
import multiprocessing
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from tests.places import CASE_FOLDER, FIXTURES

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

REPORTS = FIXTURES / "reports.txt"
TARGETS = {"slots": "target", "keras": "target.keras", "tf-keras": "target.h5", "list": "target.npz"}
SELF_CONTAINED = ("h5", "keras", "saved_model")
"""Formats of `case.json` whose files store the optimizer's config."""
HEAD = "=== "
VERIFY = ":verify"


def sources() -> list[str]:
    """Every checkpoint among the cases, relative to their folder."""
    from migrate.batches import naming

    with _among_cases():
        found = naming._tree(".", "")
    return sorted(os.path.normpath(path) for path in found if not path.endswith(".npz") or "/source/" in path)


@contextlib.contextmanager
def _among_cases() -> Iterator[None]:
    before = os.getcwd()
    os.chdir(CASE_FOLDER)
    try:
        yield
    finally:
        os.chdir(before)


def report(source: str, verify: bool = True) -> str:
    """What the commands print about one source. Runs in the folder of the cases."""
    facts: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        hints = _hints(source, Path(folder))
        for command, words in _commands(source, folder, hints, verify):
            for fact in _facts(words, folder):
                facts.setdefault(fact, []).append(command)
    lines = sorted(f"{fact}  [{' '.join(dict.fromkeys(commands))}]" for fact, commands in facts.items())
    return "\n".join([HEAD + source, *lines, ""])


def _commands(source: str, folder: str, hints: list[str], verify: bool) -> Iterator[tuple[str, list[str]]]:
    """Name and words of each command, in the order in which they run."""
    yield "inspect", ["inspect", source, *hints]
    if hints:
        yield "bare", ["checkpoint", source, os.path.join(folder, "bare"), "--dry-run"]
    for target, name in TARGETS.items():
        dest = os.path.join(folder, name)
        yield target, ["checkpoint", source, dest, "--to", target, *hints]
        if verify and os.path.exists(dest):
            yield f"{target}{VERIFY}", ["verify", source, dest, *hints]


def _hints(source: str, folder: Path) -> list[str]:
    """Options with the config, and for a list the variables, of the case that a source is part of."""
    case = next((p / "case.json" for p in (CASE_FOLDER / source).parents if (p / "case.json").is_file()), None)
    if case is None:
        return []
    document = json.loads(case.read_text())
    optimizer = document.get("optimizer")
    if "to" in document:
        config = document.get("config") or (document["optimizer_config"] if document.get("needs_config") else None)
    elif isinstance(optimizer, dict) and "class" in optimizer and document.get("format") not in SELF_CONTAINED:
        config = {"class_name": optimizer["class"], "config": optimizer.get("config") or optimizer.get("args", {})}
    else:
        return []
    options = {"--optimizer-config": config}
    if source.endswith((".npz", ".npy", ".pkl")):
        options["--variables"] = [{"name": v["name"], "shape": v["shape"]} for v in document["trainable"]]
    words = []
    for option, value in options.items():
        if value is not None:
            path = folder / f"{option.strip('-')}.json"
            path.write_text(json.dumps(value, default=str))
            words += [option, str(path)]
    return words


def _facts(words: Sequence[str], folder: str) -> list[str]:
    """The facts that a command prints."""
    from dtopt_cli import app
    from migrate.proof import loaded, loading

    printed, errors = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.ExitStack() as around:
        around.enter_context(mock.patch.object(sys, "argv", ["dtopt", "migrate", *words, "--json"]))
        around.enter_context(mock.patch.object(loaded, "_run", loading.main))  # in this process, which has Keras
        around.enter_context(contextlib.redirect_stdout(printed))
        around.enter_context(contextlib.redirect_stderr(errors))
        try:
            app.main()
        except SystemExit as end:
            code = end.code or 0
    try:
        document = json.loads(printed.getvalue())
    except ValueError:
        document = {"printed": printed.getvalue()}
    facts = [f"exit: {code}", *_flattened(_cleaned(document))]
    if words[0] == "checkpoint" and document.get("written"):
        facts += [f"target.{name}: {digest}" for name, digest in _digests(words[2])]
    return [_without_places(fact, folder) for fact in facts]


def _cleaned(document: dict[str, Any]) -> dict[str, Any]:
    """A report without what changes from run to run, or that others of its values repeat."""
    document = {key: value for key, value in document.items() if key not in ("source", "dest")}
    if isinstance(document.get("parity"), float):
        document["parity"] = "agrees" if document["parity"] <= 1 else "differs"
    matched = document.get("matched")
    if isinstance(matched, dict):  # of each slot how often: `inspect` shows each
        ways = [f"{key.partition('/')[0]} by {way}" for key, way in matched.items()]
        document["matched"] = {way: ways.count(way) for way in ways}
    return document


def _flattened(document: Any, path: str = "") -> Iterator[str]:
    """`path: JSON` of each value; an element of a list is one value."""
    if isinstance(document, dict) and document:
        for key, value in document.items():
            yield from _flattened(value, f"{path}.{key}" if path else key)
    elif isinstance(document, list) and document:
        for element in document:
            yield f"{path}[]: {_text(element)}"
    else:
        yield f"{path}: {_text(document)}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        value = {key: each for key, each in value.items() if each not in ("", None)}
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _digests(target: str) -> Iterator[tuple[str, str]]:
    """Name and digest of each file in a target, apart from names and times that are new in each run."""
    if os.path.isdir(target):
        found = {}
        for path in sorted(Path(target).rglob("*")):
            if path.is_file() and path.name != "checkpoint":
                found[re.sub(r"state-[0-9a-f]+", "state", path.name)] = path.read_bytes()
    elif zipfile.is_zipfile(target):
        with zipfile.ZipFile(target) as archive:
            found = {name: archive.read(name) for name in archive.namelist() if name != "metadata.json"}
    else:
        found = {os.path.basename(target): Path(target).read_bytes()}
    for name, data in found.items():
        content = _of_hdf5(data) if data.startswith(b"\x89HDF") else data
        yield name, hashlib.sha256(content).hexdigest()[:12]


def _of_hdf5(data: bytes) -> bytes:
    """Names and values in an HDF5 file, whose bytes also hold times."""
    import h5py

    found: list[bytes] = []

    def look(name: str, at: Any) -> None:
        found.append(repr((name, sorted((key, repr(value)) for key, value in at.attrs.items()))).encode())
        if isinstance(at, h5py.Dataset):
            found.append(repr((at.shape, str(at.dtype))).encode() + (at[()].tobytes() if at.dtype != object else b""))

    with h5py.File(io.BytesIO(data), "r") as file:
        look("", file)
        file.visititems(look)
    return b"".join(found)


def _without_places(text: str, folder: str) -> str:
    text = text.replace(folder, "FOLDER").replace(str(CASE_FOLDER), "FIXTURES")
    return re.sub(r"\b((?:tf_)?keras|TensorFlow|tensorflow) \d+\.\d+\.\d+(?= loaded it)", r"\1 VERSION", text)


def reports(names: Sequence[str], processes: int = 1, verify: bool = True) -> Iterator[str]:
    """The report of each source, in order."""
    with _among_cases():
        if processes == 1:
            yield from (report(name, verify) for name in names)
            return
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            yield from pool.imap(functools.partial(report, verify=verify), names)


@functools.cache
def stored() -> dict[str, str]:
    """Source -> its report when the reports were last written."""
    blocks = REPORTS.read_text().split(HEAD)[1:] if REPORTS.exists() else []
    return {block.partition("\n")[0]: HEAD + block for block in blocks}


def difference(name: str, now: str, verify: bool = True) -> list[str]:
    """Lines that came and went in a source's report. `verify`: whether it has what `verify` prints."""
    before = stored().get(name, "")
    before = before if verify else "\n".join(_without_verify(before.splitlines()))
    changes = difflib.unified_diff(before.splitlines(), now.splitlines(), name, name, lineterm="", n=0)
    return [line for line in changes if not line.startswith(("---", "@@"))]


def _without_verify(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        fact, _, commands = line.rpartition("  [")
        left = [each for each in commands.rstrip("]").split() if not each.endswith(VERIFY)]
        if not fact:
            yield line
        elif left:
            yield f"{fact}  [{' '.join(left)}]"


def main() -> int:
    """Compare the reports, or write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the reports instead of comparing them")
    parser.add_argument("--match", default="", help="only sources whose path contains this text")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--no-verify", action="store_true", help="compare without `verify`, in half of the time")
    given = parser.parse_args()
    names = [name for name in sources() if given.match in name]
    verify = given.write or not given.no_verify
    made = dict(zip(names, reports(names, given.processes, verify), strict=True))
    if given.write:
        kept = {**stored(), **made} if given.match else made
        REPORTS.write_text("".join(kept[name] for name in sorted(kept)))
        return 0
    changed = [line for name, text in made.items() for line in difference(name, text, verify)]
    print("\n".join(changed) or f"{len(made)} sources are reported as before")
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
