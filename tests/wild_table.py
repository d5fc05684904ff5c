"""Migrates wild cases into every target and replays them: `python -m tests.wild_table [FOLDER] [--to TARGET]`.

FOLDER holds cases as `wild` of `tests/fixtures/cases` does, which is the default. Each row says what the report called
the target and what the target then did. `right`: the source's own gradients, applied to the target, give the variables
that the source had after each step. A model's next losses are the source's as well, where the case holds them. An
approximate conversion is tried again with everything confirmed that it says was assumed.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import migrate
from optim.errors import DtoptError
from tests.helpers import next_steps
from tests.helpers.keras_releases import loss_of_batch
from tests.places import WILD
from tests.test_migrate.confirm import confirmed

SUFFIX = {"slots": "", "keras": ".keras", "tf-keras": ".h5"}
LOSS = 2e-4
"""Relative: kernels of another release round otherwise."""


@dataclass(frozen=True)
class Row:
    case: str
    to: str
    verdict: str
    """`exact and right`, `exact and WRONG`, `confirmed and right`, `confirmed and WRONG`, `approximate`, `refused`."""
    why: str


def cases(folder: Path) -> list[str]:
    """Names of the cases in a folder."""
    return sorted(p.name for p in folder.iterdir() if (p / "case.json").is_file())


def hints_of(document: dict[str, Any]) -> dict[str, Any]:
    config = document.get("config") or (document["optimizer_config"] if document.get("needs_config") else None)
    hints = {} if config is None else {"optimizer_config": config}
    return hints | ({"optimizer_path": document["optimizer"]} if document.get("optimizer") else {})


NOT_OF_A_MIGRATION = {
    "tf29-b-stateful-lstm-h5": "no file holds the state of a stateful RNN",
    "tf29-h-mirrored-sm": "BatchNormalization saw one replica's part of each batch",
    "tf29-e-mixed-precision-sm": "float16 rounds otherwise in another release's kernels",
}
"""Cases whose losses say nothing; their steps with the source's own gradients do."""


def oracle_of(path: Path, document: dict[str, Any]) -> dict[str, np.ndarray]:
    """What the source's own process did, parts of one variable put together."""
    raw = dict(np.load(path))
    names = [re.sub(r"/part_\d+$", "", name) for name in document["trainable"]]
    whole = list(dict.fromkeys(names))
    found = {key: value for key, value in raw.items() if not re.match(r"(at_save/var|grad/\d+|var/\d+)/\d+$", key)}
    for prefix in ("at_save/var", *(f"{kind}/{step}" for kind in ("grad", "var") for step in range(document["n"]))):
        for i, name in enumerate(whole):
            keys = [f"{prefix}/{j}" for j, each in enumerate(names) if each == name]
            parts = [raw[key] for key in keys if key in raw]
            if parts:
                found[f"{prefix}/{i}"] = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return found


def replayed(target: str | Path, document: dict[str, Any], oracle: Any) -> float:
    """Worst error of a slot-variable checkpoint's next steps, in units of what rounding explains."""
    made = SCHEDULES.get(document["what"])
    rate = {} if made is None else {"learning_rate": made(document)}
    return next_steps.of_slots(target, oracle, document["n"], **rate)


def _wrong_steps(target: str, document: dict[str, Any], oracle: Any) -> str:
    """What is wrong with a slot-variable checkpoint; empty if nothing is."""
    worst = replayed(target, document, oracle)
    return "" if worst <= 1 else f"{worst:.3g} times what rounding explains"


def _of_the_tutorial(document: dict[str, Any]) -> Any:
    """The schedule of TensorFlow's transformer tutorial, which the user has."""
    import tensorflow as tf

    from optim import schedules

    config = document["optimizer_config"]["config"]["learning_rate"]["config"]

    class Schedule(schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            step = tf.cast(step, tf.float32) + 1.0
            rate = tf.math.minimum(tf.math.rsqrt(step), step * config["warmup_steps"] ** -1.5)
            return tf.math.rsqrt(tf.cast(config["d"], tf.float32)) * rate

    return Schedule()


def _warm_up(document: dict[str, Any]) -> Any:
    """`WarmUp` of transformers 4.25 around a PolynomialDecay."""
    import tensorflow as tf

    from optim import schedules

    config = document["optimizer_config"]["config"]["learning_rate"]["config"]
    later = schedules.from_config({"class_name": "PolynomialDecay", "config": config["decay_schedule_fn"]["config"]})

    class WarmUp(schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            at, warm = tf.cast(step, tf.float32), float(config["warmup_steps"])
            rising = config["initial_learning_rate"] * tf.math.pow(at / warm, config["power"])
            return tf.where(at < warm, rising, tf.cast(later(at - warm), tf.float32))

    return WarmUp()


def _warmed_up(document: dict[str, Any]) -> Any:
    """`PolynomialWarmUp` of tf-models behind its warm-up: the PolynomialDecay in it."""
    from optim import schedules

    config = document["optimizer_config"]["config"]["learning_rate"]["config"]["after_warmup_lr_sched"]
    return schedules.from_config({"class_name": "PolynomialDecay", "config": config})


SCHEDULES = {
    "d-manager-schedule-subclass": _of_the_tutorial,
    "g-hf-adamweightdecay-warmup": _warm_up,
    "g-tfm-adamw-poly": _warmed_up,
}
"""Schedules of the user's own, which loading asks for."""
NOT_CONFIRMED = ("f-bert-adamweightdecay", "g-tfm-adamw-poly")
"""Cases where what the report says it assumes is wrong, as their users know: a rate that falls, a limit of the norm."""
KNOWN = {"g-hf-adamweightdecay-warmup": {"weight_decay_exclude": ["LayerNorm", "layer_norm", "bias"]}}
"""What only the user knows, and is asked for: the program's own exclusions."""


def _trained(path: str, to: str, document: dict[str, Any], oracle: Any) -> str:
    """What is wrong with a model that Keras loads; empty if nothing is."""
    if to == "keras":
        import keras as library
    else:
        import tf_keras as library

    model = library.models.load_model(path)
    values = {i: np.asarray(v) for i, v in enumerate(model.trainable_variables)}
    starts = next_steps.starts_of(oracle)
    if len(values) != len(starts):
        return f"{len(values)} trainable variables, not {len(starts)}"
    live = [model.trainable_variables[i] for i in next_steps.owners(values, starts)]

    def apply(gradients: list[Any]) -> None:
        given = [(_sparse(g, v.name), v) for g, v in zip(gradients, live, strict=True) if g is not None]
        inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        inner.apply_gradients(given)

    worst = next_steps.error(apply, live, oracle, document["n"])
    problems = [] if worst <= 1 else [f"steps: {worst:.3g} times what rounding explains"]
    if document["id"] in NOT_OF_A_MIGRATION or "loss/0" not in oracle:
        return "; ".join(problems)
    model = library.models.load_model(path)
    for step in range(document["n"]):
        x, y = (_batch(oracle, f"{kind}/{step}/") for kind in "xy")
        loss = loss_of_batch(model, x, y)
        wanted = float(oracle[f"loss/{step}"])
        if not abs(loss - wanted) <= LOSS * abs(wanted):
            problems.append(f"loss of step {step} is {loss:.7g}, not {wanted:.7g}")
    return "; ".join(problems)


def _sparse(gradient: np.ndarray, name: str) -> Any:
    """An embedding's gradient as its lookup gave it: of the rows that were looked up."""
    import tensorflow as tf

    if "embeddings" not in name:
        return tf.constant(gradient)
    rows = np.flatnonzero(np.any(gradient != 0, axis=-1))
    return tf.IndexedSlices(tf.constant(gradient[rows]), tf.constant(rows), tf.constant(gradient.shape))


def _batch(oracle: Any, prefix: str) -> Any:
    found = [oracle[f"{prefix}{i}"] for i in range(sum(key.startswith(prefix) for key in oracle))]
    return found[0] if len(found) == 1 else found


def row(folder: Path, case: str, to: str) -> Row:
    """One case migrated into one target and replayed."""
    document = json.loads((folder / case / "case.json").read_text())
    oracle = oracle_of(folder / case / "oracle.npz", document)
    source, hints = folder / case / document["source"], hints_of(document)
    with tempfile.TemporaryDirectory() as scratch:
        target = os.path.join(scratch, f"target{SUFFIX[to]}")
        called, reasons = "exact", ""
        try:
            report = migrate.migrate_checkpoint(source, target, to=to, **hints)
            if report.fidelity != "exact":
                called, reasons = "confirmed", "; ".join(report.reasons)
                try:
                    if document["what"] in NOT_CONFIRMED:
                        raise ValueError("not confirmed")
                    overrides = confirmed(source, **hints) | KNOWN.get(document["what"], {})
                    report = migrate.migrate_checkpoint(
                        source, target, to=to, overwrite=True, overrides=overrides, **hints
                    )
                except (AssertionError, ValueError):
                    called = "approximate"
                called = called if report.fidelity == "exact" else "approximate"
        except DtoptError as error:
            return Row(case, to, "refused", str(error))
        if document["n"] == 0:
            return Row(case, to, f"{called}, nothing to replay", reasons)
        try:
            wrong = (_wrong_steps if to == "slots" else lambda *a: _trained(a[0], to, *a[1:]))(target, document, oracle)
        except Exception as error:  # whatever a library raises: the target is not usable
            wrong = f"{type(error).__name__}: {error}"
    if called == "approximate":
        return Row(case, to, "approximate", f"{reasons} | {wrong or 'right'}")
    return Row(case, to, f"{called} and {'WRONG' if wrong else 'right'}", wrong or reasons)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", nargs="?", type=Path, default=WILD)
    parser.add_argument("--match", default="")
    parser.add_argument("--to", choices=list(SUFFIX), action="append")
    given = parser.parse_args()
    counts: dict[str, collections.Counter[str]] = {}
    for case in cases(given.folder):
        if not re.search(given.match, case):
            continue
        for to in given.to or json.loads((given.folder / case / "case.json").read_text())["to"]:
            found = row(given.folder, case, to)
            counts.setdefault(to, collections.Counter())[found.verdict] += 1
            print(f"{found.to:9} {found.verdict:20} {case}  {' '.join(found.why.split())[:400]}", flush=True)
    for to, verdicts in counts.items():
        print(f"{to}: {sum(verdicts.values())} cases; {', '.join(f'{n} {v}' for v, n in verdicts.most_common())}")
    return int(any("WRONG" in verdict for verdicts in counts.values() for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
