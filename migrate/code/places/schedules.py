"""Rewrite learning rate schedules from outside of `keras.optimizers.schedules`, or from places that are gone.

Sources: `tensorflow/python/training/learning_rate_decay.py` 1.15, `python/keras/optimizer_v2/learning_rate_schedule.py`
2.3, `tensorflow_addons/optimizers/cyclical_learning_rate.py` 0.23, Keras 3.15 `learning_rate_schedule.py`.
"""

from __future__ import annotations

import re

import libcst as cst

from migrate.code import names, targets
from migrate.code.findings import BY_HAND, REWRITTEN
from migrate.code.imports import is_gone
from migrate.code.places import constructors
from migrate.code.program import Reading
from migrate.code.schedules import SCHEDULES

DECAYS = {
    "exponential_decay": "ExponentialDecay",
    "inverse_time_decay": "InverseTimeDecay",
    "polynomial_decay": "PolynomialDecay",
    "piecewise_constant": "PiecewiseConstantDecay",
    "piecewise_constant_decay": "PiecewiseConstantDecay",
    "cosine_decay": "CosineDecay",
    "cosine_decay_restarts": "CosineDecayRestarts",
}
"""Functions of `tf.train` -> Keras's class with the same arguments and defaults, except the step."""
STEPS = ("global_step", "x")
TRAIN = re.compile(r"^tensorflow\.train\.(\w*(?:_decay|_decay_restarts|piecewise_constant))$")
EXPERIMENTAL = re.compile(r"^(?:tensorflow\.keras|keras|tf_keras)\.experimental\.(\w*CosineDecay\w*)$")
CYCLICAL = re.compile(r"^tensorflow_addons\.optimizers\.(?:\w+\.)*(\w*CyclicalLearningRate)$")
OWN = "write it as a subclass of LearningRateSchedule, which optim accepts too"


def look(reading: Reading, node: cst.Call) -> None:
    """Look at a call that creates a schedule that the target has elsewhere, or not at all."""
    canonical_names = reading.names.of(node.func)
    name = next(iter(canonical_names)) if len(canonical_names) == 1 else ""
    package = "tf_keras" if reading.target == targets.TF_KERAS else "keras"
    if decay := TRAIN.match(name):
        _report_decay_function(reading, node, decay[1], package)
    elif old := EXPERIMENTAL.match(name):
        _rewrite_experimental(reading, node, old[1], package)
    elif cyclical := CYCLICAL.match(name):
        reading.add(
            node, BY_HAND, f"Keras has no {cyclical[1]}, and TensorFlow Addons ends with TensorFlow 2.15: {OWN}"
        )


def _report_decay_function(reading: Reading, node: cst.Call, function: str, package: str) -> None:
    cls = DECAYS.get(function)
    if cls is None:
        reading.add(node, BY_HAND, f"Keras has no {function}: {OWN}")
        return
    step = 0 if function.startswith("piecewise") else 1
    arguments = []
    for index, argument in enumerate(node.args):
        key = argument.keyword.value if argument.keyword else ""
        if key in (*STEPS, "name") or (not key and index == step):
            continue
        key = {"learning_rate": "initial_learning_rate"}.get(key, key)
        arguments.append(f"{key}={reading.text(argument.value)}" if key else reading.text(argument.value))
    new = f"{package}.optimizers.schedules.{cls}({', '.join(arguments)})"
    reading.add(
        node, BY_HAND, f"give the optimizer {' '.join(new.split())}: it follows the optimizer's own count of steps"
    )


def _rewrite_experimental(reading: Reading, node: cst.Call, cls: str, package: str) -> None:
    if cls not in DECAYS.values():
        reading.add(node, BY_HAND, f"Keras has no {cls} now: {OWN}")
        return
    text = names.dotted(node.func)
    base = text.partition(".experimental.")[0] if ".experimental." in text and package == "keras" else package
    new = f"{base}.optimizers.schedules.{cls}"
    if ".experimental." not in text:
        reading.add(node, BY_HAND, f"it is {new} now, with the same arguments: import it from there")
        return
    reading.edits[node.func] = lambda updated: cst.parse_expression(new)
    if base == package:
        reading.imports.add(f"import {package}")
    reading.add(node, REWRITTEN, "", reading.text(node).replace(text, new, 1))


def look_at_class(reading: Reading, node: cst.Name | cst.Attribute) -> None:
    """Replace a schedule's old class, called or inherited from, by that of the target's Keras."""
    class_names = {m[1] for m in map(SCHEDULES.match, reading.names.of(node)) if m}
    parent = reading.parent(node)
    if len(class_names) != 1 or isinstance(parent, (cst.ImportAlias, cst.AsName, cst.Attribute)):
        return
    sources = reading.names.sources(node)
    if not sources or not all(map(is_gone, sources)):
        return
    keras = "tf_keras" if reading.target == targets.TF_KERAS else "keras"
    new = f"{keras}.optimizers.schedules.{class_names.pop()}"
    reading.edits[node] = lambda updated: cst.parse_expression(new)
    constructors.import_target(reading, keras)
    reading.add(node, REWRITTEN, "", new)
