"""Converts optimizer state from any generation of Keras and TensorFlow into the slot-variable layout, and proves it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from migrate.batches.results import BatchItem, BatchReport
    from migrate.batches.run import BatchInterrupted, batch, migrate_batch
    from migrate.conversion.contents import Contents
    from migrate.conversion.convert import Report, contents, inspect, migrate_checkpoint, read, write
    from migrate.conversion.inspection import Inspection
    from migrate.errors import (
        AmbiguousError,
        ArgumentError,
        ContradictionError,
        DamagedFileError,
        MissingHintError,
        StrictError,
        TargetExistsError,
        UnknownFormatError,
    )
    from migrate.live.optax.trees import Optax
    from migrate.live.restoring import Restoration, restore
    from migrate.proof.verification import Verification, verify
    from migrate.rules.comparison import learning_rate
    from migrate.state import OptimizerState

__all__ = [
    "AmbiguousError",
    "ArgumentError",
    "BatchInterrupted",
    "BatchItem",
    "BatchReport",
    "Contents",
    "ContradictionError",
    "DamagedFileError",
    "Inspection",
    "MissingHintError",
    "Optax",
    "OptimizerState",
    "Report",
    "Restoration",
    "StrictError",
    "TargetExistsError",
    "UnknownFormatError",
    "Verification",
    "batch",
    "contents",
    "inspect",
    "learning_rate",
    "migrate_batch",
    "migrate_checkpoint",
    "read",
    "restore",
    "verify",
    "write",
]

_HOMES = {
    **dict.fromkeys(("BatchItem", "BatchReport"), "migrate.batches.results"),
    **dict.fromkeys(("BatchInterrupted", "batch", "migrate_batch"), "migrate.batches.run"),
    **dict.fromkeys(
        ("Report", "contents", "inspect", "migrate_checkpoint", "read", "write"), "migrate.conversion.convert"
    ),
    **dict.fromkeys(
        (
            "AmbiguousError",
            "ArgumentError",
            "ContradictionError",
            "DamagedFileError",
            "MissingHintError",
            "StrictError",
            "TargetExistsError",
            "UnknownFormatError",
        ),
        "migrate.errors",
    ),
    "Contents": "migrate.conversion.contents",
    "Inspection": "migrate.conversion.inspection",
    "Optax": "migrate.live.optax.trees",
    "OptimizerState": "migrate.state",
    "learning_rate": "migrate.rules.comparison",
    **dict.fromkeys(("Restoration", "restore"), "migrate.live.restoring"),
    **dict.fromkeys(("Verification", "verify"), "migrate.proof.verification"),
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import migrate` costs nothing (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'migrate' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
