"""`dtopt bench step`: parse, measure, print."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from dtopt_cli import measuring, output
from dtopt_cli.commands import bench_options as options
from dtopt_cli.commands.bench_list import list_and_leave
from dtopt_cli.exit_codes import Exit
from dtopt_cli.measuring import OutputFile
from dtopt_cli.options import Json, spread

if TYPE_CHECKING:
    from bench.results.document import Result

Names = Annotated[
    bool, typer.Option("--list", callback=list_and_leave, is_eager=True, help="List what can be measured.")
]


@spread
def step(
    *,
    workload: options.Workloads = None,
    shapes: options.ShapesFrom = None,
    optimizer: options.Optimizers = None,
    peer: options.Peers = None,
    mesh: options.Mesh = "model=2",
    layout: options.Layout = "megatron",
    device: options.Device = "auto",
    baseline: options.Baseline = "tf_keras-mesh",
    against: options.Against = None,
    quick: options.Quick = False,
    gradients: options.Gradients,
    further: options.Step,
    timing: options.Timing,
    json: Json = False,
    file: OutputFile = None,
    verbose: options.Verbose = False,
    names: Names = False,
) -> None:
    """Time one optimizer step of every framework on the same shapes and numbers.

    \b
    dtopt bench                                     a true answer in a minute
    dtopt bench -w resnet50 -p all                  every peer on ResNet-50
    dtopt bench -o sgd:momentum=0.9 --clipnorm 1    momentum, each gradient clipped to norm 1
    dtopt bench --shapes model.h5 -p optim -p torch  your model: our peers against PyTorch
    dtopt bench --against main                      is this checkout slower than another commit?
    dtopt bench --in fit -p optim-plain,keras3      where people train
    dtopt bench -p optim-native --profile t.json    what happens in a step, for Perfetto
    """
    from bench.step import query, report, run
    from bench.step.against import home

    chosen = further.options(gradients)
    measuring.require_writable(file)
    measuring.require_writable(timing.profile)
    with home(against) if against else nullcontext() as other:
        plan = query.make_plan(
            workload=options.split(workload),
            shapes=options.shapes(shapes),
            optimizer=options.split(optimizer),
            peer=options.split(peer),
            mesh=mesh,
            against=other,
            device=device,
            layout=layout,
            baseline=baseline,
            quick=quick,
            options=chosen,
            **vars(timing),
            command=measuring.command(),
        )
        with measuring.progress() as progress:
            result = run.run(plan, progress=progress)
    measuring.give(result, lambda: report.render(result, reruns=verbose), json=json, file=file)
    if not (json or workload or shapes or optimizer or peer):
        _print_more()
    raise typer.Exit(measuring.exit_code(result) or (_answer(result) if against else 0))


def _answer(result: Result) -> int:
    """With `--against`: 1 if a peer of this version is slower, 5 if that is unclear, else 0."""
    verdicts = {row.ratio.verdict for row in result.rows if row.ratio and row.ratio.baseline != row.peer}
    return Exit.NO if "slower" in verdicts else Exit.TOO_NOISY if "unclear" in verdicts else Exit.OK


def _print_more() -> None:
    from rich.table import Table

    from bench.step import query

    table = Table(box=None, pad_edge=False, show_header=False)
    for words, what in (*query.MORE, ("--verbose", "how to measure each row again")):
        table.add_row(f"dtopt bench {words}", what)
    console = output.results()
    console.print("\nMore:")
    console.print(table)
