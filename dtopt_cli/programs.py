"""Hints that the program gives which trained a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dtopt_cli import output
from optim.errors import DtoptError, HyperparameterError


class MissingExtraError(DtoptError, ImportError):
    """An optional dependency is not installed."""

    exit_code = 2


def hints(script: str, optimizer_config: str | None, generation: str | None) -> dict[str, Any]:
    """The hints from the optimizer in a program: `optimizer_config`, and `generation` if the user did not set it.

    Raises HyperparameterError: together with --optimizer-config.
    """
    if optimizer_config is not None:
        raise HyperparameterError("--optimizer-from and --optimizer-config exclude each other: pass one of them")
    with extra():
        from migrate.code.hints import from_code
    hint = from_code(script, generation)
    output.messages().print(f"optimizer from {hint}", markup=False)
    return {"optimizer_config": hint.optimizer_config, "generation": generation or hint.generation}


@contextmanager
def extra() -> Iterator[None]:
    """Name the package to install if LibCST is missing."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("libcst", "packaging"):
            raise
        raise MissingExtraError(f"{error.name} is missing, which reads programs: pip install {error.name}") from error
