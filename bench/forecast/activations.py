"""Predict what forward and backward passes of a transformer keep, and what tensor parallelism sends for them.

From Korthikanti et al., "Reducing activation recomputation in large transformer models" (2022, arXiv 2205.05198), in
units of 16-bit numbers. A layer keeps s·b·h·(34 + 5·a·s/h) bytes (equation 2). Tensor parallelism over t devices
divides all of these but 10 s·b·h (equation 3). With fused attention or selective recomputation the part with a is not
kept (section 5). Recomputing whole layers keeps their inputs, 2·s·b·h each, and the inside of one layer at a time. Each
layer reduces s·b·h numbers over the t devices twice forward and twice backward (Shoeybi et al. 2019, section 3), and
twice more if it is recomputed.
"""

from __future__ import annotations

from bench.cases.workloads import Architecture

CHECKPOINTING = ("none", "selective", "full")
REDUCTIONS = {"none": 4, "selective": 4, "full": 6}
"""All-reduces of each layer in a forward and backward pass."""

HALF = 2
"""Bytes of the numbers in the formulas above."""


def stored_bytes(
    model: Architecture, sequence: int, examples: int, split: int, checkpointing: str, itemsize: int
) -> int:
    """Return the bytes on one device.

    Args:
      sequence: tokens of an example; examples: processed together on a device; split: devices of the axis `model`.
      checkpointing: what is computed again: "none", "selective" (attention), "full" (whole layers).
      itemsize: bytes of an activation.
    """
    numbers = sequence * examples * model.hidden
    scores = 5 * model.heads * sequence / model.hidden if checkpointing == "none" else 0.0
    inside = numbers * (10 + 24 / split + scores / split)
    layers = model.layers * numbers * 2 + inside if checkpointing == "full" else model.layers * inside
    logits = 2 * numbers / model.hidden * model.vocabulary / split * 2  # float32, and their gradient
    return round((layers + logits) * itemsize / HALF)


def reduced(model: Architecture, sequence: int, examples: int, checkpointing: str, itemsize: int) -> int:
    """Return the bytes of activations that the model axis reduces in a step; `examples`: all that a device
    processes."""
    return REDUCTIONS[checkpointing] * model.layers * sequence * examples * model.hidden * itemsize


def flops(parameters: int, tokens: int, checkpointing: str) -> float:
    """Return the products of a step: 6 per parameter and token (Kaplan et al. 2020), 8 if layers are computed again."""
    return (8 if checkpointing == "full" else 6) * float(parameters) * tokens
