"""Whether a kernel of tf.train reads its own variable and slots, in the order in which `slot_creator` named them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from migrate.graphs.nodes import Nodes, Write
from migrate.graphs.patterns import Found, Variable, match

_HELD = ("Switch", "RefSwitch", "RefEnter", "RefIdentity")
"""What hands a variable on into a `tf.cond` or a loop."""
_POWERS = ("beta1_power", "beta2_power")
CENTERED = (1, 0, 2)
"""Places of what ApplyCenteredRMSProp reads (mean gradient, mean square, momentum) in the order of their creation."""


def strange(nodes: Nodes, name: str, owner: str, most: int, written: Mapping[str, Write]) -> str | None:
    """What is wrong with what a kernel reads, None if nothing is.

    Args:
      most: the first of its inputs that is none of its variables. written: as `Nodes.alone_written`.
    """
    read = [_variable(nodes, each) for each in nodes.inputs[name][:most]]
    slots = [each for i, each in enumerate(read[1:], 1) if i < 3 or most < 5]
    powers = read[3:] if most == 5 else []
    if read[:1] != [owner] or any(each not in nodes.variables for each in read) or len(set(read)) < most:
        return f"{name!r} does not read the variable that it is called after and slots of its own"
    if nodes.op(name).endswith("CenteredRMSProp"):
        slots = [slots[i] for i in CENTERED]
    follow = all(_follows(a, b) for a, b in pairwise(slots))
    if not follow or any(each not in name for each, name in zip(_POWERS, powers, strict=False)):
        return f"{name!r} reads its slots in another order than their names tell"
    raised = [each for each in powers if each in written and not _is_power(nodes, written[each])]
    return f"{written[raised[0]].op!r} does not multiply {raised[0]!r} by its beta" if raised else None


def _is_power(nodes: Nodes, write: Write) -> bool:
    return match(nodes, write.value, ("Mul", Variable(write.target), "beta"), Found())


def _variable(nodes: Nodes, name: str) -> str:
    name = nodes.source(name)
    for _ in range(len(nodes.by_name)):
        if nodes.op(name) not in _HELD or not nodes.inputs[name]:
            break
        name = nodes.source(nodes.inputs[name][0])
    return name


def _follows(first: str, second: str) -> bool:
    """Whether `slot_creator` may have named a slot after another: `w/Adam`, `w/Adam_1`."""
    (base, number), (other, more) = _counted(first), _counted(second)
    return (base == other and number < more) or second.startswith(f"{first}_")


def _counted(name: str) -> tuple[str, int]:
    found = re.fullmatch(r"(.*?)_(\d+)", name)
    return (found.group(1), int(found.group(2))) if found else (name, 0)
