"""One thing that can be done to a checkpoint or to its hints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Hints = dict[str, Any]


Change = Callable[[Path, Hints], object]


CLASSES = ("SGD", "RMSprop", "Adagrad", "Adadelta", "Adam", "AdamW", "Adamax", "Nadam", "Ftrl", "Lion")


RELEASES = ("1.2.2", "2.1.6-tf", "2.2.4", "2.3.1", "2.4.0", "2.9.0", "2.13.1", "3.0.5", "3.3.3", "3.15.0", "9.9")


@dataclass(frozen=True)
class Alteration:
    """`told`: whether what is left still tells that it was altered. `kind` groups them, `what` names this one."""

    kind: str
    what: str
    alter: Change
    told: bool = True
