"""Report models that are frozen after they are compiled, as most GANs do with the discriminator.

Keras before 3 trains what was trainable in `compile`, Keras 3 what is trainable in the first step. Measured with Keras
2.2.4, TensorFlow 2.0, 2.4, 2.8 and 2.15, and Keras 3.15.
"""

from __future__ import annotations

import libcst as cst

from migrate.code import calls, names, targets
from migrate.code.findings import DIFFERS
from migrate.code.program import Reading
from migrate.code.usage import is_compile
from migrate.generations import traits

STEPS = ("train_on_batch", "fit", "fit_generator")
FLAG = ".trainable"


def look(reading: Reading) -> None:
    """Report each `model.trainable = False` between the `compile` of this model and of one around it."""
    frozen = [node for node in reading.tree.all(cst.Assign) if names.dotted(node.targets[0].target).endswith(FLAG)]
    if not frozen or reading.target == targets.TF_KERAS or not reading.has_framework or not _is_old(reading):
        return
    order = {node: index for index, node in enumerate(reading.tree.nodes)}
    compiled = [(order[call], _base(call)) for call in reading.tree.all(cst.Call) if is_compile(call)]
    switched = {names.dotted(n.targets[0].target) for n in frozen if names.dotted(n.value) != "False"}
    for node in frozen:
        model = names.dotted(node.targets[0].target).removesuffix(FLAG)
        step = next((c for c in reading.usage.methods.get(model, ()) if _method(c) in STEPS), None)
        later = {base for at, base in compiled if at > order[node]}
        if step is not None and later and model not in later and f"{model}{FLAG}" not in switched:
            reading.add(node, DIFFERS, _advice(model, _method(step)))


def _advice(model: str, step: str) -> str:
    return (
        f"Keras 3 trains what is trainable in a model's first step, and not what was in its compile: {model} would stay"
        f" as it is. Before each {model}.{step}(...) set {model}.trainable = True, and after it False"
    )


def _is_old(reading: Reading) -> bool:
    releases = calls.releases_of(names.of_string("sgd", reading.program.code), reading.releases)
    return any(not traits(release.generation).has_backends for release in releases)


def _method(call: cst.Call) -> str:
    return cst.ensure_type(call.func, cst.Attribute).attr.value


def _base(call: cst.Call) -> str:
    return names.dotted(cst.ensure_type(call.func, cst.Attribute).value)
