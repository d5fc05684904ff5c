"""Read how fast memory is from a result; plans compute updates with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.errors import ResultsError
from bench.peers.ours import KERNEL
from bench.results.document import Result


@dataclass(frozen=True)
class Measured:
    """Attributes:
    speed: bytes per second.
    of_each: whether each device has this speed, and not all devices of a mesh together.
    text: what reached it, in words.
    """

    speed: float
    of_each: bool
    text: str


def read(result: Result, name: str) -> Measured:
    """Return the speed that dtopt's kernel reached on a GPU if a result has it, or the best of its copies.

    Args:
      result: of `dtopt bench step` or `dtopt bench roof`.
      name: of its file, for messages.

    Raises:
      ResultsError: it has neither.
    """
    gpus = [gpu["name"] for gpu in result.context.get("accelerators", ())]
    where = result.context.get("gpu", {}).get("name") or next(iter(gpus), "the GPU")
    steps = [row for row in result.rows if result.kind == "step" and _is_ours(row)]
    if steps:
        step = max(steps, key=_reached)
        share = step.device_roof_fraction or step.roof_fraction
        of_copy = f", {share:.0%} of a copy" if share else ""
        return Measured(_reached(step), True, f"{KERNEL} on {where}{of_copy}, in {name}")
    if result.roofs:
        best = max(result.roofs, key=lambda roof: roof.bytes_per_second)
        on_gpu = any(row.device == "gpu" for row in result.rows)
        place = where if on_gpu else "all CPUs together"
        return Measured(best.bytes_per_second, on_gpu, f"{best.name.removeprefix('roof: ')} on {place}, in {name}")
    raise ResultsError(
        f"{name} contains no speed of memory: give a result of `dtopt bench roof --output FILE`, or of"
        " `dtopt bench step --device gpu -p optim-plain --output FILE`"
    )


def _is_ours(row: Any) -> bool:
    return bool(row.status == "ok" and row.device == "gpu" and KERNEL in row.note)


def _reached(row: Any) -> float:
    return float(row.bytes_per_step / (row.device_seconds or row.median))
