"""Find, decode and replace the files of a program."""

from __future__ import annotations

import codecs
import os
import re
import tempfile
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from migrate.code import notebooks
from migrate.errors import DamagedFileError
from optim.errors import DtoptError, UnsupportedError

SUFFIXES = (".py", ".ipynb")
SKIPPED = {"__pycache__", "node_modules", "site-packages", "build", "dist", "venv", "env"}
WORDS = re.compile(
    r"optimi[sz]er|\.lr\b|\.compile\s*\(|ReduceLROnPlateau|LearningRateScheduler|_decay\b|decay_restarts\b|CosineDecay"
    r"|piecewise_constant|_[sg]et_hyper|(?:adam|sgd|rmsprop|adagrad|adadelta|ftrl|lamb|lars|lion|novograd|yogi)\w*\s*\(",
    re.IGNORECASE,
)
"""A file without any of these contains nothing to migrate, and is not parsed."""
FRAMEWORK = re.compile(r"keras|tensorflow|\btf\b|transformers", re.IGNORECASE)
OTHERS = re.compile(r"^\s*(?:import|from)\s+(?:torch|jax|optax|mxnet|paddle)\b", re.MULTILINE)


def may_have_places(code: str) -> bool:
    """Whether it is worth parsing. A program that uses only another framework is not."""
    return bool(WORDS.search(code)) and not (OTHERS.search(code) and not FRAMEWORK.search(code))


class NoFilesError(DtoptError, FileNotFoundError):
    """A path is missing, or nothing under it is a program."""

    exit_code = 2


@dataclass(frozen=True)
class Program:
    """One file. `code` is its Python; the cells of a notebook are joined."""

    path: Path
    code: str
    encoding: str = "utf-8"
    notebook: notebooks.Notebook | None = None

    def place(self, line: int) -> tuple[int | None, int]:
        """(cell or None, line)."""
        return self.notebook.place(line) if self.notebook else (None, line)

    def shown(self, code: str) -> list[str]:
        """The lines of its Python for a diff, as many as in `code`."""
        return self.notebook.shown(code) if self.notebook else code.splitlines()

    def text_of(self, code: str) -> str:
        """The content of the file if its Python is `code`."""
        return self.notebook.with_code(code).to_text() if self.notebook else code


def find(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return the programs at and under these paths, in order, each once.

    Raises NoFilesError: a path is missing or has no program.
    """
    programs: dict[Path, None] = {}
    for path in map(Path, paths):
        if path.is_file():
            programs[path] = None
            continue
        if not path.is_dir():
            raise NoFilesError(f"{path}: the file or folder does not exist")
        under = list(_walk(path))
        if not under:
            raise NoFilesError(f"{path}: no .py or .ipynb file under it")
        programs.update(dict.fromkeys(under))
    return list(programs)


def _walk(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in SKIPPED and not f.startswith("."))
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(SUFFIXES))


def read(path: Path) -> Program:
    """Read a program, with its line endings. Raises DamagedFileError if it cannot be decoded."""
    try:
        data = path.read_bytes()
        if path.suffix == ".ipynb":
            text = data.decode("utf-8")
            notebook = notebooks.read(text, str(path))
            return Program(path, notebook.code, notebook=notebook)
        encoding, _ = tokenize.detect_encoding(iter(data.splitlines(keepends=True)).__next__)
        return Program(path, data.decode(encoding), encoding)
    except (OSError, UnicodeDecodeError, SyntaxError, LookupError, StopIteration) as error:
        if path.suffix in SUFFIXES:
            raise DamagedFileError(f"{path} cannot be read as text ({error})") from error
        text = f"{path} is not a program: give .py or .ipynb files, or folders; for a checkpoint"
        raise UnsupportedError(f"{text} use `dtopt migrate checkpoint {path} DEST`") from error


def write(program: Program, code: str) -> None:
    """Replace the file at once, with its permissions; a link stays a link."""
    target = Path(os.path.realpath(program.path))
    data = program.text_of(code).encode(program.encoding)
    if program.encoding == "utf-8-sig" and not data.startswith(codecs.BOM_UTF8):
        data = codecs.BOM_UTF8 + data
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(name, target.stat().st_mode & 0o7777)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
