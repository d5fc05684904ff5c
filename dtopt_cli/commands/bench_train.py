"""`dtopt bench train`: parse, measure, print."""

from __future__ import annotations

from typing import Annotated

import typer

from dtopt_cli import measuring
from dtopt_cli.measuring import OutputFile
from dtopt_cli.options import Json


def train(
    problem: Annotated[
        list[str] | None,
        typer.Option("-w", "--problem", help="quadratic, logistic, teacher or chars; may be repeated."),
    ] = None,
    optimizer: Annotated[
        list[str] | None, typer.Option("-o", "--optimizer", help="As `dtopt bench step` takes it; may be repeated.")
    ] = None,
    learning_rate: Annotated[
        list[float] | None,
        typer.Option("--learning-rate", help="May be repeated; five around the optimizer's default if left out."),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option("-p", "--peer", help="Who makes the steps; may be repeated. The first is the baseline."),
    ] = None,
    mesh: Annotated[
        list[str] | None, typer.Option("--mesh", help="1, 2x2, ...; may be repeated. The first is the baseline.")
    ] = None,
    layout: Annotated[str, typer.Option("--layout", help="A layout rule of `dtopt bench list`.")] = "megatron",
    device: Annotated[str, typer.Option("--device", help="auto, cpu, gpu or tpu.")] = "auto",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each, from different starts and batches.")] = 5,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads of each peer.")] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds that one run may take.")] = 300.0,
    json: Json = False,
    file: OutputFile = None,
) -> None:
    """Train small problems to a target: steps and time, over learning rates and seeds.

    \b
    dtopt bench train                                      a small network, Adam, five learning rates
    dtopt bench train -w quadratic -o adam -o sgd          which optimizer gets there, and with which rates
    dtopt bench train -w chars --mesh 1 --mesh 2x2         a mesh beside one device
    dtopt bench train -w teacher -p optim-local -p torch-fused --learning-rate 0.01
    """
    from bench.train import report, run

    with measuring.progress() as progress:
        found = run.run(
            problems=tuple(problem or ()),
            optimizers=tuple(optimizer or ()),
            learning_rates=tuple(learning_rate or ()),
            peer=tuple(peer or ()),
            mesh=tuple(mesh or ()),
            layout=layout,
            device=device,
            seeds=seeds,
            threads=threads,
            timeout=timeout,
            command=measuring.command(),
            progress=progress,
        )
    measuring.give(found, lambda: report.render(found), json=json, file=file, piped_width=160)
    raise typer.Exit(measuring.exit_code(found))
