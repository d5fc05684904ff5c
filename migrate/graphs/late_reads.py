"""Whether an update of a variable may run before all gradients of its step were computed from it.

A kernel of tf.train changes a variable of TensorFlow 1 where it lies, and what reads it, `w/read`, has no copy of it.
`Optimizer.compute_gradients` makes the gradients of one op wait for each other (`gate_gradients=GATE_OP`);
`tf.gradients` does not, so that the gradient of a layer below may be computed from weights that have moved already, and
on TensorFlow 1.13 and 1.15 it is. A resource is copied before it changes while something reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from migrate.graphs.nodes import PASSING, Nodes, node_of

_ALIASES = (*PASSING, "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient", "Switch", "RefSwitch")
"""Ops whose output lies where their input does."""
_OF_SHAPES = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")
"""Ops that read no number of their input."""


def late_read(nodes: Nodes, kernels: Mapping[str, str], others: Mapping[str, str]) -> str | None:
    """What is said of an op that may read a variable after its update, None if none may.

    Args:
      kernels: the ops of an optimizer's step, and the variable that each changes. others: those of other optimizers,
        which count where an op waits for both, as `tf.group(one, other)` does.
    """
    moved = {**kernels, **{name: others[name] for name in _together(nodes, kernels, others)}}
    readers = _readers(nodes, {v for v in moved.values() if nodes.op(v) != "VarHandleOp"}, behind(nodes, kernels))
    reading = sorted({each for per in readers.values() for each in per if each not in moved})
    bits = {name: 1 << place for place, name in enumerate((*reading, *moved))}
    done = before(nodes, behind(nodes, moved), bits)
    for kernel, variable in moved.items():
        for each in sorted(readers.get(variable, set()) - moved.keys()):
            if not bits[each] & done[kernel] and (kernel in kernels or not bits[kernel] & done[each]):
                return (
                    f"{each!r} reads {variable!r} for the gradient of another variable, and {kernel!r} does not wait"
                    " for it, as tf.gradients and tf.group have it: some gradients may be those of variables that had"
                    " moved already; the target takes them as they were before the step"
                )
    return None


def _together(nodes: Nodes, kernels: Mapping[str, str], others: Mapping[str, str]) -> list[str]:
    """Those of the others for which an op waits that waits for a kernel, too."""
    own, places = 1 << len(others), {name: 1 << place for place, name in enumerate(others)}
    bits = {**places, **dict.fromkeys(kernels, own)}
    met = 0
    for done in before(nodes, list(nodes.by_name), bits).values() if others else ():
        met |= done if done & own else 0
    return [name for name, bit in places.items() if met & bit]


def behind(nodes: Nodes, kernels: Mapping[str, str]) -> list[str]:
    """The kernels and all nodes that one of them waits for."""
    seen, todo = set(kernels), list(kernels)
    while todo:
        for each in _inputs(nodes, todo.pop()):
            if each not in seen:
                seen.add(each)
                todo.append(each)
    return [name for name in nodes.by_name if name in seen]


def _inputs(nodes: Nodes, name: str) -> Iterator[str]:
    node = nodes.by_name.get(name)
    for each in node.input if node is not None else ():
        yield node_of(each)


def _readers(nodes: Nodes, variables: set[str], step: list[str]) -> dict[str, set[str]]:
    """For each variable the ops that read its numbers."""
    owners: dict[str, set[str]] = {variable: {variable} for variable in variables}
    found: dict[str, set[str]] = {}
    consumers: dict[str, list[str]] = {}
    for name in step:
        for each in nodes.inputs[name]:
            consumers.setdefault(each, []).append(name)
    todo = list(variables)
    while todo:
        alias = todo.pop()
        for name in consumers.get(alias, ()):
            if nodes.op(name) in _ALIASES and nodes.inputs[name][0] == alias:
                known = owners.setdefault(name, set())
                if not owners[alias] <= known:
                    known |= owners[alias]
                    todo.append(name)
            elif nodes.op(name) not in _OF_SHAPES:
                for variable in owners[alias]:
                    found.setdefault(variable, set()).add(name)
    return found


def before(nodes: Nodes, step: list[str], bits: Mapping[str, int]) -> dict[str, int]:
    """For each node the readers, as bits, that are done before it; those of a loop once more, until none is new."""
    found = dict.fromkeys(step, 0)
    changed = True
    while changed:
        changed = False
        for name in step:
            known = found[name]
            for each in _inputs(nodes, name):
                known |= found.get(each, 0) | bits.get(each, 0)
            changed = changed or known != found[name]
            found[name] = known
    return found
