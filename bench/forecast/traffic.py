"""Predict the bytes that one step sends between devices, by the formulas of ring collectives.

With n devices and S bytes a ring all-reduce sends 2·(n−1)/n·S from every device, a reduce-scatter or an all-gather half
of that (Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009; the `busbw`
factors in NVIDIA/nccl-tests `doc/PERFORMANCE.md`). S is the size on a device before a reduction or after a gathering.
The collectives of a step follow from the layouts. For `zero1` and for rules that use whole variables, they follow from
`optim/executors/portable.py`.

On CPU meshes DTensor (TensorFlow 2.21) has no reduce-scatter and no all-gather. It runs both as all-reduces of the
whole tensor, which doubles their bytes (measured, see docs/planning.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from bench.cases.layouts import MeshShape
from bench.forecast.footprint import ACCUMULATED, AVERAGE, Placed, Training, local_elements
from bench.forecast.state import algorithm
from optim.layouts.sharding import UNSHARDED

ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = "all-reduce", "reduce-scatter", "all-gather"

GRADIENTS = "gradients"
PARAMETERS = "zero1: new parameters"
SLOTS = "zero1: slots of a rule that needs them whole"
ACCUMULATORS = "zero1: accumulated gradients"
NORMS = "norms of clipping"
RULE = "norms, means and matrices of the rule"
FORWARD = "forward and backward: parameters"
ACTIVATIONS = "forward and backward: activations"

DATA_AXES = ("batch", "data")
"""Names of mesh axes that divide the examples of a batch."""


@dataclass(frozen=True)
class Collective:
    """One kind of collective of a step.

    Attributes:
      purpose: in words.
      operation: "all-reduce", "reduce-scatter" or "all-gather".
      axes: the mesh axes whose devices exchange; devices: their number.
      payload: S above, in bytes, all tensors together; tensors: their number.
      in_step: whether it is part of the gradients' reduction and the optimizer's step; gathering parameters for forward
        and backward passes is not.
    """

    purpose: str
    operation: str
    axes: tuple[str, ...]
    devices: int
    payload: int
    tensors: int
    in_step: bool = True

    @property
    def sent(self) -> int:
        """Bytes that each device sends."""
        return self._factor(2 if self.operation == ALL_REDUCE else 1)

    @property
    def sent_on_cpu(self) -> int:
        """The same with DTensor's collectives on CPU."""
        return self._factor(2)

    def _factor(self, passes: int) -> int:
        return passes * (self.devices - 1) * self.payload // self.devices


def collectives(
    placed: Sequence[Placed], mesh: MeshShape, layout: str, training: Training, *, forward: bool = True
) -> list[Collective]:
    """Return the exchanges of one step, equal kinds together. `forward`: include what fsdp gathers before the step."""
    data = data_axes(mesh, layout)
    total: dict[tuple[str, str, tuple[str, ...]], tuple[int, int]] = {}
    for one in placed:
        needs = [*_gradients(one, mesh, data, training), *_optimizer(one, mesh, training)]
        if forward:
            needs += _forward(one, mesh, data, training)
        for purpose, operation, axes, payload in needs:
            used = tuple(name for name, size in mesh.axes if name in axes and size > 1)
            if used and payload:
                size, count = total.get((purpose, operation, used), (0, 0))
                total[purpose, operation, used] = (size + payload, count + 1)
    sizes = dict(mesh.axes)
    return [
        Collective(
            purpose,
            operation,
            axes,
            prod(sizes[a] for a in axes),
            payload,
            count,
            purpose not in (FORWARD, ACTIVATIONS),
        )
        for (purpose, operation, axes), (payload, count) in total.items()
    ]


def data_axes(mesh: MeshShape, layout: str) -> tuple[str, ...]:
    """Return the axes that examples are divided over: those called batch or data; under fsdp at least the one it
    uses."""
    named = tuple(name for name, _ in mesh.axes if name in DATA_AXES)
    return named or ((mesh.axes[0][0],) if layout == "fsdp" else ())


_Need = tuple[str, str, Iterable[str], int]


def _used(specs: Iterable[str]) -> list[str]:
    return [axis for axis in specs if axis != UNSHARDED]


def _gradients(one: Placed, mesh: MeshShape, data: Sequence[str], training: Training) -> Iterator[_Need]:
    """Yield the reductions of gradients. Every device of a data axis has the gradient of its examples; the sum goes to
    the devices of the variable.
    """
    mine = local_elements(one.tensor.shape, one.gradient or one.specs, mesh) * training.itemsize
    scattered = [axis for axis in data if axis in (one.gradient or one.specs)]
    reduced = [axis for axis in data if axis not in (one.gradient or one.specs)]
    sizes = dict(mesh.axes)
    yield GRADIENTS, REDUCE_SCATTER, scattered, mine * prod(sizes[axis] for axis in scattered)
    yield GRADIENTS, ALL_REDUCE, reduced, mine


def _forward(one: Placed, mesh: MeshShape, data: Sequence[str], training: Training) -> Iterator[_Need]:
    """Yield the gathering of parameters sharded over a data axis: twice, as in ZeRO's third stage."""
    at_rest = one.at_rest or one.specs
    gathered = [axis for axis in data if axis in at_rest]
    sizes = dict(mesh.axes)
    mine = local_elements(one.tensor.shape, at_rest, mesh) * training.itemsize
    for _ in range(2):
        yield FORWARD, ALL_GATHER, gathered, mine * prod(sizes[axis] for axis in gathered)


def _optimizer(one: Placed, mesh: MeshShape, training: Training) -> Iterator[_Need]:
    mine = local_elements(one.tensor.shape, one.specs, mesh) * training.itemsize
    whole_slots = [specs for slot, specs in one.slots if slot.is_whole(one.tensor)]
    options = dict(one.options)
    if training.clip in ("clipnorm", "global_clipnorm"):
        yield NORMS, ALL_REDUCE, _used(one.specs), training.wide_itemsize
    rule = algorithm(training.optimizer).rule
    if rule.gathers([slot.name for slot, _ in one.slots]):
        everything = one.tensor.elements * training.itemsize
        for specs in (one.specs, one.specs, *whole_slots):  # gradient, parameter, slots
            yield RULE, ALL_GATHER, _used(specs), everything
        further = False
    elif rule.elementwise:
        further = bool(whole_slots)
    else:
        for specs in whole_slots:
            yield SLOTS, ALL_GATHER, _beyond(specs, one.specs), mine
        yield from _reductions(one, mesh, training)
        further = False
    last = options.get(AVERAGE) or (whole_slots[0] if further else one.specs)
    if one.at_rest in ((), one.specs):
        yield PARAMETERS, ALL_GATHER, _beyond(last, one.specs), mine
    if ACCUMULATED in options:
        yield ACCUMULATORS, ALL_GATHER, _beyond(options[ACCUMULATED], one.specs), mine


def _beyond(specs: Sequence[str], coarse: Sequence[str]) -> list[str]:
    return [axis for axis in _used(specs) if axis not in coarse]


def _reductions(one: Placed, mesh: MeshShape, training: Training) -> Iterator[_Need]:
    """Yield the reductions for norms and means over a sharded variable, for LAMB and Adafactor."""
    scalar, axes = training.wide_itemsize, _used(one.specs)
    name = algorithm(training.optimizer).name
    if name in ("lamb", "adafactor"):
        for _ in range(2):  # the norm, or root mean square, of the parameter and of the step
            yield RULE, ALL_REDUCE, axes, scalar
    if name != "adafactor" or len(one.tensor.shape) < 2:
        return
    for slot, specs in one.slots:
        lost = next(d for d in range(len(one.specs)) if d not in slot.dims)
        shape = [one.tensor.shape[d] for d in slot.dims]
        yield RULE, ALL_REDUCE, _used([one.specs[lost]]), local_elements(shape, specs, mesh) * scalar
    means = local_elements([*one.tensor.shape[:-2], 1], [*one.specs[:-2], UNSHARDED], mesh)
    yield RULE, ALL_REDUCE, _used([one.specs[-2]]), means * scalar  # the mean of r
