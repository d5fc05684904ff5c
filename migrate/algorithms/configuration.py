"""The optimizer's class and config, with the origin of each setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from migrate.algorithms.spec import Algorithm
from migrate.claims import Origin


@dataclass
class Configuration:
    """`config` under Keras's names with the generation's defaults in; `origins` by the same names."""

    algorithm: Algorithm
    config: dict[str, Any]
    origins: dict[str, Origin]
    wrappers: tuple[str, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    stated: tuple[Origin, ...] = ()
    """Of the class itself, and of options that nobody has named."""
    hinted: Mapping[str, Any] = field(default_factory=dict)
    """What the hint says of the optimizer, under Keras's names."""
    notes: tuple[str, ...] = ()
