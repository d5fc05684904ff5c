"""Rewrite `get_updates`, `get_gradients`, `minimize`, `compute_gradients` and `apply_gradients`."""

from __future__ import annotations

import libcst as cst

from migrate.code import targets
from migrate.code.findings import BY_HAND, DIFFERS, REWRITTEN, SAME, UNSURE
from migrate.code.places import sharing
from migrate.code.program import Reading

TAPE = "compute the gradients in a tf.GradientTape and pass them to apply_gradients, in a tf.function"
ONLY_GRADIENTS = "give apply_gradients only the pairs of gradients and variables"
COUNTED = "count the steps separately: optimizer.iterations, or step.assign_add(1)"
ADVICE = {
    "get_updates": f"graphs of updates are gone: {TAPE}",
    "get_gradients": f"graphs of gradients are gone: {TAPE}",
    "compute_gradients": TAPE,
    "_compute_gradients": TAPE,
    "minimize": TAPE,
}


def look(reading: Reading, node: cst.Call) -> None:
    """Look at a method of an optimizer that makes a step, or part of one."""
    if not isinstance(node.func, cst.Attribute):
        return
    method, base = node.func.attr.value, node.func.value
    if method not in ADVICE and method != "apply_gradients":
        return
    if not reading.is_optimizer(base):
        likely = "opt" in reading.text(base).rsplit(".", 1)[-1].lower()
        if likely and reading.has_framework and not reading.names.of(node.func):
            if method == "apply_gradients" and _has_only_gradients(node) and not reading.is_graph:
                reading.add(node, SAME)  # whatever it is
            else:
                advice = ADVICE.get(method) or (ADVICE["compute_gradients"] if reading.is_graph else ONLY_GRADIENTS)
                reading.add(node, UNSURE, f"is {reading.text(base)} an optimizer? then: {advice}")
        return
    if method == "apply_gradients":
        _apply(reading, node)
    elif method == "minimize" and _keeps_minimize(reading, node):
        reading.add(node, SAME)
    elif not _is_of_new_graph_optimizer(reading, base):
        reading.add(node, BY_HAND, ADVICE[method])


def _is_of_new_graph_optimizer(reading: Reading, base: cst.BaseExpression) -> bool:
    """Whether it is `tf.train.AdamOptimizer(...)`: the finding for that call describes the step too."""
    canonical_names = reading.names.of(base.func) if isinstance(base, cst.Call) else ()
    return bool(canonical_names) and all(name.startswith("tensorflow.train.") for name in canonical_names)


def _has_only_gradients(node: cst.Call) -> bool:
    return len(node.args) == 1 and not node.args[0].star


def _keeps_minimize(reading: Reading, node: cst.Call) -> bool:
    """Whether it has a closure and a list of variables, as every eager optimizer except Keras 3's accepts them."""
    first = node.args[0].value if node.args else None
    keywords = {a.keyword.value for a in node.args if a.keyword}
    return (
        reading.target != targets.KERAS
        and isinstance(first, cst.Lambda)
        and keywords <= {"var_list", "loss"}
        and not any(isinstance(a.value, cst.Lambda) for a in node.args[1:])
    )


def _apply(reading: Reading, node: cst.Call) -> None:
    if _has_only_gradients(node):
        if reading.is_graph:
            reading.add(node, BY_HAND, ADVICE["compute_gradients"])
        elif _is_shared(reading, node):
            reading.add(node, DIFFERS, "the optimizer steps other models too: build it with the variables of all")
        else:
            reading.add(node, SAME)
        return
    more = [argument for argument in node.args[1:] if not _is_step(argument)]
    step = next((argument for argument in node.args[1:] if _is_step(argument)), None)
    if step is None and reading.target == targets.TF_KERAS:
        reading.add(node, SAME)
        return
    if more or step is None or not isinstance(reading.parent(node), cst.Expr) or not reading.is_eager:
        reading.add(node, BY_HAND, TAPE if reading.is_graph else ONLY_GRADIENTS if step is None else COUNTED)
        return
    counter = reading.text(step.value)
    reading.edits[node] = _without_step
    reading.add(
        node,
        REWRITTEN if counter == "None" else BY_HAND,
        ""
        if counter == "None"
        else f"its steps are counted in optimizer.iterations; {counter}.assign_add(1) if it is read",
    )


def _is_step(argument: cst.Arg) -> bool:
    """Whether an argument after the gradients is the counter of `tf.train`."""
    return argument.keyword.value == "global_step" if argument.keyword else not argument.star


def _is_shared(reading: Reading, node: cst.Call) -> bool:
    base = cst.ensure_type(node.func, cst.Attribute).value
    return reading.target != targets.TF_KERAS and bool(sharing.stepped(reading, base, node))


def _without_step(updated: cst.CSTNode) -> cst.CSTNode:
    call = cst.ensure_type(updated, cst.Call)
    return call.with_changes(args=[call.args[0].with_changes(comma=cst.MaybeSentinel.DEFAULT)])
