"""Accelerators by name: the facts that plans need, from their makers' data sheets. Speeds are per device."""

from __future__ import annotations

from dataclasses import dataclass

from bench.errors import UnknownNameError

GB, GIB = 10**9, 2**30


@dataclass(frozen=True)
class Device:
    """One accelerator.

    Attributes: name; memory in bytes; flops: dense bfloat16 products per second; bandwidth of memory, bytes per second;
      near: bytes per second that a device sends within its node; far: to other nodes; node: devices of one, or of one
        pod of TPUs;
      source of all these; reached: the fraction of the bandwidth that dtopt's kernel reaches, by a table of
      docs/benchmarks.md, None if not measured.
    """

    name: str
    memory: int
    flops: float
    bandwidth: float
    near: float
    far: float
    node: int
    source: str
    reached: float | None = None


_DGX_A100 = "NVIDIA A100 data sheet; DGX A100: NVLink 600 GB/s both ways, one 200 Gb/s adapter per GPU"
_DGX_H100 = "NVIDIA H100 data sheet; DGX H100: NVLink 900 GB/s both ways, one 400 Gb/s adapter per GPU"
_TPU = "cloud.google.com/tpu/docs/{}: peak compute, HBM, interchip interconnect"

DEVICES: tuple[Device, ...] = (
    Device("v100-32gb", 32 * GB, 125e12, 900e9, 150e9, 12.5e9, 8, "NVIDIA V100 data sheet; DGX-1: 100 Gb/s adapters"),
    Device("a100-40gb", 40 * GB, 312e12, 1555e9, 300e9, 25e9, 8, _DGX_A100),
    Device("a100-80gb", 80 * GB, 312e12, 2039e9, 300e9, 25e9, 8, _DGX_A100),
    Device("h100", 80 * GB, 989e12, 3350e9, 450e9, 50e9, 8, _DGX_H100),
    Device("h200", 141 * GB, 989e12, 4800e9, 450e9, 50e9, 8, "NVIDIA H200 data sheet; DGX H200 as DGX H100"),
    Device("tpu-v4", 32 * GIB, 275e12, 1228e9, 150e9, 6.25e9, 4096, _TPU.format("v4")),
    Device("tpu-v5e", 16 * GIB, 197e12, 819e9, 100e9, 6.25e9, 256, _TPU.format("v5e")),
    Device("tpu-v5p", 95 * GIB, 459e12, 2765e9, 300e9, 6.25e9, 8960, _TPU.format("v5p")),
)

NAMES = tuple(device.name for device in DEVICES)


def device(name: str) -> Device:
    """Return the device of that name, with or without `tpu-`. Raises: UnknownNameError."""
    for known in DEVICES:
        if name.lower() in (known.name, known.name.removeprefix("tpu-")):
            return known
    raise UnknownNameError(f"no device is called {name!r}; there are: {', '.join(NAMES)}")
