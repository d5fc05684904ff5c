"""Check whether an update of a variable may run before all gradients of its step are computed.

A kernel of tf.train changes a variable of TensorFlow 1 in place, and a read (`w/read`) does not copy it.
`Optimizer.compute_gradients` makes gradients wait for each other (`gate_gradients=GATE_OP`), but `tf.gradients` does
not. The gradient of an earlier layer may then be computed from weights that have changed already, as TensorFlow 1.13
and 1.15 do. A resource is copied before it changes while an op reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from migrate.graphs.nodes import PASSING, Nodes, node_of

_ALIASES = (*PASSING, "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient", "Switch", "RefSwitch")
"""Ops whose output shares memory with their input."""
_OF_SHAPES = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")
"""Ops that do not read the values of their input."""


def late_read(nodes: Nodes, kernels: Mapping[str, str], others: Mapping[str, str]) -> str | None:
    """Describe an op that may read a variable after its update, or None.

    Args:
      kernels: the ops of an optimizer's step, and the variable that each changes. others: those of other optimizers,
        which matter if one op waits for both, as in `tf.group(one, other)`.
    """
    moved = {**kernels, **{name: others[name] for name in _together(nodes, kernels, others)}}
    readers = _readers(nodes, {v for v in moved.values() if nodes.op(v) != "VarHandleOp"}, ancestors(nodes, kernels))
    reading = sorted({reader for per in readers.values() for reader in per if reader not in moved})
    bits = {name: 1 << place for place, name in enumerate((*reading, *moved))}
    done = before(nodes, ancestors(nodes, moved), bits)
    for kernel, variable in moved.items():
        for reader in sorted(readers.get(variable, set()) - moved.keys()):
            if not bits[reader] & done[kernel] and (kernel in kernels or not bits[kernel] & done[reader]):
                return (
                    f"{reader!r} reads {variable!r} for the gradient of another variable, and {kernel!r} does not wait"
                    " for it, as with tf.gradients and tf.group: some gradients may come from variables that had"
                    " already changed; the target uses the variables from before the step"
                )
    return None


def _together(nodes: Nodes, kernels: Mapping[str, str], others: Mapping[str, str]) -> list[str]:
    """The kernels of others that share an op with one of these kernels: one op waits for both."""
    kernel_bit, places = 1 << len(others), {name: 1 << place for place, name in enumerate(others)}
    bits = {**places, **dict.fromkeys(kernels, kernel_bit)}
    partners = 0
    for done in before(nodes, list(nodes.by_name), bits).values() if others else ():
        partners |= done if done & kernel_bit else 0
    return [name for name, bit in places.items() if partners & bit]


def ancestors(nodes: Nodes, kernels: Mapping[str, str]) -> list[str]:
    """The kernels and all nodes that they wait for."""
    seen, todo = set(kernels), list(kernels)
    while todo:
        for parent in _inputs(nodes, todo.pop()):
            if parent not in seen:
                seen.add(parent)
                todo.append(parent)
    return [name for name in nodes.by_name if name in seen]


def _inputs(nodes: Nodes, name: str) -> Iterator[str]:
    node = nodes.by_name.get(name)
    for input_name in node.input if node is not None else ():
        yield node_of(input_name)


def _readers(nodes: Nodes, variables: set[str], step: list[str]) -> dict[str, set[str]]:
    owners: dict[str, set[str]] = {variable: {variable} for variable in variables}
    readers: dict[str, set[str]] = {}
    consumers: dict[str, list[str]] = {}
    for name in step:
        for input_name in nodes.inputs[name]:
            consumers.setdefault(input_name, []).append(name)
    todo = list(variables)
    while todo:
        alias = todo.pop()
        for name in consumers.get(alias, ()):
            if nodes.op(name) in _ALIASES and nodes.inputs[name][0] == alias:
                name_owners = owners.setdefault(name, set())
                if not owners[alias] <= name_owners:
                    name_owners |= owners[alias]
                    todo.append(name)
            elif nodes.op(name) not in _OF_SHAPES:
                for variable in owners[alias]:
                    readers.setdefault(variable, set()).add(name)
    return readers


def before(nodes: Nodes, step: list[str], bits: Mapping[str, int]) -> dict[str, int]:
    """For each node the readers, as bits, that finish before it. Repeated for loops until nothing changes."""
    done = dict.fromkeys(step, 0)
    changed = True
    while changed:
        changed = False
        for name in step:
            node_bits = done[name]
            for input_name in _inputs(nodes, name):
                node_bits |= done.get(input_name, 0) | bits.get(input_name, 0)
            changed = changed or node_bits != done[name]
            done[name] = node_bits
    return done
