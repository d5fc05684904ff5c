"""One call of dtopt's own kernel for all shards that it can update, on all devices: see `optim/native`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from optim import slot_layout
from optim.algorithm import Group
from optim.bits.noise import stream
from optim.devices import call, vector, wait_for_pending
from optim.executors.plan import Plan, Selection, Shard
from optim.executors.work import Work
from optim.native import direct, gpu, library
from optim.native.direct import Held
from optim.native.generate import Program, program_for, why_none
from optim.native.library import status
from optim.options.master_copies import target
from optim.rule import Rule
from optim.state import mesh_groups
from optim.state.row_gradient import at_hand
from optim.state.slots import SlotTable
from optim.state.tracked import Tracked


class Pending(Protocol):
    """Gradients that are held for the kernel, and what it does to them in its pass: `ShardGradients`."""

    @property
    def factors(self) -> list[float] | None: ...

    @property
    def limit(self) -> float | None: ...

    @property
    def held_tensors(self) -> Held: ...

    def control(self, group: int) -> Held | None:
        """Return the control memory that the GPU of a group computed from them, if `factors` are positions in it."""

    @property
    def rows(self) -> Mapping[int, int]: ...


Placed = dict[str, list[tuple[int, Shard]]]
"""By device: shards, each with the position of its variable in the step."""
DTYPES = (tf.float32, tf.float64, tf.bfloat16, tf.float16)
NO_NOISE = -1.0
"""The key of a step, for the kernel, that has no noise."""
MOVE, STAY, MOVE_SLOTS = 0, 1, 2
"""How to treat rows without a gradient, numbered as the enum Others in `pieces.h`."""


def program_of(rule: Rule | None, tracked: Tracked, slots: SlotTable, is_sum: bool = False) -> Program | None:
    """Return the program of a variable, which may depend on its rank and its slots; None if there is no program for it.

    `is_sum`: whether its gradient is the sum of several that are squared one by one.
    """
    return program_for(rule, *_variant(rule, tracked, slots), is_sum)


def _variant(rule: Rule | None, tracked: Tracked, slots: SlotTable) -> tuple[int, Sequence[str] | None]:
    if rule is None or rule.elementwise:
        return 0, None
    return tracked.variable.shape.rank, slots.names_of(tracked)


def why_not(rule: Rule | None, tracked: Tracked, slots: SlotTable, is_sum: bool = False) -> str:
    """Explain why the kernel cannot update a variable; empty if it can. `is_sum`: as for `program_of`."""
    program = program_of(rule, tracked, slots, is_sum)
    if program is None:
        return why_none(rule, *_variant(rule, tracked, slots), is_sum)
    library.want(program)
    dtype = target(slots, tracked).dtype
    packing = slots.packing(tracked, program.slots)
    if packing is not None and (why := _why_not_packed(rule, tracked)):
        return why
    if packing is None and any(slot.dtype != dtype for slot in slots.of(tracked, program.slots).values()):
        return f"a slot of {tracked} has another dtype"
    if on_gpu(tracked):
        return _why_not_on_gpu(program, tracked, slots, is_packed=packing is not None)
    return why_not_here(tracked) or library.why_no_program(program)


def _why_not_packed(rule: Rule | None, tracked: Tracked) -> str:
    """Why the kernel cannot update a variable that has state in few bits; empty if it can."""
    if rule is None or not rule.elementwise:
        return f"its rule looks at whole tensors, and {tracked} has state in few bits"
    return "" if tracked.mesh is None else f"{tracked} is on a mesh, and has state in few bits"


def slot_variables(slots: SlotTable, tracked: Sequence[Tracked], program: Program) -> list[Any]:
    """All that the kernel is given as slots: all first ones, then all second ones, and at last scales of codes."""
    of_slots = [[slots.get(name, item) for item in tracked] for name in program.slots]
    of_first = slots.of(tracked[0], [slot_layout.scale_of(name) for name in program.slots])
    of_slots += [[slots.get(name, item) for item in tracked] for name in of_first]
    return [slot for of_all in of_slots for slot in of_all]


def packing_numbers(work: Work, members: Sequence[int], program: Program) -> list[float]:
    """The numbers of `packing` in `calls.h` after the key of the step; empty without state in few bits.

    `SlotTable.packing` is the same for all members."""
    tracked = [work.tracked[i] for i in members]
    if work.slots.packing(tracked[0], program.slots) is None:
        return []
    goal = target(work.slots, tracked[0])
    rounds = goal is tracked[0].variable and work.slots.storage.rounds(goal.dtype, is_slot=False)
    return [float(rounds), *(float(stream(name)) for name in program.slots), *(float(t.index) for t in tracked)]


def on_gpu(tracked: Tracked) -> bool:
    """Whether a variable is on a GPU, or on a mesh of GPUs."""
    return "GPU" in device_of(tracked).upper()


def device_of(tracked: Tracked) -> str:
    """Return the device of a variable. With copies, it is that of the copy at hand, or else the first one; on a mesh
    only the kind of device.
    """
    if tracked.mesh is not None:
        return str(tracked.mesh.device_type())
    variable = tracked.variable
    if isinstance(variable, tf.distribute.DistributedValues):
        copy = at_hand(variable)
        variable = variable.values[0] if copy is None else copy
    return variable.device or ""


def _why_not_on_gpu(program: Program, tracked: Tracked, slots: SlotTable, *, is_packed: bool) -> str:
    """Explain why no launch of dtopt's updates a variable on a GPU; empty if one does."""
    if not gpu.is_on():
        return gpu.why_not(program, tracked.variable.dtype.name)
    if tracked.variable.dtype not in DTYPES:
        return f"it does not compute in {tracked.variable.dtype.name}"
    if not status().available:
        return status().reason
    if not direct.reads_gpus():
        return f"TensorFlow {tf.version.VERSION} has no function that shares the buffer of a tensor on a GPU"
    if why := library.why_no_program(program):
        return why
    return gpu.why_not_packed(program) if is_packed else gpu.why_not(program, target(slots, tracked).dtype.name)


def why_not_here(tracked: Tracked) -> str:
    """Explain why the kernel cannot use gradients of a variable; empty if it can add up their squares."""
    dtype = tracked.variable.dtype
    if dtype not in DTYPES:
        return f"it does not compute in {dtype.name}"
    device = device_of(tracked)
    if device and "CPU" not in device.upper():
        return f"it runs on CPU devices, {tracked} is on {device}"
    if not status().available:
        return status().reason
    if tracked.mesh is None or direct.available():
        return ""
    return f"TensorFlow {tf.version.VERSION} has no functions to read the parts of DTensors"


def square_sums(tensors: Held, sources: Sequence[int], batches: Batches | None = None) -> list[float]:
    """Return the sum of squares of each of the tensors at `sources`, added up in float64. `batches`: of the step
    before."""
    if batches is not None and batches.batches:
        return direct.square_sums(batches.batches[0].number, tensors, sources)
    squares = call("DtoptSquares", vector([tensors.number], tf.int64), vector(sources, tf.int64))
    sums: list[float] = squares.numpy().tolist()
    return sums


def adds_up_on(tracked: Tracked) -> bool:
    """Whether a kernel adds up squares of gradients on the GPU of a variable without a mesh."""
    return tracked.mesh is None and adds_up_parts(tracked)


def adds_up_parts(tracked: Tracked) -> bool:
    """Whether kernels add up squares of the parts of a gradient on each GPU."""
    if not gpu.is_on() or not on_gpu(tracked):
        return False
    return tracked.variable.dtype in DTYPES and status().available and not gpu.why_no_squares()


def squares_on_gpu(tensors: Sequence[Any], device: str) -> Any:
    """Return the sum of squares of each of some tensors on a GPU: a float64 vector there, without a wait."""
    with tf.device(device):
        return library.ops().dtopt_square_sums(tensors=tensors)


def decides_there(work: Work, gradients: Sequence[Any]) -> bool:
    """Whether the GPU of all variables computes what the launches of a step need to know about its gradients.

    Not for float64 under a loss scale, whose squares may be infinite although gradients are finite, and not for norms
    of clipped elements.
    """
    if (work.loss_scale is None and work.clip.norm is None) or work.clip.needs_clipped_norms:
        return False
    if work.loss_scale is not None and any(gradient.dtype == tf.float64 for gradient in gradients):
        return False
    return all(adds_up_parts(t) and (t.mesh is None or t.mesh.size == 1) for t in work.tracked)


class Batch:
    """Shards of one dtype and learning rate on all devices; the kernel looks them up once."""

    def __init__(self, work: Work, program: Program, by_device: Placed, rate_factor: Group, offsets: Sequence[int]):
        placed = [at for on_device in by_device.values() for at in on_device]
        self.program = program
        self.rate_factor = rate_factor
        self.positions = [position for position, _ in placed]
        """Positions of the variables in the step."""
        self.dtype = placed[0][1].dtype
        self.packing = packing_numbers(work, self.positions, program)
        groups = []
        for device, on_device in by_device.items():
            with tf.device(device):
                groups.append(_group(work, program, on_device, offsets))
        attributes = (
            *("T", self.dtype.as_datatype_enum, "rule", program.name, "shapes", program.shapes),
            *("passes", program.passes, "powers", program.powers, "scalars_of_all", len(program.scalars)),
            *("identity_at_zero", program.is_identity_at_zero),
        )
        links = _vector(_links([shard for _, shard in placed]))
        with tf.device(next(iter(by_device))):
            self.group, number = call("DtoptJoin", _vector([number for _, number in groups]), links, *attributes)
        self.number = int(number.numpy())
        """Number by which the kernel finds the group, as long as `group` lives."""


def numbers_on_mesh(work: Work, program: Program) -> tuple[Any, bool]:
    """Return the groups for the kernel's op, while a step on a mesh of equal variables is traced.

    Returns: the numbers of the groups, and whether the devices must step together, because one writes what others have,
    too.
    """
    mesh = work.tracked[0].mesh
    assert mesh is not None
    with tf.init_scope():
        wait_for_pending()  # a variable may still get its first value
        selection = Plan(work.rules, work.tracked, work.slots).selection(work.tracked)
        placed, together = selection.by_device, False
        if any(shard.box is not None for on_device in placed.values() for _, shard in on_device):
            batch = Batch(work, program, placed, work.rate_factors[0], selection.offsets)
            groups, numbers, together = [batch.group], [batch.number] * len(placed), True
        else:
            groups, numbers = [], []
            for device, on_device in placed.items():
                with tf.device(device):
                    group, number = _group(work, program, on_device, selection.offsets)
                groups.append(group)
                numbers.append(number)
    names = [*program.slots, *([slot_layout.AVERAGE] if work.has_averages else [])]
    slots = [slot for item in work.tracked for slot in work.slots.of(item, names).values()]
    updated = [*(item.variable for item in work.tracked), *(target(work.slots, item) for item in work.tracked)]
    return mesh_groups.numbers_of(mesh, numbers, [*updated, *slots], groups), together


def _group(work: Work, program: Program, placed: Sequence[tuple[int, Shard]], offsets: Sequence[int]) -> Any:
    """Return a group of the shards on one device, and its number."""
    shards = [shard for _, shard in placed]
    names = [*program.slots, *(scale for scale in map(slot_layout.scale_of, program.slots) if scale in shards[0].slots)]
    slots = [s.slots[name] for name in names for s in shards]
    averages = [s.slots[slot_layout.AVERAGE] for s in shards] if work.has_averages else []
    boxes = _vector([n for i, s in enumerate(shards) if s.box is not None for n in (i, *s.box.runs())])
    sources = _vector([offsets[i] + shard.part for i, shard in placed])
    roundings = [s.rounding for s in shards if s.rounding is not None]
    regions = _vector([n for shard in shards for n in shard.region or (0, 0, 0)])
    rest = _vector(others(work, [i for i, _ in placed]) if any(work.lazy) else [])
    variables = [s.variable for s in shards]
    group, number = call("DtoptGroup", variables, slots, averages, roundings, boxes, sources, regions, rest)
    return group, int(number.numpy())


def others(work: Work, members: Sequence[int]) -> list[int]:
    """Return how to treat rows of these variables without a gradient; empty if that is the same for all.

    On a GPU they stay unchanged if a gradient is rows, and no gradient is rows if they move.
    """
    if not any(work.lazy[i] for i in members) or on_gpu(work.tracked[members[0]]):
        return []
    stays = {True: STAY, False: MOVE_SLOTS}
    return [stays[work.rule(i).keeps_lazy_slots] if work.lazy[i] else MOVE for i in members]


def _links(shards: Sequence[Shard]) -> list[int]:
    """Return where else to write the values of a part of a shard: pairs of positions."""
    at = {id(shard): position for position, shard in enumerate(shards)}
    return [n for i, shard in enumerate(shards) for other in shard.partners for n in (i, at[id(other)])]


def _vector(numbers: Sequence[int]) -> Any:
    return tf.constant(numbers, tf.int64, [len(numbers)])


class Batches:
    """The shards that the kernel updates, and the `rest`, which it cannot update, by device."""

    def __init__(self, work: Work, selection: Selection):
        self.rest: dict[str, list[tuple[int, Shard]]] = {}
        self.devices = selection.devices
        groups: dict[tuple[Program, Any, Any, Group], Placed] = {}
        for device, placed in selection.by_device.items():
            for i, shard in placed:
                variant = (work.rules[i], shard.tracked, work.slots, work.slices_of(i) is not None)
                program = program_of(*variant)
                if program is None or why_not(*variant) or not direct.available():
                    self.rest.setdefault(device, []).append((i, shard))
                else:
                    packing = work.slots.packing(shard.tracked, program.slots)
                    key = (program, shard.dtype, (shard.rounding is None, packing), work.rate_factors[i])
                    alike = groups.setdefault(key, {})
                    alike.setdefault(device, []).append((i, shard))
        offsets = selection.offsets
        self.batches = [Batch(work, program, g, f, offsets) for (program, *_, f), g in groups.items()]


def is_one_gpu(batches: Batches) -> bool:
    """Whether launches on one GPU are all of a step."""
    return not batches.rest and len(batches.devices) == 1


def arrange(work: Work, selection: Selection) -> Batches:
    """Arrange a step; a new arrangement is made only if more than numbers differ from the step before."""
    first = next(iter(work.rate_factors), None)  # there may be none: gradients that overwrite their variables
    changing = tuple(work.rate_factors) if isinstance(first, tuple) else ()  # a factor never changes
    by_row = tuple(i for i, slices in enumerate(work.slices) if slices is not None)
    key = (work.has_averages, changing, by_row)
    if selection.batches is None or selection.batches[0] != key:
        selection.batches = (key, Batches(work, selection))
    return selection.batches[1]


def step(work: Work, batches: Batches, gradients: Pending) -> None:
    """Update all batches."""
    if not batches.batches:
        return
    limit = math.inf if gradients.limit is None else gradients.limit
    momentum = work.ema_momentum if work.has_averages else 0.0
    factors, rows, control = gradients.factors, gradients.rows, gradients.control(batches.batches[0].number)
    for batch in batches.batches:
        coefficients, decays = work.coefficients[batch.rate_factor], [work.decay_factors[i] for i in batch.positions]
        direct.update(
            batch.number,
            gradients.held_tensors,
            [limit, momentum, 1.0 - momentum, *(coefficients[name] for name in batch.program.scalars)],
            [factors[i] for i in batch.positions] if factors else (),
            [1.0 if d is None else d for d in decays] if decays.count(None) < len(decays) else (),
            [rows.get(i, -1) for i in batch.positions] if rows else (),
            bool(work.overwrite),
            control,
            [NO_NOISE if work.key is None else work.key, *batch.packing] if batch.packing else (),
        )
