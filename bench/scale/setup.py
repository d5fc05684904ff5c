"""One mesh to measure, as plain values that are sent to the clients."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from math import prod
from typing import Any

from bench.cases.layouts import MeshShape, parse_mesh
from bench.cases.workloads import Tensor, Workload, workload
from bench.errors import OptionError
from bench.forecast.footprint import Training
from bench.forecast.traffic import data_axes


@dataclass(frozen=True)
class Setup:
    """One mesh.

    Attributes:
      workload, optimizer, layout, placement, clip, ema: names and options as in plans.
      mesh: axes, over all clients; the first ones cross clients.
      clients: number of DTensor clients, each with an equal part of the devices.
      scaling: "strong": the same model on every mesh. "weak": the model grows with the axes that divide no example, by
        copies of its tensors; a data axis grows the batch.
      shapes: the tensors, if they are not a workload of `bench`.
      device: "cpu", "gpu" or "tpu". threads: CPU threads of each client.

    Raises: OptionError.
    """

    workload: str
    optimizer: str
    mesh: MeshShape
    layout: str
    placement: str
    clients: int = 1
    scaling: str = "strong"
    device: str = "cpu"
    threads: int = 1
    clip: str = "none"
    ema: bool = False
    shapes: tuple[Tensor, ...] = ()

    def __post_init__(self) -> None:
        if self.mesh.devices % self.clients:
            raise OptionError(
                f"mesh {self.mesh} has {self.mesh.devices} devices, which {self.clients} clients cannot share evenly"
            )
        if len(self.data) > 1:
            raise OptionError(f"mesh {self.mesh} has two axes for examples, {' and '.join(self.data)}; give one")

    @property
    def devices_per_client(self) -> int:
        return self.mesh.devices // self.clients

    @cached_property
    def data(self) -> tuple[str, ...]:
        return data_axes(self.mesh, self.layout)

    @property
    def training(self) -> Training:
        return Training(self.optimizer, ema=self.ema, clip=self.clip)

    @property
    def copies(self) -> int:
        """Return how many copies of the model's tensors there are."""
        return 1 if self.scaling == "strong" else prod(size for name, size in self.mesh.axes if name not in self.data)

    @cached_property
    def model(self) -> Workload:
        """Return the tensors on this mesh."""
        workload_ = Workload(self.workload, "", self.shapes) if self.shapes else workload(self.workload)
        if self.copies == 1:
            return workload_
        tensors = [replace(t, name=f"copy{i}/{t.name}") for i in range(self.copies) for t in workload_.tensors]
        return Workload(workload_.name, workload_.summary, tuple(tensors))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.model.tensors

    def to_message(self) -> dict[str, Any]:
        """Return plain values for the pipe to a client."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**plain, "mesh": str(self.mesh), "shapes": [asdict(shape) for shape in self.shapes]}

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> Setup:
        shapes = tuple(Tensor(**{**shape, "shape": tuple(shape["shape"])}) for shape in message["shapes"])
        return cls(**{**message, "mesh": parse_mesh(message["mesh"]), "shapes": shapes})
