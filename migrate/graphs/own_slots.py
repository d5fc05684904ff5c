"""Check that a kernel reads its own variable and slots, as named by tf.train's `slot_creator` or OptimizerV2."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from migrate.algorithms.tf_train import AVERAGES
from migrate.graphs.kernels import Kernel
from migrate.graphs.nodes import Nodes, Write
from migrate.graphs.patterns import Captures, Variable, match

_POWERS = ("beta1_power", "beta2_power")
CENTERED = (0, 2, 1, 3)
"""Inputs of ApplyCenteredRMSProp (variable, mean gradient, mean square, momentum) in the order of their creation."""


def read(nodes: Nodes, name: str, kernel: Kernel) -> tuple[list[str], list[str]]:
    """Return the variables that a kernel reads: its own and its slots in the order of their creation, then the powers
    of Adam's betas. Both are empty if inputs are missing."""
    variables = [nodes.target(input_name) for input_name in nodes.inputs[name][: kernel.state]]
    if len(variables) < kernel.state:
        return [], []
    if nodes.op(name).endswith("CenteredRMSProp"):
        variables = [variables[i] for i in CENTERED]
    count = 1 + len(kernel.slots)
    return variables[:count], variables[count:]


def strange(
    nodes: Nodes,
    name: str,
    owner: str,
    slots: list[str],
    powers: list[str],
    betas: Sequence[str],
    written: Mapping[str, Write],
) -> str | None:
    """Describe what is wrong with the inputs of a kernel, None if nothing is.

    Args:
      slots, powers: the result of `read`. betas: the nodes of the powers' betas. written: as `writers.alone_written`.
    """
    variables = [*slots, *powers]
    averaged = any(_counted(slot)[0].endswith(f"/{AVERAGES}") for slot in slots)
    if (
        variables[:1] != [owner]
        or averaged
        or any(e not in nodes.variables for e in variables)
        or len(set(variables)) < len(variables)
    ):
        return _of_another(name)
    follow = all(_follows(a, b) for a, b in pairwise(slots[1:]))
    if not follow or any(power not in name for power, name in zip(_POWERS, powers, strict=False)):
        return f"{name!r} reads its slots in another order than their names show"
    pairs = zip(powers, map(nodes.constant, betas), strict=False)
    raised = next((p for p, beta in pairs if p not in written or not _is_power(nodes, written[p], beta)), None)
    if raised is not None:
        return f"{raised!r} is not multiplied by its beta by exactly one op"
    early = next((written[power].op for power in powers if name not in nodes.waits_for(written[power].op)), None)
    stray = next((written[p].op for p in powers if nodes.branches.get(written[p].op) != nodes.branches.get(name)), None)
    if stray is not None:
        return f"{stray!r} and {name!r} are on different sides of a condition"
    return None if early is None else f"{early!r} does not wait for {name!r}, which reads what it changes"


def strange_in_v2(nodes: Nodes, name: str, owner: str, slots: Sequence[str]) -> str | None:
    """Describe what is wrong with the inputs of an OptimizerV2 kernel, whose slots are called `SCOPE/VARIABLE/SLOT`."""
    first, *others = (nodes.target(input_name) for input_name in nodes.inputs[name][: 1 + len(slots)])
    named = [f"/{owner}/{slot}" for slot in slots]
    right = first == owner and all(_counted(a)[0].endswith(b) for a, b in zip(others, named, strict=False))
    return None if right else _of_another(name)


def _of_another(name: str) -> str:
    return f"{name!r} does not read the variable of its name and that variable's slots"


def _is_power(nodes: Nodes, write: Write, beta: float | None) -> bool:
    captures = Captures()
    by = match(nodes, write.value, ("Mul", Variable(write.target), "beta"), captures)
    return by and captures.constants["beta"] == beta


def _follows(first: str, second: str) -> bool:
    """Whether `slot_creator` may have named one slot after another: `w/Adam`, `w/Adam_1`."""
    (base, number), (other_base, other_number) = _counted(first), _counted(second)
    return (base == other_base and number < other_number) or second.startswith(f"{first}_")


def _counted(name: str) -> tuple[str, int]:
    parts = re.fullmatch(r"(.*?)_(\d+)", name)
    return (parts.group(1), int(parts.group(2))) if parts else (name, 0)
