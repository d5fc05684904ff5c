"""The arguments of `optim` that a config of a generation means."""

from __future__ import annotations

from typing import Any

from migrate.algorithms import find, keras_config
from migrate.algorithms.arguments import Arguments
from migrate.releases.versions import Versions


def arguments_of(
    name: str,
    config: dict[str, Any],
    generation: str,
    keras: str | None = None,
    scalars: Any = None,
    dtype: str = "float32",
    **versions: Any,
) -> Arguments:
    algorithm = find(name)
    full, _ = keras_config.completed(config, algorithm, generation)
    known = Versions(keras or "", **versions)
    return keras_config.arguments(full, scalars or {}, algorithm, generation, known, [dtype])
