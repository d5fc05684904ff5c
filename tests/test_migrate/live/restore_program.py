"""Run by `test_restore_backends.py` on the backend of KERAS_BACKEND: restore into optimizers of `for_keras` or Keras.

    python -m tests.test_migrate.live.restore_program CASES

CASES is a JSON file with a list of `{"name", "kind", "source", "hints", "overrides", "hints_of_restore", "oracle",
"steps"}`. Prints one JSON line for each: fidelity, reasons, and the worst error of the next steps in units of what
rounding explains, at first and once more after the optimizer has stepped and is restored again with the variables'
values.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np

import migrate
import optim
from tests.helpers import next_steps
from tests.test_migrate.live import test_restore


def array(variable: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(variable.value))


class Live:
    """A variable that `next_steps` reads."""

    def __init__(self, variable: Any):
        self.variable = variable

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return array(self.variable)


def new_optimizer(kind: str, state: migrate.OptimizerState) -> Any:
    """A new optimizer with the source's hyperparameters."""
    if kind == "keras":
        return test_restore.make(kind, state)
    arguments = {**state.hyperparameters, "repeated_rows": []}  # gradients are dense here
    return optim.for_keras(getattr(optim, state.algorithm).from_config(arguments))


def run(case: dict[str, Any]) -> dict[str, Any]:
    state = migrate.read(case["source"], **case["hints"])
    oracle = np.load(case["oracle"])
    names = [v.name for v in state.variables if v.trainable]
    start = [oracle[f"at_save/var/{i}"] for i in range(len(names))]
    live = {n: keras.Variable(x, name=n.replace("/", "_")) for n, x in zip(names, start, strict=True)}
    optimizer = new_optimizer(case["kind"], state)
    variables = list(live.values())

    def apply(gradients: list[Any]) -> None:
        known = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
        optimizer.apply([keras.ops.convert_to_tensor(g) for g, _ in known], [v for _, v in known])

    errors = []
    for again in (False, True):
        report = migrate.restore(
            case["source"],
            optimizer,
            live,
            overrides=case["overrides"],
            restore_variables=again and all(v.array is not None for v in state.variables if v.trainable),
            **case["hints_of_restore"],
        )
        for variable, value in zip(variables, start, strict=True):
            variable.assign(value)
        errors.append(next_steps.error(apply, [Live(v) for v in variables], oracle, case["steps"]))
    return {"fidelity": report.fidelity, "reasons": report.reasons, "errors": errors, "what": report.dest}


def main(path: str) -> None:
    warnings.simplefilter("ignore")
    for case in json.loads(Path(path).read_text(encoding="utf-8")):
        print(json.dumps({"name": case["name"], **run(case)}), flush=True)
    assert "tensorflow" not in sys.modules, "TensorFlow was imported"


if __name__ == "__main__":
    main(sys.argv[1])
