"""`dtopt bench train`: parse, measure, print."""

from __future__ import annotations

from typing import Annotated

import typer

from dtopt_cli import measuring
from dtopt_cli.commands import bench_options as options
from dtopt_cli.measuring import OutputFile
from dtopt_cli.options import Json


def train(
    problem: options.Problems = None,
    optimizer: options.Optimizers = None,
    learning_rate: Annotated[
        list[float] | None,
        typer.Option("--learning-rate", help="May be repeated; five around the optimizer's default if left out."),
    ] = None,
    peer: options.Peers = None,
    mesh: options.Meshes = None,
    layout: options.Layout = "megatron",
    device: options.Device = "auto",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each, from different starts and batches.")] = 6,
    threads: options.Threads = None,
    timeout: options.Timeout = 300.0,
    json: Json = False,
    file: OutputFile = None,
) -> None:
    """Train small problems to a target: steps and time, over learning rates and seeds.

    \b
    dtopt bench train                                      a small network, Adam, five learning rates
    dtopt bench train --problem quadratic -o adam -o sgd          which optimizer gets there, and with which rates
    dtopt bench train --problem chars --mesh 1 --mesh 2x2         a mesh against one device
    dtopt bench train --problem teacher -p optim-local -p torch-fused
    """
    from bench.train import report, run

    measuring.require_writable(file)
    with measuring.progress() as progress:
        result = run.run(
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
    measuring.give(result, lambda: report.render(result), json=json, file=file, piped_width=160)
    raise typer.Exit(measuring.exit_code(result))
