"""Options that several commands of `dtopt bench` share: one spelling, that of `optim`'s arguments, and one meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bench.cases.options import Options
    from bench.cases.shapes import Shapes

STEP = "What a step does"
TIMING = "How it is timed"


def complete(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """For the shell: names that begin with what was typed, then those that hold it."""

    def of_shell(incomplete: str) -> list[str]:
        known = list(names())
        begin = [name for name in known if name.startswith(incomplete)]
        return begin + [name for name in known if incomplete in name and name not in begin]

    return of_shell


def workloads() -> Iterable[str]:
    from bench.cases.workloads import NAMES

    return NAMES


def optimizers() -> Iterable[str]:
    from bench.cases.algorithms import ALGORITHMS

    return [known.name for known in ALGORITHMS]


def peers() -> Iterable[str]:
    from bench.peers import PEERS

    return [*(peer.name for peer in PEERS), "all"]


def layouts() -> Iterable[str]:
    from bench.cases.layouts import RULES

    return RULES


def problems() -> Iterable[str]:
    from bench.train.problems import NAMES

    return NAMES


def stored_names() -> Iterable[str]:
    from bench.results import store

    return [f"@{name}" for name in store.names()]


def one_of(*words: str) -> Callable[[str], list[str]]:
    return complete(lambda: words)


Workloads = Annotated[
    list[str] | None,
    typer.Option(
        "-w",
        "--workload",
        help="Tensors to update: see `dtopt bench list workloads`.",
        autocompletion=complete(workloads),
    ),
]
Workload = Annotated[
    str | None,
    typer.Option(
        "-w",
        "--workload",
        help="Tensors to update: see `dtopt bench list workloads`.",
        autocompletion=complete(workloads),
    ),
]
ShapesFrom = Annotated[
    str | None,
    typer.Option(
        "--shapes",
        metavar="FILE|MODULE:FUNCTION",
        help="Your model's tensors: JSON, a checkpoint that `dtopt migrate` reads, or what a function returns.",
    ),
]
Optimizers = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--optimizer",
        help="NAME or NAME:ARGUMENT=VALUE: see `dtopt bench list optimizers`.",
        autocompletion=complete(optimizers),
    ),
]
Optimizer = Annotated[
    str,
    typer.Option(
        "-o",
        "--optimizer",
        help="NAME or NAME:ARGUMENT=VALUE: see `dtopt bench list optimizers`.",
        autocompletion=complete(optimizers),
    ),
]
Peers = Annotated[
    list[str] | None,
    typer.Option(
        "-p",
        "--peer",
        help="Who takes part: a name or its start (`dtopt bench list peers`), all, or MODULE:NAME.",
        autocompletion=complete(peers),
    ),
]
Problems = Annotated[
    list[str] | None,
    typer.Option(
        "--problem", help="What to train: see `dtopt bench list problems`.", autocompletion=complete(problems)
    ),
]
Meshes = Annotated[
    list[str] | None, typer.Option("--mesh", help="batch=2,model=2 or 2x2. Can be repeated; the first is the baseline.")
]
Layout = Annotated[
    str,
    typer.Option(
        "--layout", help="How tensors are laid out: see `dtopt bench list layouts`.", autocompletion=complete(layouts)
    ),
]
Device = Annotated[
    str, typer.Option("--device", help="auto, cpu, gpu or tpu.", autocompletion=one_of("auto", "cpu", "gpu", "tpu"))
]
Clipnorm = Annotated[
    float | None, typer.Option("--clipnorm", min=0, help="Clip each gradient's norm.", rich_help_panel=STEP)
]
Clipvalue = Annotated[float | None, typer.Option("--clipvalue", min=0, help="Clip each element.", rich_help_panel=STEP)]
GlobalClipnorm = Annotated[
    float | None,
    typer.Option("--global-clipnorm", min=0, help="Clip the norm of all gradients together.", rich_help_panel=STEP),
]
UseEma = Annotated[bool, typer.Option("--use-ema", help="Keep averages of the parameters.", rich_help_panel=STEP)]
EmaMomentum = Annotated[
    float, typer.Option("--ema-momentum", min=0, max=1, help="Momentum of the averages.", rich_help_panel=STEP)
]
Accumulation = Annotated[
    int,
    typer.Option("--gradient-accumulation-steps", min=1, help="Gradients that make one step.", rich_help_panel=STEP),
]
WeightDecay = Annotated[
    float | None, typer.Option("--weight-decay", help="Weight decay, times the learning rate.", rich_help_panel=STEP)
]
SlotPlacement = Annotated[
    str,
    typer.Option(
        "--slot-placement",
        help="Where slots are: like_variable or zero1.",
        rich_help_panel=STEP,
        autocompletion=one_of("like_variable", "zero1"),
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        help="Dtype of parameters and gradients: float32 or bfloat16.",
        rich_help_panel=STEP,
        autocompletion=one_of("float32", "bfloat16"),
    ),
]
SparseRows = Annotated[
    int | None,
    typer.Option("--sparse-rows", min=1, help="How many rows of a table have a gradient.", rich_help_panel=STEP),
]
LazyRows = Annotated[
    bool, typer.Option("--lazy-rows", help="Leave rows without a gradient alone.", rich_help_panel=STEP)
]
Where = Annotated[
    str | None,
    typer.Option(
        "--in",
        help="How steps are called: eager, function or fit. Default: as each peer usually is.",
        rich_help_panel=STEP,
        autocompletion=one_of("eager", "function", "fit"),
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option("--rounds", min=1, help="Take exactly this many samples of each.", rich_help_panel=TIMING),
]
Budget = Annotated[
    float | None,
    typer.Option(
        "--budget",
        min=1,
        help="Seconds until measuring stops, if intervals are not narrow before. Default: 60, and 15 a peer beyond 8.",
        rich_help_panel=TIMING,
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes", min=1, help="Processes of each peer, which take turns. Default: 2 to 8.", rich_help_panel=TIMING
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of numbers and order.", rich_help_panel=TIMING)]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="CPU threads of each peer.", rich_help_panel=TIMING)
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=1, help="Seconds that an answer may take.", rich_help_panel=TIMING)
]


Mesh = Annotated[str, typer.Option(help="batch=2,model=2 or 2x2.")]
Baseline = Annotated[str, typer.Option(help="The peer to compare with.", autocompletion=complete(peers))]
Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="PATH|COMMIT|VERSION",
        help="Measure another dtopt against this one. Exits with 1 if this one is slower, 5 if it is unclear.",
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="Use fewer peers, one process each, half the time.")]
InSitu = Annotated[
    bool, typer.Option("--in-situ", help="Also measure the step's share of forward and backward.", rich_help_panel=STEP)
]
Cache = Annotated[
    str,
    typer.Option(
        help="warm, or cold: cleared before each timed step.",
        rich_help_panel=TIMING,
        autocompletion=one_of("warm", "cold"),
    ),
]
Profile = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="Also write a trace of the first peer, for ui.perfetto.dev.",
        rich_help_panel=TIMING,
    ),
]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Also print how to measure each row again.")]


@dataclass(frozen=True)
class Gradients:
    """How gradients are clipped, and whether averages are kept."""

    clipnorm: Clipnorm = None
    clipvalue: Clipvalue = None
    global_clipnorm: GlobalClipnorm = None
    use_ema: UseEma = False

    @property
    def clip(self) -> str:
        """The option that the user set, or "none". Two of them are a usage error."""
        limits = [name for name in ("clipnorm", "clipvalue", "global_clipnorm") if getattr(self, name) is not None]
        if len(limits) > 1:
            raise typer.BadParameter("give one of them", param_hint="--clipnorm, --clipvalue and --global-clipnorm")
        return limits[0] if limits else "none"


@dataclass(frozen=True)
class Step:
    """What else a step does."""

    ema_momentum: EmaMomentum = 0.99
    accumulation: Accumulation = 1
    weight_decay: WeightDecay = None
    placement: SlotPlacement = "like_variable"
    dtype: Dtype = "float32"
    sparse_rows: SparseRows = None
    lazy_rows: LazyRows = False
    where: Where = None
    in_situ: InSitu = False
    cache: Cache = "warm"

    def options(self, gradients: Gradients) -> Options:
        """As `bench.cases` has them."""
        from bench.cases.options import Options

        clip = gradients.clip
        return Options(
            clip=None if clip == "none" else f"{clip.replace('clip', '')}={getattr(gradients, clip):g}",
            ema=self.ema_momentum if gradients.use_ema else None,
            accumulate=self.accumulation,
            weight_decay=self.weight_decay,
            placement=self.placement,
            dtype=self.dtype,
            sparse_rows=self.sparse_rows,
            lazy_rows=self.lazy_rows,
            cache=self.cache,
            in_situ=self.in_situ,
            where=self.where,
        )


@dataclass(frozen=True)
class Timing:
    """How steps are timed."""

    rounds: Rounds = None
    budget: Budget = None
    processes: Processes = None
    threads: Threads = None
    timeout: Timeout = 300.0
    seed: Seed = 0
    profile: Profile = None


def split(values: list[str] | None) -> list[str]:
    """Names given as `-p a -p b` or `-p a,b`."""
    return [part.strip() for value in values or [] for part in value.split(",")]


def shapes(text: str | None) -> Shapes | None:
    """What `--shapes` names: a JSON list, `module:function`, or any checkpoint that `migrate` reads."""
    from pathlib import Path

    from bench.cases import shapes as shapes_module

    if text is None:
        return None
    path = Path(text)
    if path.suffix == ".json" or (
        not path.exists() and ":" not in text and not list(path.parent.glob(path.name + "*"))
    ):
        return shapes_module.read(path)
    if ":" in text and not path.exists():
        return shapes_module.of_variables(text, text, _variables_of(text))
    import migrate
    from optim.errors import UnsupportedError

    try:
        state = migrate.read(text)
    except UnsupportedError as error:
        raise UnsupportedError(f"{error}; for --shapes, module:function that returns variables does as well") from error
    pairs = [(variable.name, tuple(variable.shape)) for variable in state.variables if variable.trainable is not False]
    return shapes_module.of_variables(path.name, text, pairs)


def _variables_of(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of what a function returns: variables, or shapes."""
    import importlib
    import sys

    sys.path.append("")
    module, _, name = text.partition(":")
    try:
        variables = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError) as error:
        raise typer.BadParameter(f"{text}: {error}", param_hint="--shapes") from error
    pairs = []
    for number, one in enumerate(variables):
        shape = getattr(one, "shape", one)
        label = getattr(one, "path", None) or getattr(one, "name", None) or f"tensor{number}"
        pairs.append((str(label), tuple(int(size) for size in shape)))
    return pairs
