"""`dtopt bench scale`: parse, measure, print."""

from __future__ import annotations

from typing import Annotated

import typer

from dtopt_cli import measuring
from dtopt_cli.commands import bench_options as options
from dtopt_cli.exit_codes import Exit
from dtopt_cli.measuring import OutputFile
from dtopt_cli.options import Json, spread

PIPE_WIDTH = 120

Clients = Annotated[int | None, typer.Option("--clients", min=1, help="DTensor clients to start on this machine.")]
Scaling = Annotated[
    str,
    typer.Option(
        "--scaling",
        help="strong: the same model; weak: it grows with the mesh.",
        autocompletion=options.one_of("strong", "weak"),
    ),
]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Samples of each mesh.")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="CPU threads of this machine, shared by its clients.")
]


@spread
def scale(
    *,
    workload: options.Workload = None,
    shapes: options.ShapesFrom = None,
    optimizer: options.Optimizer = "adam",
    mesh: options.Meshes = None,
    clients: Clients = None,
    scaling: Scaling = "strong",
    layout: options.Layout = "megatron",
    placement: options.SlotPlacement = "like_variable",
    device: options.Device = "auto",
    gradients: options.Gradients,
    rounds: Rounds = 9,
    threads: Threads = None,
    seed: options.Seed = 0,
    timeout: options.Timeout = 300,
    json: Json = False,
    file: OutputFile = None,
) -> None:
    """Measure a step on meshes of several shapes, each in separate processes, and compare with the prediction.

    \b
    dtopt bench scale                                     four meshes in one process each
    dtopt bench scale --clients 2 --mesh 2x1 --mesh 2x2   two DTensor clients on this machine
    dtopt bench scale --mesh 2x1    on every host, with DTENSOR_JOBS and DTENSOR_CLIENT_ID set
    """
    from bench.scale import query, report

    measuring.require_writable(file)
    with measuring.progress() as progress:
        result, hung, reports = query.answer(
            workload=workload,
            shapes=options.shapes(shapes),
            optimizer=optimizer,
            mesh=tuple(mesh or ()),
            clients=clients,
            scaling=scaling,
            layout=layout,
            placement=placement,
            device=device,
            clip=gradients.clip,
            ema=gradients.use_ema,
            rounds=rounds,
            threads=threads,
            seed=seed,
            timeout=timeout,
            command=measuring.command(),
            progress=progress,
        )
    if reports:
        measuring.give(result, lambda: report.render(result), json=json, file=file, piped_width=PIPE_WIDTH)
    else:
        measuring.tell_failures(result)
    raise typer.Exit(Exit.NO_ANSWER if hung and not result.interrupted else measuring.exit_code(result))
