"""One thing to measure: a workload, an optimizer, a mesh with a layout rule, and the numbers to feed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bench.algorithms import Algorithm, algorithm
from bench.layouts import MeshShape, Sharding, elements_on_all_devices, parse_mesh, sharding
from bench.workloads import Tensor, workload

if TYPE_CHECKING:
    import numpy as np

FLOAT32 = 4


@dataclass(frozen=True)
class Case:
    """What every peer is given alike.

    Attributes:
      workload, optimizer, layout: names in `bench.workloads`, `bench.algorithms`, `bench.layouts`.
      mesh: axes of the mesh; peers without meshes update the same tensors whole, with the same threads.
      device: "cpu", "gpu" or "tpu".
      seed: of the parameters and gradients.
      threads: CPU threads of each peer.
    """

    workload: str
    optimizer: str
    mesh: MeshShape
    layout: str
    device: str = "cpu"
    seed: int = 0
    threads: int = 1

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        return workload(self.workload).tensors

    @cached_property
    def algorithm(self) -> Algorithm:
        return algorithm(self.optimizer)

    @cached_property
    def shardings(self) -> tuple[Sharding, ...]:
        return tuple(sharding(self.layout, tensor, self.mesh) for tensor in self.tensors)

    @property
    def elements(self) -> int:
        """Parameters of the model."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def mesh_elements(self) -> int:
        """Parameters that all devices of the mesh hold together, replicas counted."""
        pairs = zip(self.tensors, self.shardings, strict=True)
        return sum(elements_on_all_devices(tensor, layout, self.mesh) for tensor, layout in pairs)

    def updated_elements(self, on_mesh: bool) -> int:
        """Elements that one step updates, on the mesh or whole."""
        return self.mesh_elements if on_mesh else self.elements

    def working_set(self, on_mesh: bool) -> int:
        """Bytes of parameters, gradients and slots."""
        return self.updated_elements(on_mesh) * FLOAT32 * (2 + self.algorithm.slots)

    def to_message(self) -> dict[str, Any]:
        """Plain values for the pipe to a worker and for results."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**plain, "mesh": str(self.mesh)}

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> Case:
        return cls(**{**message, "mesh": parse_mesh(message["mesh"])})


def parameter(case: Case, index: int) -> np.ndarray:
    """Initial value of tensor number `index`: float32, uniform in [-0.05, 0.05)."""
    return _uniform(case, index, stream=0)


def gradient(case: Case, index: int, which: int) -> np.ndarray:
    """Gradient number `which` (0, 1, ...) of a tensor, same distribution: different steps see different
    ones."""
    return _uniform(case, index, stream=1 + which)


def _uniform(case: Case, index: int, stream: int) -> np.ndarray:
    """Random, so that no page stays the shared zero page and no arithmetic meets denormals."""
    import numpy as np

    generator = np.random.Generator(np.random.SFC64([case.seed, index, stream]))
    values = generator.random(case.tensors[index].shape, dtype=np.float32)
    values -= np.float32(0.5)
    values *= np.float32(0.1)
    return values
