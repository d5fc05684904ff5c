"""The result of each source of a batch, and of all of them by reason."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from migrate.claims import NONE, Questions
from migrate.conversion.convert import Report
from optim.bytes import files

MIGRATED, PLANNED, SKIPPED = "migrated", "planned", "skipped"
REFUSED, FAILED, NOT_REACHED = "refused", "failed", "not reached"
STATUSES = (MIGRATED, PLANNED, SKIPPED, REFUSED, FAILED, NOT_REACHED)
BROKEN_EXIT, REFUSED_EXIT = 3, 1


@dataclass(frozen=True)
class BatchItem:
    """The result of one source.

    Attributes:
      source: what was read.
      dest: its target.
      status: `migrated`; `planned`, with `dry_run`; `skipped`, with `resume` and a complete target; `refused`, by
        `strict`; `failed`; or `not reached`, after an interrupt.
      problem: the reason, if it is `refused` or `failed`.
      report: of the migration, if there was one.
      questions: open questions, and the values that answer them.
      confirm_command, choice_commands: the commands that answer them, as in `migrate.Report`.
    """

    source: str
    dest: str
    status: str
    problem: str = ""
    report: Report | None = None
    questions: Questions = NONE
    confirm_command: str = ""
    choice_commands: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """`exact` or `approximate` if it is or can be migrated, else the status."""
        return self.status if self.report is None else self.report.fidelity

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not exact."""
        return (self.problem,) if self.problem else self.report.reasons if self.report else ()


@dataclass(frozen=True)
class Group:
    """Sources with the same outcome, and the same reason but for names and numbers. `example` is the first of them."""

    outcome: str
    reason: str
    count: int
    example: str


@dataclass(frozen=True)
class BatchReport:
    """The result of every source.

    Attributes:
      items: one for each source, in the order given.
    """

    items: tuple[BatchItem, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many items have each status, without zeros."""
        counts = {status: sum(item.status == status for item in self.items) for status in STATUSES}
        return {status: count for status, count in counts.items() if count}

    @property
    def groups(self) -> tuple[Group, ...]:
        """Outcomes by reason, the most frequent first. A source with two reasons is counted under each."""
        keys = [(item.outcome, _general(reason, item), item) for item in self.items for reason in item.reasons or ("",)]
        counts = Counter((outcome, reason) for outcome, reason, _ in keys)
        examples = {(outcome, reason): item.source for outcome, reason, item in reversed(keys)}
        return tuple(Group(*key, count, examples[key]) for key, count in counts.most_common())

    @property
    def exit_code(self) -> int:
        """3 if any source failed, else 1 if `strict` refused any, else 0."""
        counts = self.counts
        return BROKEN_EXIT if FAILED in counts else REFUSED_EXIT if REFUSED in counts else 0

    def to_dict(self) -> dict[str, Any]:
        """For JSON: counts, groups and items."""
        return {
            "counts": self.counts,
            "groups": [asdict(group) for group in self.groups],
            "items": [asdict(item) for item in self.items],
        }


def _general(reason: str, item: BatchItem) -> str:
    """A reason without its source's paths and numbers."""
    for path in (item.source, files.absolute(item.source), item.dest):
        reason = reason.replace(path, "PATH")
    return re.sub(r"(?<![A-Za-z])-?\d[\d.]*(?:e[+-]?\d+)?", "N", reason)
