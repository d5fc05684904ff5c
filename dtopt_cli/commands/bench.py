"""`dtopt bench`: parse, measure, print."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dtopt_cli import measuring, output
from dtopt_cli.commands import (
    bench_check,
    bench_compare,
    bench_migrate,
    bench_plan,
    bench_report,
    bench_roof,
    bench_scale,
    bench_train,
)
from dtopt_cli.measuring import OutputFile

OPTIONS = "What a step does, and how it is timed"


class StepByDefault(TyperGroup):
    """`dtopt bench --quick` means `dtopt bench step --quick`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        asks_for_help = bool(args) and args[0] in ctx.help_option_names
        if not args or (args[0].startswith("-") and not asks_for_help):
            args = ["step", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=StepByDefault,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def group() -> None:
    """Measure optimizer steps side by side. Without a command it is `step`: see `dtopt bench step --help`."""


def _list_and_leave(wanted: bool) -> None:
    if wanted:
        list_names()
        raise typer.Exit


@app.command()
def step(
    workload: Annotated[
        list[str] | None, typer.Option("-w", "--workload", help="Shapes to update; may be repeated.")
    ] = None,
    optimizer: Annotated[
        list[str] | None,
        typer.Option("-o", "--optimizer", help="NAME or NAME:ARGUMENT=VALUE, see `list`; may be repeated."),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option("-p", "--peer", help="Who takes part, by name or its start, or all; may be repeated."),
    ] = None,
    mesh: Annotated[str, typer.Option(help="batch=2,model=2 or 2x2.")] = "model=2",
    device: Annotated[str, typer.Option(help="auto, cpu, gpu or tpu.")] = "auto",
    layout: Annotated[str, typer.Option(help="megatron, kerashub, fsdp, largest-axis or replicated.")] = "megatron",
    baseline: Annotated[str, typer.Option(help="The peer that ratios are taken to.")] = "tf_keras-mesh",
    rounds: Annotated[int | None, typer.Option(min=1, help="Samples per peer; 7, or 5 with --quick.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer peers and rounds.")] = False,
    clip: Annotated[
        str | None, typer.Option(help="value=LIMIT, norm=LIMIT or global_norm=LIMIT.", rich_help_panel=OPTIONS)
    ] = None,
    ema: Annotated[
        float | None,
        typer.Option(metavar="MOMENTUM", help="Keep a moving average of the parameters.", rich_help_panel=OPTIONS),
    ] = None,
    accumulate: Annotated[int, typer.Option(min=1, help="Gradients that make one step.", rich_help_panel=OPTIONS)] = 1,
    weight_decay: Annotated[
        float | None,
        typer.Option(help="Decoupled, times the learning rate.", rich_help_panel=OPTIONS),
    ] = None,
    placement: Annotated[
        str, typer.Option(help="Of slots: like_variable or zero1.", rich_help_panel=OPTIONS)
    ] = "like_variable",
    dtype: Annotated[
        str, typer.Option(help="Of parameters and gradients: float32 or bfloat16.", rich_help_panel=OPTIONS)
    ] = "float32",
    sparse_rows: Annotated[
        int | None,
        typer.Option(min=1, help="Rows of each table that have a gradient; else dense.", rich_help_panel=OPTIONS),
    ] = None,
    lazy_rows: Annotated[
        bool, typer.Option("--lazy-rows", help="Leave the other rows as they are.", rich_help_panel=OPTIONS)
    ] = False,
    cache: Annotated[
        str, typer.Option(help="warm, or cold: cleared before each timed step.", rich_help_panel=OPTIONS)
    ] = "warm",
    in_situ: Annotated[
        bool,
        typer.Option(
            "--in-situ", help="Also time a small forward and backward with the step.", rich_help_panel=OPTIONS
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the numbers and of the order.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of each peer; all by default.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds a peer may take for one answer.")] = 300.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    file: OutputFile = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Also print how to measure each row again.")] = False,
    names: Annotated[
        bool,
        typer.Option("--list", callback=_list_and_leave, is_eager=True, help="List what can be measured."),
    ] = False,
) -> None:
    """Time one optimizer step of every framework on the same shapes and numbers.

    \b
    dtopt bench                                     a true answer in a minute
    dtopt bench -w resnet50 -p all                  every peer on ResNet-50
    dtopt bench -o sgd:momentum=0.9 --clip norm=1   momentum, each gradient clipped to norm 1
    dtopt bench -p optim -p torch --mesh 2x2        our executors beside PyTorch
    """
    from bench import plan, report, runner
    from bench.options import Options

    options = Options(
        clip=clip,
        ema=ema,
        accumulate=accumulate,
        weight_decay=weight_decay,
        placement=placement,
        dtype=dtype,
        sparse_rows=sparse_rows,
        lazy_rows=lazy_rows,
        cache=cache,
        in_situ=in_situ,
    )
    wanted = plan.make_plan(
        workload=_split(workload),
        optimizer=_split(optimizer),
        peer=_split(peer),
        mesh=mesh,
        device=device,
        layout=layout,
        baseline=baseline,
        rounds=rounds,
        quick=quick,
        seed=seed,
        threads=threads,
        timeout=timeout,
        options=options,
        command=measuring.command(),
    )
    with measuring.progress() as progress:
        result = runner.run(wanted, progress=progress)
    measuring.give(result, lambda: report.render(result, reruns=verbose), json=json, file=file)
    if not (json or workload or optimizer or peer):
        _print_more()
    raise typer.Exit(measuring.exit_code(result))


def _split(values: list[str] | None) -> list[str]:
    """`-p a -p b` and `-p a,b` alike."""
    return [part.strip() for value in values or [] for part in value.split(",")]


app.command()(bench_plan.plan)
app.command()(bench_roof.roof)
app.command()(bench_scale.scale)
app.command()(bench_compare.compare)
app.command()(bench_check.check)
app.command()(bench_report.report)
app.command()(bench_train.train)
app.command()(bench_migrate.migrate)


@app.command("list")
def list_names() -> None:
    """List workloads, optimizers, layouts and peers."""
    from rich.table import Table

    from bench import algorithms, layouts, peers, workloads

    table = Table(box=None, pad_edge=False, show_header=False)
    for name in workloads.NAMES:
        found = workloads.workload(name)
        size = f"{found.elements:,} in {len(found.tensors):,} tensors"
        table.add_row("workload", name, f"{found.summary}: {size}")
    for algorithm in algorithms.ALGORITHMS:
        arguments = (f"{name}={algorithms.shown(value)}" for name, value in algorithm.hyperparameters.items())
        table.add_row("optimizer", algorithm.name, " ".join(arguments))
    for rule in layouts.RULES:
        table.add_row("layout", rule, "")
    for peer in peers.PEERS:
        table.add_row("peer", peer.name, peer.summary)
    output.results().print(table)


@app.command()
def env(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Show the machine and the versions that a result would be recorded with."""
    from bench import environment, process

    found = environment.describe(len(process.allowed_cpus()))
    if json:
        output.print_json(found)
        return
    for name, value in found.items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        output.results().print(f"{name:24}{shown}", markup=False)


def _print_more() -> None:
    from rich.table import Table

    from bench import plan

    table = Table(box=None, pad_edge=False, show_header=False)
    for options, what in (*plan.MORE, ("--verbose", "how to measure each row again")):
        table.add_row(f"dtopt bench {options}", what)
    console = output.results()
    console.print("\nMore:")
    console.print(table)
