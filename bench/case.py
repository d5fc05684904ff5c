"""One thing to measure: a workload, an optimizer with its options, a mesh with a layout rule, and the numbers to
feed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bench.algorithms import Algorithm, algorithm
from bench.layouts import MeshShape, Sharding, elements_on_all_devices, parse_mesh, sharding
from bench.options import Options
from bench.workloads import SPREAD, Tensor, workload

if TYPE_CHECKING:
    import numpy as np

    from bench.sparse import Rows

FLOAT32 = 4
ITEMSIZES = {"float32": FLOAT32, "bfloat16": 2}


@dataclass(frozen=True)
class Case:
    """What every peer is given alike.

    Attributes:
      workload, layout: names in `bench.workloads` and `bench.layouts`; optimizer: as `-o` takes it.
      mesh: axes of the mesh; peers without meshes update the same tensors whole, with the same threads.
      device: "cpu", "gpu" or "tpu".
      seed: of the parameters and gradients.
      threads: CPU threads of each peer.
      options: what a step does beside the optimizer's rule.
    """

    workload: str
    optimizer: str
    mesh: MeshShape
    layout: str
    device: str = "cpu"
    seed: int = 0
    threads: int = 1
    options: Options = field(default_factory=Options)

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
    def itemsize(self) -> int:
        """Bytes of one parameter."""
        return ITEMSIZES[self.options.dtype]

    @property
    def weight_decay(self) -> float:
        """Weight decay in effect."""
        given = self.options.weight_decay
        return (self.algorithm.weight_decay if given is None else given) or 0.0

    def is_sparse(self, tensor: Tensor) -> bool:
        """Whether its gradient is a set of rows."""
        return tensor.table and self.options.sparse_rows is not None

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

    def to_message(self) -> dict[str, Any]:
        """Plain values for the pipe to a worker and for results."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**plain, "mesh": str(self.mesh), "options": asdict(self.options)}

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> Case:
        options = Options(**message["options"])
        return cls(**{**message, "mesh": parse_mesh(message["mesh"]), "options": options})


def parameter(case: Case, index: int) -> np.ndarray:
    """Initial value of tensor number `index`: float32, uniform in [-0.05, 0.05) unless the tensor has another spread,
    rounded to bfloat16 if the case is of that dtype."""
    tensor = case.tensors[index]
    values = uniform(case, index, tensor.shape, stream=0)
    return values if tensor.spread == SPREAD else values * (values.dtype.type(tensor.spread / SPREAD))


def gradient(case: Case, index: int, which: int) -> np.ndarray | Rows:
    """Gradient number `which` (0, 1, ...) of a tensor, same distribution: different steps see different
    ones. Rows for the tables of a sparse case."""
    if case.is_sparse(case.tensors[index]):
        from bench import sparse

        return sparse.rows(case, index, which)
    return uniform(case, index, case.tensors[index].shape, stream=1 + which)


def uniform(case: Case, index: int, shape: tuple[int, ...], stream: int) -> np.ndarray:
    """Random, so that no page stays the shared zero page and no arithmetic meets denormals."""
    import numpy as np

    generator = np.random.Generator(np.random.SFC64([case.seed, index, stream]))
    values = generator.random(shape, dtype=np.float32)
    values -= np.float32(0.5)
    values *= np.float32(0.1)
    return as_bfloat16(values) if case.options.dtype == "bfloat16" else values


def as_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 values rounded to the nearest bfloat16, ties to even."""
    import numpy as np

    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)
