"""One row of `dtopt bench plan`: a way to place a model and its optimizer, and its costs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from bench.cases.workloads import Workload
from bench.errors import ResultsError
from bench.forecast.footprint import Training
from bench.forecast.plans import Plan
from bench.forecast.traffic import Collective


@dataclass(frozen=True)
class Exchange:
    """The devices' exchange for one purpose, see `bench.forecast.traffic.Collective`; sizes in bytes."""

    purpose: str
    operation: str
    axes: tuple[str, ...]
    devices: int
    payload: int
    tensors: int
    in_step: bool
    sent: int
    sent_on_cpu: int

    @classmethod
    def of(cls, collective: Collective) -> Exchange:
        return cls(**{field.name: getattr(collective, field.name) for field in fields(cls)})


@dataclass(frozen=True)
class Row:
    """One plan. Sizes are bytes on one device (all hold the same), times seconds; unknown values are None.

    Attributes:
      workload, optimizer, dtype, ema, accumulate, clip, mesh, devices, layout, placement: the independent variables.
      parameters, tensors: of the workload.
      parameter_bytes, gradient_bytes, slot_bytes (by slot), device_bytes: held, and their sum.
      exchanges: the collectives; sent_bytes: bytes that a device sends for all of them, step_sent_bytes: only for the
        gradients' reduction and the optimizer, cpu_sent_bytes: the latter as DTensor does it on CPU.
      update_bytes: least memory traffic of the update.
      update_seconds, exchange_seconds: at the known speeds.
      limit_bytes: bytes that a device has for all this; fits: whether they are enough.
      recommended: whether this is the best of the plans that fit.
      layout_notes: tensors that could not follow the layout rule.
      activation_bytes: None if the architecture is unknown; temporary_bytes: gathered or reduced together.
      compute_seconds: of forward and backward; slot_dtype, master_copies, batch, micro_batch, sequence, checkpointing,
        device: as requested, or as the model was trained; possible: whether the batch and the heads can be divided over
        the mesh.
      measured: what reached the speed of memory, if it comes from a result.
      status, reason: always "ok" and None: every plan can be made. rerun: the command that makes this row again.
    """

    workload: str
    optimizer: str
    dtype: str
    ema: bool
    accumulate: bool
    clip: str
    mesh: str
    devices: int
    layout: str
    placement: str
    parameters: int
    tensors: int
    parameter_bytes: int
    gradient_bytes: int
    slot_bytes: Mapping[str, int]
    device_bytes: int
    exchanges: tuple[Exchange, ...]
    sent_bytes: int
    step_sent_bytes: int
    cpu_sent_bytes: int
    update_bytes: int
    rerun: str
    update_seconds: float | None = None
    exchange_seconds: float | None = None
    limit_bytes: int | None = None
    fits: bool | None = None
    recommended: bool = False
    layout_notes: tuple[str, ...] = ()
    activation_bytes: int | None = None
    temporary_bytes: int = 0
    compute_seconds: float | None = None
    slot_dtype: str | None = None
    master_copies: bool = False
    batch: int | None = None
    micro_batch: int = 1
    sequence: int | None = None
    checkpointing: str = "none"
    device: str | None = None
    possible: bool = True
    measured: str = ""
    status: str = "ok"
    reason: str | None = None

    def check(self) -> None:
        """Check that the members agree with each other.

        Raises: ResultsError if the members contradict each other.
        """
        total = self.parameter_bytes + self.gradient_bytes + sum(self.slot_bytes.values())
        total += (self.activation_bytes or 0) + self.temporary_bytes
        if total != self.device_bytes:
            raise ResultsError(f"plan {self.mesh} {self.layout} {self.placement}: its bytes do not add up")

    @property
    def step_seconds(self) -> float | None:
        """Seconds of forward and backward as far as they are known, update and exchange, one after the other."""
        if self.update_seconds is None or self.exchange_seconds is None:
            return None
        return self.update_seconds + self.exchange_seconds + (self.compute_seconds or 0.0)


def make_row(
    plan: Plan,
    workload: Workload,
    training: Training,
    again: Sequence[str],
    limit: int | None,
    chosen: bool,
    device: str | None = None,
    measured: str = "",
) -> Row:
    """Return the row of a plan; `again`: the words of `rerun` that name the workload, the limit and the speeds."""
    return Row(
        workload=workload.name,
        optimizer=training.optimizer,
        dtype=training.dtype,
        ema=training.ema,
        accumulate=training.accumulate,
        clip=training.clip,
        mesh=str(plan.mesh),
        devices=plan.mesh.devices,
        layout=plan.layout,
        placement=plan.placement,
        parameters=workload.elements,
        tensors=len(workload.tensors),
        parameter_bytes=plan.footprint.parameters,
        gradient_bytes=plan.footprint.gradients,
        slot_bytes=dict(plan.footprint.slots),
        device_bytes=plan.footprint.total,
        exchanges=tuple(map(Exchange.of, plan.collectives)),
        sent_bytes=plan.sent,
        step_sent_bytes=plan.sent_in_step,
        cpu_sent_bytes=sum(c.sent_on_cpu for c in plan.collectives if c.in_step),
        update_bytes=plan.update_bytes,
        rerun=_rerun(plan, training, again),
        update_seconds=plan.update_seconds,
        exchange_seconds=plan.exchange_seconds,
        limit_bytes=limit,
        fits=plan.fits,
        recommended=chosen,
        layout_notes=plan.notes,
        activation_bytes=plan.footprint.activations,
        temporary_bytes=plan.footprint.temporaries,
        compute_seconds=plan.compute_seconds,
        slot_dtype=training.slot_dtype,
        master_copies=training.master_copies,
        batch=plan.batch,
        micro_batch=training.micro_batch,
        sequence=training.sequence or (workload.architecture.sequence if workload.architecture else None),
        checkpointing=training.checkpointing,
        device=device,
        possible=plan.possible,
        measured=measured,
    )


def _rerun(plan: Plan, training: Training, again: Sequence[str]) -> str:
    words = ["dtopt", "bench", "plan", *again, "-o", training.optimizer, "--mesh", str(plan.mesh)]
    words += ["--layout", plan.layout, "--slot-placement", plan.placement]
    default = Training()
    for option, value, usual in (
        ("--dtype", training.dtype, default.dtype),
        ("--slot-dtype", training.slot_dtype, None),
        ("--batch-size", training.batch, None),
        ("--micro-batch", training.micro_batch, default.micro_batch),
        ("--sequence", training.sequence, None),
        ("--checkpointing", training.checkpointing, default.checkpointing),
        ("--gradient-accumulation-steps", 2 if training.accumulate else 1, 1),
    ):
        words += [option, str(value)] if value != usual else []
    words += [f"--{training.clip.replace('_', '-')}", "1"] if training.clip != "none" else []
    words += ["--use-ema"] * training.ema + ["--master-copies"] * training.master_copies
    return shlex.join(words)
