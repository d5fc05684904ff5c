"""`dtopt bench scale`: parse, measure, print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dtopt_cli import measuring, output
from dtopt_cli.measuring import OutputFile
from dtopt_cli.options import Json

if TYPE_CHECKING:
    from bench.results import Result

TIMEOUT = 124
PIPE_WIDTH = 120


def scale(
    workload: Annotated[str, typer.Option("-w", "--workload", help="A workload of `dtopt bench list`.")] = "gpt2:layer",
    optimizer: Annotated[str, typer.Option("-o", "--optimizer", help="As `dtopt bench plan` takes it.")] = "adam",
    mesh: Annotated[
        list[str] | None,
        typer.Option("--mesh", help="batch=2,model=2 or 2x2; may be repeated. The first is the baseline."),
    ] = None,
    clients: Annotated[
        int | None, typer.Option("--clients", min=1, help="DTensor clients to start on this machine.")
    ] = None,
    scaling: Annotated[
        str, typer.Option("--scaling", help="strong: the same model; weak: it grows with the mesh.")
    ] = "strong",
    layout: Annotated[str, typer.Option("--layout", help="A layout rule of `dtopt bench list`.")] = "megatron",
    placement: Annotated[str, typer.Option("--placement", help="like_variable or zero1.")] = "like_variable",
    device: Annotated[str, typer.Option("--device", help="auto, cpu, gpu or tpu.")] = "auto",
    clip: Annotated[str, typer.Option("--clip", help="none, clipvalue, clipnorm or global_clipnorm.")] = "none",
    ema: Annotated[bool, typer.Option("--ema", help="Keep averages of the parameters.")] = False,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Samples of each mesh.")] = 7,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="CPU threads of this machine, shared by its clients.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the order within rounds.")] = 0,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds a client may take for an answer.")] = 300,
    json: Json = False,
    file: OutputFile = None,
) -> None:
    """Measure a step on meshes of several shapes, each in processes of its own, beside what is predicted.

    \b
    dtopt bench scale                                     four meshes in one process each
    dtopt bench scale --clients 2 --mesh 2x1 --mesh 2x2   two DTensor clients on this machine
    dtopt bench scale --mesh 2x1    on every host, with DTENSOR_JOBS and DTENSOR_CLIENT_ID set: client 0 prints
    """
    from bench.scale import query, report

    with measuring.progress() as progress:
        result, hung, reports = query.answer(
            workload=workload,
            optimizer=optimizer,
            mesh=tuple(mesh or ()),
            clients=clients,
            scaling=scaling,
            layout=layout,
            placement=placement,
            device=device,
            clip=clip,
            ema=ema,
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
        _tell_failures(result)
    raise typer.Exit(TIMEOUT if hung and not result.interrupted else measuring.exit_code(result))


def _tell_failures(result: Result) -> None:
    """On the machines whose client does not report, only what went wrong is printed."""
    for row in result.rows:
        if row.status != "ok":
            output.messages().print(f"{row.mesh}: {row.reason}", markup=False)
