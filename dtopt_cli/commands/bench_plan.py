"""`dtopt bench plan`: parse, compute, print. No TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dtopt_cli import measuring
from dtopt_cli.measuring import OutputFile
from dtopt_cli.options import Json

DOES_NOT_FIT = 1
PIPE_WIDTH = 120


def plan(
    workload: Annotated[str | None, typer.Option("-w", "--workload", help="A workload of `dtopt bench list`.")] = None,
    shapes: Annotated[
        Path | None,
        typer.Option(
            "--shapes", metavar="FILE", help='JSON list of shapes: [256, 64] or {"name", "shape", "model_dim"}.'
        ),
    ] = None,
    optimizer: Annotated[
        str, typer.Option("-o", "--optimizer", help="adam, adafactor, rmsprop:momentum=0.9, ...")
    ] = "adam",
    mesh: Annotated[
        list[str] | None, typer.Option("--mesh", help="batch=2,model=4 or 2x4, of any size; may be repeated.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option("--devices", min=1, help="Try every (batch, model) mesh of so many devices.")
    ] = None,
    layout: Annotated[list[str] | None, typer.Option("--layout", help="Only this rule; may be repeated.")] = None,
    placement: Annotated[
        list[str] | None, typer.Option("--placement", help="like_variable or zero1; both by default.")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16, float16 or float64.")] = "float32",
    clip: Annotated[str, typer.Option("--clip", help="none, clipvalue, clipnorm or global_clipnorm.")] = "none",
    ema: Annotated[bool, typer.Option("--ema", help="Keep averages of the parameters.")] = False,
    accumulate: Annotated[bool, typer.Option("--accumulate", help="Accumulate gradients over calls.")] = False,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="Of one device, such as 16GB or 16GiB: what fits?")
    ] = None,
    other: Annotated[
        str | None, typer.Option("--other", metavar="SIZE", help="What activations and all else need of --memory.")
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option("--bandwidth", metavar="SPEED", help="Memory of one device, such as 900GB/s.")
    ] = None,
    link: Annotated[
        str | None, typer.Option("--link", metavar="SPEED", help="What one device sends to others, such as 50GB/s.")
    ] = None,
    roof: Annotated[
        Path | None,
        typer.Option("--roof", metavar="FILE", help="Result of `dtopt bench roof`: a mesh of CPUs that shares it."),
    ] = None,
    json: Json = False,
    file: OutputFile = None,
) -> None:
    """Predict bytes per device, exchanged bytes and step time on any mesh, without the hardware.

    \b
    dtopt bench plan -w llama-7b --devices 8 --memory 16GB     does it fit, and how?
    dtopt bench plan -w gpt2 --mesh 4x2 --bandwidth 900GB/s --link 50GB/s
    """
    from bench.forecast import query, report

    found = query.answer(
        workload=workload,
        shapes=shapes,
        optimizer=optimizer,
        mesh=tuple(mesh or ()),
        devices=devices,
        layout=tuple(layout or ()),
        placement=tuple(placement or ()),
        dtype=dtype,
        clip=clip,
        ema=ema,
        accumulate=accumulate,
        memory=memory,
        other=other,
        bandwidth=bandwidth,
        link=link,
        roof=roof,
        command=measuring.command(),
    )
    measuring.give(found, lambda: report.render(found.rows), json=json, file=file, piped_width=PIPE_WIDTH)
    if memory is not None and not any(row.fits for row in found.rows):
        raise typer.Exit(DOES_NOT_FIT)
