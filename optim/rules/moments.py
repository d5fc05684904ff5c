"""The slots of Adam's family: means of gradients and of their squares, and AMSGrad's largest."""

from __future__ import annotations

from optim.rule import Slot


def moments(amsgrad: bool) -> tuple[Slot, ...]:
    """Return `m` and `v`, and `vhat` if `amsgrad`."""
    both = (Slot("m", unit="gradient", few_bits=True), Slot("v", unit="gradient^2", nonnegative=True, few_bits=True))
    largest = Slot("vhat", unit="gradient^2", nonnegative=True, at_least="v")
    return (*both, largest) if amsgrad else both
