"""One thing to measure: a workload, an optimizer with its options, and a mesh with a layout rule."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from bench.cases.algorithms import Algorithm, algorithm
from bench.cases.layouts import MeshShape, Sharding, elements_on_all_devices, parse_mesh, sharding
from bench.cases.options import Options
from bench.cases.workloads import Tensor, workload

FLOAT32 = 4
ITEMSIZES = {"float32": FLOAT32, "bfloat16": 2}


@dataclass(frozen=True)
class Case:
    """The input of every peer, the same for all.

    Attributes:
      workload, layout: names in `bench.cases.workloads` and `bench.cases.layouts`; optimizer: as `-o` takes it.
      mesh: axes of the mesh; peers without meshes update the same tensors whole, with the same threads.
      device: "cpu", "gpu" or "tpu".
      seed: of the parameters and gradients.
      threads: CPU threads of each peer.
      options: what a step does in addition to the optimizer's rule.
      shapes: the tensors, if they are not a workload of `bench`; shapes_from: their name on the command line.
    """

    workload: str
    optimizer: str
    mesh: MeshShape
    layout: str
    device: str = "cpu"
    seed: int = 0
    threads: int = 1
    options: Options = field(default_factory=Options)
    shapes: tuple[Tensor, ...] = ()
    shapes_from: str | None = None

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.shapes or workload(self.workload).tensors

    @cached_property
    def algorithm(self) -> Algorithm:
        return algorithm(self.optimizer)

    @cached_property
    def shardings(self) -> tuple[Sharding, ...]:
        return tuple(sharding(self.layout, tensor, self.mesh) for tensor in self.tensors)

    @property
    def itemsize(self) -> int:
        """Bytes of one parameter."""
        return ITEMSIZES[self.options.dtype]

    @property
    def weight_decay(self) -> float:
        """Weight decay in effect."""
        option = self.options.weight_decay
        return (self.algorithm.weight_decay if option is None else option) or 0.0

    def is_sparse(self, tensor: Tensor) -> bool:
        """Whether the gradient of the tensor is a set of rows."""
        return tensor.table and self.options.sparse_rows is not None

    def touched_rows(self, index: int) -> int:
        """Return how many rows of table number `index` a gradient has."""
        return min(self.options.sparse_rows or 0, self.tensors[index].shape[0])

    @property
    def elements(self) -> int:
        """Parameters of the model."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def mesh_elements(self) -> int:
        """Parameters on all devices of the mesh together, replicas counted."""
        pairs = zip(self.tensors, self.shardings, strict=True)
        return sum(elements_on_all_devices(tensor, layout, self.mesh) for tensor, layout in pairs)

    def updated_elements(self, on_mesh: bool) -> int:
        """Return the elements that one step updates, on the mesh or whole."""
        return self.mesh_elements if on_mesh else self.elements

    def to_message(self) -> dict[str, Any]:
        """Return plain values for the pipe to a worker and for results."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            **plain,
            "mesh": str(self.mesh),
            "options": asdict(self.options),
            "shapes": [asdict(shape) for shape in self.shapes],
        }

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> Case:
        options = Options(**message["options"])
        shapes = tuple(Tensor(**{**shape, "shape": tuple(shape["shape"])}) for shape in message["shapes"])
        return cls(**{**message, "mesh": parse_mesh(message["mesh"]), "options": options, "shapes": shapes})
