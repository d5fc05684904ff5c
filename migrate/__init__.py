"""Carries optimizer state from any generation of Keras and TensorFlow into the slot-variable layout, and
proves it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from migrate.batch import BatchInterrupted, BatchItem, BatchReport, migrate_batch
    from migrate.convert import Report, inspect, migrate_checkpoint, read, write
    from migrate.errors import (
        AmbiguousError,
        DamagedFileError,
        MissingHintError,
        StrictError,
        TargetExistsError,
        UnknownFormatError,
    )
    from migrate.inspection import Inspection
    from migrate.restoring import Restoration, restore
    from migrate.state import OptimizerState
    from migrate.verification import Verification, verify

__all__ = [
    "AmbiguousError",
    "BatchInterrupted",
    "BatchItem",
    "BatchReport",
    "DamagedFileError",
    "Inspection",
    "MissingHintError",
    "OptimizerState",
    "Report",
    "Restoration",
    "StrictError",
    "TargetExistsError",
    "UnknownFormatError",
    "Verification",
    "inspect",
    "migrate_batch",
    "migrate_checkpoint",
    "read",
    "restore",
    "verify",
    "write",
]

_HOMES = {
    **dict.fromkeys(("BatchInterrupted", "BatchItem", "BatchReport", "migrate_batch"), "migrate.batch"),
    **dict.fromkeys(("Report", "inspect", "migrate_checkpoint", "read", "write"), "migrate.convert"),
    **dict.fromkeys(
        (
            "AmbiguousError",
            "DamagedFileError",
            "MissingHintError",
            "StrictError",
            "TargetExistsError",
            "UnknownFormatError",
        ),
        "migrate.errors",
    ),
    "Inspection": "migrate.inspection",
    "OptimizerState": "migrate.state",
    **dict.fromkeys(("Restoration", "restore"), "migrate.restoring"),
    **dict.fromkeys(("Verification", "verify"), "migrate.verification"),
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
