"""Compile one library and record its sources next to it. Run as a script, it does so in the background.

It imports only Python's own library, so that a compilation starts immediately.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

COMPILERS = ("g++", "c++", "clang++")  # the environment variable CXX has priority
LIMIT = 600  # most seconds of a compiler


class BuildError(Exception):
    """Why there is no build; only `bench` and tools see it outside `optim.native`."""


@dataclass(frozen=True)
class Recipe:
    """How to make a library: each step of `objects` compiles a file, or a text, to an object; then all are linked.

    Attributes:
      key: a digest of everything that the result depends on.
      objects: (a path, or the source itself if it has a line break; flags) of each.
    """

    name: str
    key: str
    objects: tuple[tuple[str, tuple[str, ...]], ...]
    flags: tuple[str, ...]
    link: tuple[str, ...] = ()


def is_intact(path: Path, key: str) -> bool:
    """Whether the library is complete and made for `key`: loading another, or an incomplete one, may crash."""
    try:
        record = json.loads(_record(path).read_text(encoding="utf-8"))
        if record["key"] != key or path.stat().st_size != record["size"]:
            return False
        return hashlib.sha256(path.read_bytes()).hexdigest() == record["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def compile_into(recipe: Recipe, path: Path) -> Path:
    """Make the library, unless it exists; concurrent processes wait for one of them.

    Raises:
      BuildError: there is no compiler, or it failed, or the folder cannot be written.
    """
    command = compiler()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _lock(path.with_suffix(".lock")):
            if not is_intact(path, recipe.key):
                _compile(command, recipe, path)
    except OSError as error:
        raise BuildError(f"the folder {path.parent} cannot be used: {error}; set XDG_CACHE_HOME to another") from error
    return path


def compiler() -> list[str]:
    """Return the command that calls the compiler; CXX may have arguments. Raises BuildError."""
    setting = os.environ.get("CXX")
    commands = [shlex.split(setting)] if setting else [[name] for name in COMPILERS]
    choice = next((command for command in commands if command and shutil.which(command[0])), None)
    if choice is None:
        names = ", ".join(" ".join(command) for command in commands)
        raise BuildError(f"no C++ compiler: {names} not found; install one, or set CXX")
    return choice


def _compile(command: list[str], recipe: Recipe, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        folder = Path(name)
        calls, objects = [], []
        for i, (source, flags) in enumerate(recipe.objects):
            file = Path(source)
            if "\n" in source:
                file = folder / f"{i}.cc"
                file.write_text(source, encoding="utf-8")
            objects.append(str(folder / f"{i}.o"))
            flags = (*recipe.flags, *flags)
            calls.append([*command, *flags, *_without_paths(flags, folder), "-c", str(file), "-o", objects[-1]])
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_call, calls))
        library = folder / path.name
        _call([*command, "-shared", *objects, *recipe.link, "-o", str(library)])
        os.chmod(library, 0o755)  # whatever the umask: a file that others may write to is not loaded
        data = library.read_bytes()
        record = {"key": recipe.key, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        written = folder / "record"
        written.write_text(json.dumps(record), encoding="utf-8")
        os.chmod(written, 0o644)
        os.replace(library, path)
        os.replace(written, _record(path))


def _without_paths(flags: Sequence[str], folder: Path) -> list[str]:
    """Return flags that keep the build folder out of a library: the same sources give the same bytes anywhere."""
    includes = [flag[2:] for flag in flags if flag.startswith("-I")]
    return [
        f"-ffile-prefix-map={place}=." for place in dict.fromkeys([*includes, str(folder), str(Path(__file__).parent)])
    ]


def _record(path: Path) -> Path:
    return path.with_suffix(".json")


def _call(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} took longer than {LIMIT} s") from error
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise BuildError(f"{command[0]} failed: {' / '.join(errors[:3]) or f'exit status {done.returncode}'}")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    if os.name != "posix":  # os.replace alone keeps builds whole; the lock only spares a second one
        yield
        return
    import fcntl

    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def start(recipes: Sequence[tuple[Recipe, Path]]) -> subprocess.Popen[str]:
    """Make libraries, one after the other, in a process that outlives this one; its stderr reports problems."""
    request = json.dumps([[asdict(recipe), str(path)] for recipe, path in recipes])
    process = subprocess.Popen(
        [sys.executable, "-I", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(request)
    process.stdin.close()
    return process


def _main() -> int:
    if hasattr(os, "nice"):
        os.nice(5)  # training has priority
    for fields, path in json.load(sys.stdin):
        fields["objects"] = tuple((source, tuple(flags)) for source, flags in fields["objects"])
        try:
            compile_into(Recipe(**fields), Path(path))
        except BuildError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
