"""Measure migration against `cp`, on inputs made for it.

Each round measures both with the input dropped from the page cache, then both with it there, then `verify` and
`inspect`. So a slow moment of the machine affects all of them. Every command runs in its own process, and its time
includes the start. Byte code is compiled before, as for an installed program. `cp` is followed by `sync` of the copy,
as a migration syncs its output.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.errors import OptionError, UnknownNameError
from bench.measuring import environment, stats
from bench.measuring.process import allowed_cpus
from bench.migration import commands
from bench.migration.commands import CommandError
from bench.migration.inputs import ADAM, INPUTS, WIDTH, Input, rows_for
from bench.migration.row import COMMANDS, Command, OfCopy, Row
from bench.results.document import Result

ROOM = 4.0
"""Required free space, as a multiple of an input: the input, its copy or its migration, and temporary files."""


@dataclass
class _Measured:
    """Measurements of one input so far: seconds and peak bytes by command."""

    input: Input
    bytes: int = 0
    largest: int = 0
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    memory: dict[str, int] = field(default_factory=dict)
    reason: str | None = None


def run(
    migrate: Sequence[str],
    *,
    formats: Sequence[str] = (),
    size: int = 1_000_000_000,
    rounds: int = 5,
    folder: Path | None = None,
    timeout: float = 600.0,
    command: str = "",
    progress: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> Result:
    """Measure each format.

    Args:
      migrate: the words that run `dtopt migrate`; its commands `checkpoint`, `verify` and `inspect` are appended.
      size: bytes of tensors in each input.
      folder: parent of inputs and results, which are removed again; None for the system's temporary folder.
      timeout: most seconds of one command.

    Raises: UnknownNameError, OptionError (the folder does not exist or has too little space).
    """
    chosen = _chosen(formats)
    _require_room(folder, size)
    log = environment.Log(command, len(allowed_cpus()))
    measured = [_Measured(one) for one in chosen]
    interrupted = False
    try:
        for number, one in enumerate(measured):
            with tempfile.TemporaryDirectory(dir=folder, prefix="dtopt-bench-") as place:
                report_round = _teller(progress, one.input.name, number * (rounds + 1), len(measured) * (rounds + 1))
                _measure(one, list(migrate), Path(place), size, rounds, timeout, report_round)
    except KeyboardInterrupt:
        interrupted = True
    rows = tuple(_row(one, size, rounds) for one in measured)
    return Result(log.context(rounds=rounds), (), rows, interrupted, kind="migrate")


def _chosen(formats: Sequence[str]) -> list[Input]:
    known = {one.name: one for one in INPUTS}
    for name in formats:
        if name not in known:
            raise UnknownNameError(f"no format is called {name!r} here; there are: {', '.join(known)}")
    return [one for one in INPUTS if not formats or one.name in formats]


def _require_room(folder: Path | None, size: int) -> None:
    place = folder or Path(tempfile.gettempdir())
    if not place.is_dir():
        raise OptionError(f"there is no folder {place}")
    free = shutil.disk_usage(place).free
    if free < ROOM * size:
        raise OptionError(
            f"{free / 1e9:.1f} GB are free in {place} and {ROOM * size / 1e9:.1f} GB are needed: give a smaller --size"
            " or another --folder"
        )


def _teller(progress: Callable[[str, int, int], None], name: str, before: int, parts: int) -> Callable[[int], None]:
    return lambda done: progress(f"{name}, round {done}" if done else f"making {name}", before + done, parts)


def _measure(
    one: _Measured,
    migrate: list[str],
    place: Path,
    size: int,
    rounds: int,
    timeout: float,
    report_round: Callable[[int], None],
) -> None:
    source, dest, copy = place / one.input.file, place / "out", place / "copy"
    env, rows = commands.environment(place), rows_for(size)
    report_round(0)
    try:
        # In its own process: peak memory of a child starts at that of its parent, which making an input would raise.
        maker = [sys.executable, "-m", "bench.migration.inputs", one.input.name, str(source), str(rows)]
        commands.run(maker, env, place, timeout)
        files = sorted(place.glob(one.input.file + "*"))
        one.bytes, one.largest = sum(path.stat().st_size for path in files), rows * WIDTH * 4
        words = _words(one.input, migrate, source, dest)
        commands.run([sys.executable, "-c", "import tensorflow"], env, place, timeout)  # compile the byte code
        commands.run(words["inspect"], env, place, timeout)
        for number in range(rounds):
            report_round(number + 1)
            _round(one, words, files, dest, copy, lambda command: commands.run(command, env, place, timeout))
    except CommandError as error:
        one.reason = str(error)


def _words(one: Input, migrate: list[str], source: Path, dest: Path) -> dict[str, list[str]]:
    hints = []
    if one.needs_config:
        config = source.with_name("optimizer.json")
        config.write_text(json.dumps(ADAM))
        hints = ["--optimizer-config", str(config)]
    return {
        "migrate": [*migrate, "checkpoint", str(source), str(dest), "--quiet", *hints],
        "verify": [*migrate, "verify", str(source), str(dest), *hints],
        "inspect": [*migrate, "inspect", str(source), *hints],
    }


def _round(
    one: _Measured,
    words: dict[str, list[str]],
    files: Sequence[Path],
    dest: Path,
    copy: Path,
    run: Callable[[list[str]], tuple[float, int]],
) -> None:
    """Take one sample of everything; keep it only if it is complete."""
    seconds: dict[str, float] = {}

    def sample(name: str, command: str) -> None:
        seconds[name], peak = run(words[command])
        one.memory[name] = max(peak, one.memory.get(name, 0))

    commands.drop_from_cache(files)
    seconds["cp, dropped"] = commands.copy(files, copy)
    commands.drop_from_cache(files)
    sample("migrate, dropped", "migrate")
    shutil.rmtree(dest)
    seconds["cp"] = commands.copy(files, copy)
    for name in words:
        sample(name, name)
    shutil.rmtree(dest)
    for name, duration in seconds.items():
        one.seconds[name].append(duration)


def _row(one: _Measured, size: int, rounds: int) -> Row:
    complete = bool(one.seconds)
    status = "failed" if one.reason else "ok" if complete else "interrupted"
    reason = one.reason or (None if complete else "ended by Ctrl-C before its first round was complete")
    words = f"dtopt bench migrate --format {one.input.name} --size {size / 1e9:g}GB --rounds {rounds}"
    return Row(
        format=one.input.name,
        tensor_bytes=size,
        status=status,
        reason=reason,
        rerun=words,
        bytes=one.bytes or None,
        largest_tensor_bytes=one.largest or None,
        commands=tuple(_command(one, name) for name in COMMANDS if complete),
        of_copy=_of_copy(one.seconds["cp"], one.seconds["migrate"]) if complete else None,
        of_copy_dropped=_of_copy(one.seconds["cp, dropped"], one.seconds["migrate, dropped"]) if complete else None,
    )


def _command(one: _Measured, name: str) -> Command:
    seconds = one.seconds[name]
    middle = median(seconds)
    return Command(name, tuple(seconds), middle, one.bytes / middle, one.memory.get(name))


def _of_copy(copies: Sequence[float], migrations: Sequence[float]) -> OfCopy:
    ratios = [copy / migration for copy, migration in zip(copies, migrations, strict=True)]
    ratio = stats.estimate(ratios)
    return OfCopy(ratio.median, ratio.low, ratio.high, ratio.rounds)
