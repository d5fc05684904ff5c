"""Load a target with Keras itself in a separate process, and compare it with source and file."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from migrate.bytes.arrays import widened
from migrate.proof import model_target, parity, stepping
from migrate.proof.loading import FULL, LARGEST, gradient
from migrate.state import OptimizerState
from optim.errors import CheckpointError, UnsupportedError

SECONDS = 3600
NEAR, NEAR_HALF = 1e-3, 5e-2
"""Tolerance relative to an output's greatest number, for kernels of two releases; the second for 16-bit variables."""
CODE = "Lambda"
"""A layer that contains Python code: a file with one is not loaded here."""
HOMES = ("keras", "tf_keras", "builtins")
"""Packages whose classes a config may name. Importing another would run a stranger's code."""


Outcome = tuple[list[str], list[str], list[str]]
"""What differs in Keras's state, what differs in its steps, and notes."""


def compared(source: OptimizerState, path: str, target: OptimizerState, dest: str, library: str) -> Outcome:
    """Compare a target, loaded by Keras, with its source, also loaded by Keras if that is possible.

    Args:
      path: of the source. target: under the source's names, see `model_target.Compared`.
      library: `keras` or `tf_keras`, which loads the target.
    """
    missing = [name for name in (library, "tensorflow") if find_spec(name) is None]
    if missing:
        return _not_loaded(f"{missing[0]} is not installed (pip install {' '.join(missing)})")
    if target.source is None or target.source.model is None or CODE in json.dumps(target.source.model.config):
        return _not_loaded(f"the model has a {CODE} layer, which is code")
    foreign = sorted({name for name in _named_code(target.source.model.config) if name})
    if foreign:
        return _not_loaded(f"the config names Python code ({', '.join(foreign)[:200]}), which is not run here")
    source_library, silent = _asked(source, path)
    with tempfile.TemporaryDirectory() as scratch:
        ended = _run(scratch, dest, library, *((path, source_library) if source_library else ()))
        seen = _results(scratch, "seen") or {"problem": ended}
        problem = str(seen.get("problem", ""))
        if problem and "custom_object" in problem:
            return _not_loaded(f"{library} needs the model's own classes ({problem.splitlines()[0][:200]})")
        if problem:
            return [f"{library} cannot use it: {' '.join(problem.split())[:400]}"], [], []
        note = f"{library} {seen['version']} loaded it, in a separate process"
        missing_arrays = list(_missing_arrays(target, seen))
        if missing_arrays:
            return missing_arrays, [], [note]
        off, note = _compare_step(source, seen, os.path.join(scratch, "after.npz"), note, library)
        other, silent = (
            _compare_outputs(source, source_library, _results(scratch, "answers") or {"silent": ended})
            if source_library
            else ("", silent)
        )
    return [], [x for x in (off, other) if x], [x for x in (note, silent) if x]


def _not_loaded(why: str) -> Outcome:
    return [], [], [f"not loaded: {why}"]


def _named_code(item: Any) -> Iterator[str]:
    """Yield the names that Keras would import from elsewhere: classes of other modules, and Python functions."""
    if isinstance(item, list):
        for inner in item:
            yield from _named_code(inner)
    if not isinstance(item, dict):
        return
    module, name, config = item.get("module"), item.get("class_name"), item.get("config")
    if isinstance(module, str) and module.partition(".")[0] not in HOMES:
        yield f"{module}.{name}"
    elif name == "function" and isinstance(config, str) and hasattr(builtins, config):
        yield f"builtins.{config}"
    for inner in item.values():
        yield from _named_code(inner)


def _asked(source: OptimizerState, path: str) -> tuple[str, str]:
    """The library that loads the source's model, empty if it is not loaded; and a note."""
    stored = source.source
    if stored is None or stored.model is None or stored.format not in model_target.FORMATS or not os.path.isfile(path):
        return "", ""
    version = stored.versions.keras_number
    library = "keras" if version and version[0] >= 3 else "tf_keras"
    config = stored.model.config
    if find_spec(library) is None or CODE in json.dumps(config) or any(_named_code(config)):
        return "", ""
    if sum(int(np.prod(v.shape, dtype=np.int64)) for v in source.variables) > LARGEST:
        return "", "answers were not compared, because the model is large"
    return library, ""


def _compare_outputs(source: OptimizerState, library: str, answers: dict[str, Any]) -> tuple[str, str]:
    if "silent" in answers:
        return "", f"answers were not compared: {answers['silent']}"
    if answers["worst"] <= (NEAR if all("float16" not in v.dtype for v in source.variables) else NEAR_HALF):
        return "", f"it answers as the source does in {library}"
    return (
        f"for the same input, the model's outputs differ from the source's in {library} ({answers['worst']:.2g} of it)",
        "",
    )


def _run(*words: str) -> str:
    """Run the program `loading` in a separate process; return how that ended."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "migrate.proof.loading", *words],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={**os.environ, **quiet, "PYTHONPATH": paths},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"loading took more than {SECONDS} s"
    if done.returncode == FULL:
        raise CheckpointError(f"{done.stderr.strip().splitlines()[-1]}: no disk space for Keras's results; free some")
    return f"the process ended with {done.returncode}: {(done.stderr.strip().splitlines() or ['nothing'])[-1]}"


def _results(folder: str, name: str) -> dict[str, Any]:
    try:
        with open(os.path.join(folder, f"{name}.json"), encoding="utf-8") as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return {}


def _seen(row: list[Any]) -> model_target.Print:
    return tuple(row[0]), row[1], bytes.fromhex(row[2])


def _missing_arrays(target: OptimizerState, seen: dict[str, Any]) -> Iterator[str]:
    if seen["iterations"] != target.iterations:
        yield f"loaded, its optimizer counts {seen['iterations']} steps, not {target.iterations}"
    weights, kept = (Counter(map(_seen, seen[key])) for key in ("weights", "kept"))
    for variable in target.variables:
        if variable.array is not None and model_target.print_of(variable.array) not in weights:
            yield f"loaded, no weight of the model is {variable.name}"
    expected: Counter[model_target.Print] = Counter()
    for slot, per in target.slots.items():
        for name, array in per.items():
            fingerprint = model_target.print_of(array)
            expected[fingerprint] += 1
            if expected[fingerprint] > kept[fingerprint]:
                yield f"loaded, no slot of the optimizer is {slot} of {name}"


def _compare_step(source: OptimizerState, seen: dict[str, Any], after: str, note: str, library: str) -> tuple[str, str]:
    try:
        worst = _worst_error(source, [_seen(row) for row in seen["trained"]], after)
    except UnsupportedError as error:
        return "", f"{note}; {error}"
    if worst <= 1:
        return "", f"{note}, and made a step"
    return f"{note}; a step of {library} differs from the source's own by {worst:.3g} times the rounding tolerance", ""


def _worst_error(source: OptimizerState, rows: list[model_target.Print], out: str) -> float:
    model_target.check_single(source)
    if not os.path.exists(out):
        raise UnsupportedError("no step was made, because the model is large")
    ours = stepping.parity_source(source)
    values = {v.name: v.array for v in source.variables if v.array is not None}
    owners: dict[model_target.Print, list[str]] = {}
    for name in model_target.trained(source):
        if name in values:
            owners.setdefault(model_target.print_of(values[name]), []).append(name)
    gradients = {str(i): partial(gradient, i, *row[:2]) for i, row in enumerate(rows)}
    clip = parity.gradient_scale(ours, gradients)
    worst = 0.0
    with np.load(out) as after:
        for i, row in enumerate(rows):
            g, got = clip(gradients[str(i)]()), widened(after[str(i)], row[1]).reshape(row[0])
            errors = [
                _error(ours, stepping.numbers(values[name]), g, model_target.slots_of(source, name), got, row[1])
                for name in owners.get(row, ())
            ]
            worst = max(worst, min(errors)) if errors else worst
    return worst


def _error(
    ours: parity.Source, p: np.ndarray, g: np.ndarray, slots: parity.Slots, got: np.ndarray, dtype: str
) -> float:
    want, magnitude = parity.step(ours, p, g, slots)
    magnitude = magnitude * (1 + model_target.rounded(ours) / 1e-6)
    return stepping.error(got, want, magnitude, model_target.rounded_to(dtype))
