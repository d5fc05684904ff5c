"""A question to which releases have different answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from migrate.releases.table import KERAS_3, STANDALONE, TENSORFLOWS, TF_KERASES, Package, Release

ORDER = {package: place for place, package in enumerate((*TENSORFLOWS, *TF_KERASES, *STANDALONE, *KERAS_3))}


@dataclass(frozen=True)
class Fact:
    """One row.

    Attributes:
      subject: the hyperparameter or value that depends on it.
      question: in full.
      way: a release -> its answer, None if the question does not arise there.
      answers: answer -> what a release that gives it did, such as `limited the norm of each gradient`. If releases
        disagree, dtopt assumes the last of their answers in this order.
      source: where the answers are from: files that were read, releases that were run.
      keys: answer -> the key of `--set` that confirms it; if empty, the subject is the key of all.
      unanswered: the warning if no release answers.
    """

    subject: str
    question: str
    way: Callable[[Release], str | None]
    answers: Mapping[str, str]
    source: str
    keys: Mapping[str, str] = field(default_factory=dict)
    unanswered: str = ""

    def among(self, releases: Iterable[Release]) -> dict[str, list[Release]]:
        """Return answer -> the releases that give it, in the order of `answers`."""
        groups: dict[str, list[Release]] = {}
        for release in releases:
            groups.setdefault(self.way(release) or "", []).append(release)
        return {answer: groups[answer] for answer in self.answers if answer in groups}

    def of(self, releases: Iterable[Release]) -> str | None:
        """Return the answer in which releases agree, None if they disagree or the question does not arise."""
        groups = self.among(releases)
        return next(iter(groups)) if len(groups) == 1 else None

    def may_be(self, answer: str, releases: Iterable[Release]) -> bool:
        """Return whether one of the releases gives an answer."""
        return any(self.way(release) == answer for release in releases)

    def assumed(self, releases: Iterable[Release]) -> str | None:
        """Return the answer in which they agree, else the last that one of them gives; None if no release gives one."""
        return next(reversed(self.among(releases)), None)

    def warning(self, releases: Sequence[Release]) -> str:
        """Return why the answer is uncertain, empty if releases agree."""
        groups = self.among(releases)
        if not groups:
            return self.unanswered
        if len(groups) < 2:
            return ""
        named = _named(list(groups.values()))
        parts = [f"{names} {self.answers[answer]}" for answer, names in zip(groups, named, strict=True)]
        fits, last = ("both", "the latter") if len(parts) == 2 else ("all of them", "the last")
        return f"{', '.join(parts)}; the source fits {fits}, and dtopt assumes {last}"


def _named(groups: Sequence[Sequence[Release]]) -> list[str]:
    """Return names of groups of releases by what distinguishes them: package, else TensorFlow, else backend."""
    if _are_separate([{r.package for r in group} for group in groups]):
        return [spans([r.package for r in group]) for group in groups]
    known = {package.minor: package for package in TENSORFLOWS}
    if _are_separate([{r.tensorflow for r in group} for group in groups]):
        return [
            f"{spans([r.package for r in group])} on {spans([known[r.tensorflow] for r in group if r.tensorflow])}"
            for group in groups
        ]
    return [
        f"{spans([r.package for r in group])} ({' or '.join(sorted({r.mode or r.backend for r in group}))})"
        for group in groups
    ]


def _are_separate(groups: Sequence[set[object]]) -> bool:
    return len(set().union(*groups)) == sum(map(len, groups))


FAMILIES = {"tensorflow": "TF", "keras": "Keras", "tf_keras": "tf_keras"}


def spans(packages: Iterable[Package]) -> str:
    """Return releases in words, neighbours as a span: `TF 1.4 to 1.9 and 1.12`."""
    texts: dict[str, list[str]] = {}
    places = sorted({ORDER[package]: package for package in packages}.items())
    for _, run in groupby(enumerate(places), key=lambda item: (item[1][1].name, item[1][0] - item[0])):
        span = [package for _, (_, package) in run]
        first, last = (".".join(package.version.split(".")[: _digits(package)]) for package in (span[0], span[-1]))
        texts.setdefault(FAMILIES[span[0].name], []).append(first if first == last else f"{first} to {last}")
    return ", ".join(f"{family} {_joined(runs)}" for family, runs in texts.items())


def _digits(package: Package) -> int:
    """Return how many numbers of a version name a release: patches count only in Keras 1 and 2."""
    return 3 if package in STANDALONE else 2


def _joined(texts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))
