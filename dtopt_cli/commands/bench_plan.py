"""`dtopt bench plan`: parse, compute, print. No TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dtopt_cli import measuring
from dtopt_cli.commands import bench_options as options
from dtopt_cli.exit_codes import Exit
from dtopt_cli.measuring import OutputFile
from dtopt_cli.options import Json, spread

DEVICE_NAMES = ["v100-32gb", "a100-40gb", "a100-80gb", "h100", "h200", "tpu-v4", "tpu-v5e", "tpu-v5p"]
MACHINE = "The machine"


Devices = Annotated[int | None, typer.Option("--devices", min=1, help="Try every mesh of this many devices.")]
Layouts = Annotated[
    list[str] | None,
    typer.Option("--layout", help="Only this rule. Can be repeated.", autocompletion=options.complete(options.layouts)),
]
Placements = Annotated[
    list[str] | None,
    typer.Option(
        "--slot-placement",
        help="like_variable, zero1, zero2 or zero3. Can be repeated.",
        autocompletion=options.one_of("like_variable", "zero1", "zero2", "zero3"),
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        help="float32, bfloat16, float16 or float64.",
        autocompletion=options.one_of("float32", "bfloat16", "float16", "float64"),
    ),
]
SlotDtype = Annotated[
    str | None,
    typer.Option(
        "--slot-dtype",
        help="Slots in fewer bits: bfloat16 or int8.",
        autocompletion=options.one_of("bfloat16", "int8"),
    ),
]
MasterCopies = Annotated[bool, typer.Option("--master-copies", help="Keep parameters and slots in float32 as well.")]
Batch = Annotated[int | None, typer.Option("--batch-size", min=1, help="Examples of a step, on all devices.")]
MicroBatch = Annotated[int, typer.Option("--micro-batch", min=1, help="Examples that are processed at once.")]
Sequence = Annotated[int | None, typer.Option("--sequence", min=1, help="Tokens of an example.")]
Checkpointing = Annotated[
    str,
    typer.Option(
        "--checkpointing",
        help='What is recomputed: "none", "selective" (attention) or "full".',
        autocompletion=options.one_of("none", "selective", "full"),
    ),
]
DeviceType = Annotated[
    str | None,
    typer.Option(
        "--device-type",
        help=f"{', '.join(DEVICE_NAMES)}.",
        rich_help_panel=MACHINE,
        autocompletion=options.one_of(*DEVICE_NAMES),
    ),
]
Memory = Annotated[
    str | None, typer.Option("--memory", metavar="SIZE", help="Memory of one device: 16GB.", rich_help_panel=MACHINE)
]
Other = Annotated[
    str | None,
    typer.Option("--other", metavar="SIZE", help="How much of --memory is already in use.", rich_help_panel=MACHINE),
]
Bandwidth = Annotated[
    str | None, typer.Option("--bandwidth", metavar="SPEED", help="Speed of memory: 900GB/s.", rich_help_panel=MACHINE)
]
Links = Annotated[
    list[str] | None,
    typer.Option(
        "--link", metavar="SPEED", help="How fast a device sends: 50GB/s or model=300GB/s.", rich_help_panel=MACHINE
    ),
]
RoofOf = Annotated[
    Path | None,
    typer.Option(
        "--roof",
        metavar="FILE",
        help="Result of `bench roof` or of `bench step --device gpu`: the speed of memory. CPUs share it.",
        rich_help_panel=MACHINE,
    ),
]


@dataclass(frozen=True)
class Trained:
    """What needs memory in addition to slots."""

    dtype: Dtype = "float32"
    slot_dtype: SlotDtype = None
    master_copies: MasterCopies = False
    batch: Batch = None
    micro_batch: MicroBatch = 1
    sequence: Sequence = None
    checkpointing: Checkpointing = "selective"


@dataclass(frozen=True)
class Machine:
    """What is known of the devices."""

    device_type: DeviceType = None
    memory: Memory = None
    other: Other = None
    bandwidth: Bandwidth = None
    link: Links = None
    roof: RoofOf = None


@spread
def plan(
    *,
    workload: options.Workload = None,
    shapes: options.ShapesFrom = None,
    optimizer: options.Optimizer = "adam",
    mesh: options.Meshes = None,
    devices: Devices = None,
    layout: Layouts = None,
    placement: Placements = None,
    trained: Trained,
    gradients: options.Gradients,
    accumulation: options.Accumulation = 1,
    machine: Machine,
    json: Json = False,
    file: OutputFile = None,
) -> None:
    """Predict bytes per device, exchanged bytes and step time on any mesh, without the hardware.

    \b
    dtopt bench plan -w llama-7b --devices 8 --device-type a100-80gb
    dtopt bench plan --shapes model.h5 --mesh 4x2 --bandwidth 900GB/s
    """
    from bench import kinds
    from bench.forecast import measured, query, report
    from bench.forecast.footprint import Training

    measuring.require_writable(file)
    training = Training(
        optimizer, ema=gradients.use_ema, accumulate=accumulation > 1, clip=gradients.clip, **vars(trained)
    )
    result = query.answer(
        workload=workload,
        shapes=options.shapes(shapes),
        optimizer=optimizer,
        mesh=tuple(mesh or ()),
        devices=devices,
        layout=tuple(layout or ()),
        placement=tuple(placement or ()),
        training=training,
        device=machine.device_type,
        memory=machine.memory,
        other=machine.other,
        bandwidth=machine.bandwidth,
        link=tuple(machine.link or ()),
        roof=machine.roof,
        read_speed=lambda path: measured.read(kinds.load(path), str(path)),
        command=measuring.command(),
    )
    measuring.give(result, lambda: report.render(result.rows), json=json, file=file)
    if result.rows[0].limit_bytes is not None and not any(row.recommended for row in result.rows):
        raise typer.Exit(Exit.NO)
