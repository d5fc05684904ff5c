"""Query NVIDIA's GPUs through `nvidia-smi`: their properties and their free memory."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from typing import Any

MIB = 1024**2
FIELDS: dict[str, Callable[[str], Any]] = {
    "name": str,
    "driver_version": str,
    "memory.total": lambda text: int(text) * MIB,
    "memory.free": lambda text: int(text) * MIB,
    "clocks.sm": int,
    "clocks.max.sm": int,
    "clocks.mem": int,
    "power.limit": float,
    "temperature.gpu": int,
}
"""Queried fields: memory in bytes, clocks in MHz, power in watts, temperature in degrees Celsius."""
COMMAND = ("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
SECONDS = 20.0

Ask = Callable[[Sequence[str]], str]
"""Returns the output of a command; raises OSError or subprocess.SubprocessError."""


def ask(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS).stdout


def describe(ask: Ask = ask) -> list[dict[str, Any]]:
    """Return for each GPU the values of FIELDS; None for an unknown value. Empty if there is no nvidia-smi."""
    try:
        lines = ask(COMMAND).splitlines()
    except (OSError, subprocess.SubprocessError):
        return []
    return [dict(zip(FIELDS, map(_value, FIELDS, line.split(",")), strict=False)) for line in lines if line.strip()]


def _value(name: str, text: str) -> Any:
    try:
        return FIELDS[name](text.strip())
    except ValueError:  # "[N/A]"
        return None


def sentence(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> str | None:
    """Describe the free memory of the first GPU before a run, and its clocks after it; None if these are unknown."""
    parts = []
    if before and before[0].get("memory.free") is not None and before[0].get("memory.total"):
        free, total = (before[0][name] / 1e9 for name in ("memory.free", "memory.total"))
        parts.append(f"{free:.1f} of {total:.1f} GB of its memory were free before the run")
    if after and after[0].get("clocks.sm") and after[0].get("clocks.max.sm"):
        heat = after[0].get("temperature.gpu")
        at = f" at {heat} °C" if heat is not None else ""
        parts.append(f"it ran at {after[0]['clocks.sm']:,} of {after[0]['clocks.max.sm']:,} MHz{at} after it")
    return f"GPU: {', '.join(parts)}." if parts else None


def free_memory(gpus: Sequence[dict[str, Any]]) -> int | None:
    """Return the free bytes of the fullest GPU; None if unknown."""
    known = [gpu["memory.free"] for gpu in gpus if gpu.get("memory.free") is not None]
    return min(known, default=None)
