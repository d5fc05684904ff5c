"""`dtopt bench`: the group of its commands."""

from __future__ import annotations

from typing import Any

from dtopt_cli import parsing
from dtopt_cli.commands import (
    bench_check,
    bench_compare,
    bench_history,
    bench_list,
    bench_migrate,
    bench_plan,
    bench_report,
    bench_roof,
    bench_scale,
    bench_step,
    bench_train,
)


class StepByDefault(parsing.Group):
    """`dtopt bench --quick` means `dtopt bench step --quick`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        asks_for_help = bool(args) and args[0] in ctx.help_option_names
        completes = ctx.resilient_parsing  # the shell asks which commands there are
        if not completes and (not args or (args[0].startswith("-") and not asks_for_help)):
            args = ["step", *args]
        return super().parse_args(ctx, args)


app = parsing.App(
    cls=StepByDefault,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def group() -> None:
    """Measure optimizer steps side by side. Without a command it is `step`: see `dtopt bench step --help`."""


app.command()(bench_step.step)
app.command()(bench_plan.plan)
app.command()(bench_roof.roof)
app.command()(bench_scale.scale)
app.command()(bench_compare.compare)
app.command()(bench_history.history)
app.command()(bench_check.check)
app.command()(bench_report.report)
app.command()(bench_train.train)
app.command()(bench_migrate.migrate)
app.command("list")(bench_list.list_names)
app.command()(bench_list.env)
