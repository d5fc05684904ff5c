"""Determine the release that a program was written for: from pins, from its code, or from `--from`.

A release determines the generation of its optimizers (`migrate.generations`). If several fit, all are kept; it only
matters if they give different results.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from migrate.generations import GENERATIONS, traits
from migrate.releases import table
from migrate.releases.versions import Versions
from optim.errors import HyperparameterError

KERAS, TENSORFLOW, TF_KERAS = "keras", "tensorflow", "tf_keras"


@dataclass(frozen=True)
class Release(table.Package):
    """A release of the table, or another patch of one, as a program pins it.

    Attributes:
      generation: of its Keras optimizers.
      addons: the release of TensorFlow Addons next to it, for a class that changed there.
    """

    generation: str = ""
    addons: str = ""

    @property
    def versions(self) -> Versions:
        """What a source that it wrote shows."""
        if self.name != TENSORFLOW:
            return Versions(self.version)
        return Versions(self.keras[-1] if self.keras else "", tensorflow=self.version)

    def __str__(self) -> str:
        return super().__str__() + (f" with tensorflow_addons=={self.addons}" if self.addons else "")


def release(package: str, version: str, generation: str = "") -> Release:
    """A release by its number; `generation`: of its optimizers if not of those under their plain names."""
    known = table.row(package, version)
    generation = generation or table.default_generation(package, version)
    return Release(package, version, known.keras if known else (), generation=generation)


def _known(package: str, versions: str) -> tuple[Release, ...]:
    return tuple(release(package, version) for version in versions.split())


STANDALONE = _known(KERAS, "1.0.8 1.1.2 1.2.2 2.0.6 2.0.8 2.1.2 2.1.6 2.2.4 2.2.5 2.3.1 3.0.5 3.15.1")
WITH_TENSORFLOW = _known(
    TENSORFLOW,
    "1.4.1 1.12.3 1.13.2 1.14.0 1.15.5 2.0.4 2.1.4 2.2.3 2.3.4 2.4.4 2.6.5 2.9.3 2.10.1 2.11.1 2.13.1 2.15.1 2.16.2"
    " 2.21.0",
)
"""Releases that represent their neighbours: between two of them no constructor changed what it means."""


def _releases_of_generation(name: str) -> tuple[Release, ...]:
    releases = tuple(release for release in (*WITH_TENSORFLOW, *STANDALONE) if release.generation == name)
    if not releases and traits(name).has_configs:  # no release has it under plain names
        tensorflows = {r.tensorflow for r in table.RELEASES if r.generation == name and not r.mode}
        fitting = [r for r in WITH_TENSORFLOW if (r.versions.tensorflow_number or ())[:2] in tensorflows]
        return (replace(fitting[-1], generation=name),)
    return releases[-1:] if traits(name).has_one_signature else releases


MARK = "# dtopt: the optimizers of this file are those of Keras 3"
"""Marks a file whose new calls mean something else in the old release, so that a later run reads them correctly."""

PIN_FILES = ("requirements*.txt", "setup.py", "setup.cfg", "pyproject.toml", "environment*.y*ml", "Pipfile")
_PIN = re.compile(
    r"(?<![\w.-])(?P<name>keras|tensorflow(?:[-_](?:gpu|cpu|macos))?|tf[-_]keras)(?:\[[\w,]*\])?\s*=?\s*[\"']?\s*"
    r"(?P<spec>(?:(?:[<>=!~]=?=?)\s*v?\d[\w.*]*\s*,?\s*)+)",
    re.IGNORECASE,
)
_MAGIC = re.compile(r"%tensorflow_version\s+(?P<major>[12])(?:\.(?P<minor>\d+|x))?")

TF1_WORDS = re.compile(
    r"(?<!v1\.)\b(?:tf|tensorflow)\.(?:contrib|Session|placeholder|get_variable|global_variables_initializer"
    r"|enable_eager_execution|app\.run|app\.flags|trainable_variables\(|variable_scope|layers\.)"
)
TF2_WORDS = re.compile(r"\btf\.compat\.v1|tensorflow_addons|tf\.config\.experimental\.set_memory_growth|compat\.v1")
KERAS2_WORDS = re.compile(
    r"\bConv[123]D\b|\bepochs\s*=|\bsteps_per_epoch\s*=|\bkernel_(?:initializer|size|regularizer)\s*="
    r"|\bpadding\s*=\s*['\"]|image_data_format|activity_regularizer\s*=|\bConv2DTranspose\b"
)
KERAS1_WORDS = re.compile(
    r"\bnb_epoch\s*=|\bborder_mode\s*=|\bnb_filter\b|\bnb_row\b|samples_per_epoch|dim_ordering\s*="
)


@dataclass(frozen=True)
class ReleaseHint:
    """The releases of `--from`; and the `generation`, if that was named."""

    releases: tuple[Release, ...]
    generation: str = ""

    def of(self, package: str) -> tuple[Release, ...]:
        return tuple(r for r in self.releases if r.name == package)


def parse_hint(text: str) -> ReleaseHint:
    """Parse the value of `--from`: a generation, or PACKAGE==VERSION.

    Raises HyperparameterError for other values.
    """
    if text in GENERATIONS:
        return ReleaseHint(_releases_of_generation(text), text)
    match = re.fullmatch(r"(keras|tensorflow|tf[-_]keras)==(\d+(?:\.\d+)*)", text.strip())
    if not match:
        raise HyperparameterError(
            f"--from takes a generation ({', '.join(GENERATIONS)}) or a release, such as keras==2.2.4 or"
            f" tensorflow==1.15; not {text!r}"
        )
    return ReleaseHint((_exact(match[1].replace("-", "_"), match[2]),))


def _exact(package: str, version: str) -> Release:
    is_tensorflow = package == TF_KERAS or (package == KERAS and Version("2.4") <= Version(version) < Version("3"))
    return release(TENSORFLOW if is_tensorflow else package, version)


class Pins:
    """The package versions pinned by files next to a program."""

    def __init__(self, text: str = ""):
        self._specifiers: dict[str, list[SpecifierSet]] = {}
        for match in _PIN.finditer(_without_comments(text)):
            name = re.sub(r"[-_](gpu|cpu|macos)$", "", match["name"].lower()).replace("-", "_")
            spec = re.sub(r"(?<![<>=!~])=(?!=)", "==", match["spec"]).replace("v", "").strip(" ,")
            try:
                self._specifiers.setdefault(name, []).append(SpecifierSet(spec))
            except InvalidSpecifier:
                continue
        for match in _MAGIC.finditer(text):
            self._specifiers.setdefault(TENSORFLOW, []).append(SpecifierSet(f"=={match['major']}.*"))

    def __bool__(self) -> bool:
        return bool(self._specifiers)

    def says(self, package: str) -> bool:
        return package in self._specifiers

    def exact(self, package: str) -> Release | None:
        """The one version that is pinned with `==`."""
        groups = self._specifiers.get(package, [])
        versions = {s.version for group in groups for s in group if s.operator == "==" and "*" not in s.version}
        try:
            return _exact(package, str(Version(versions.pop()))) if len(versions) == 1 else None
        except InvalidVersion:
            return None

    def filter(self, package: str, releases: Iterable[Release]) -> tuple[Release, ...]:
        """The releases that fit, and any exactly pinned version; all if the package is not pinned."""
        exact = self.exact(package)
        if exact is not None:
            return (exact,)
        specifiers = self._specifiers.get(package, [])
        fitting = tuple(r for r in releases if all(s.contains(r.version, prereleases=True) for s in specifiers))
        return fitting or tuple(releases)


def marked(code: str) -> str:
    """A program with MARK before its first statement."""
    lines = code.splitlines(keepends=True)
    at = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))
    end = "\r\n" if lines[0].endswith("\r\n") else "\n"
    return "".join([*lines[:at], MARK + end, *lines[at:]])


def _without_comments(text: str) -> str:
    return "\n".join(line.split("#", 1)[0] for line in text.splitlines())


@lru_cache(maxsize=4096)
def pins_in(folder: Path) -> str:
    texts = []
    for pattern in PIN_FILES:
        for path in sorted(folder.glob(pattern)):
            try:
                texts.append(path.read_text(encoding="utf-8", errors="replace"))
            except OSError:
                continue
    return "\n".join(texts)


def pins_of(path: Path, magics: str = "") -> Pins:
    """Pins of a program: in its own lines (a notebook's), else in the nearest parent folder that has some."""
    pins = Pins(magics)
    folder = path.resolve().parent
    while not pins:
        pins = Pins(pins_in(folder))
        if (folder / ".git").exists() or folder.parent == folder:
            return pins
        folder = folder.parent
    return pins


def kerases(pins: Pins, release_hint: ReleaseHint | None) -> tuple[str, ...]:
    """The packages that a module which a program calls just `keras` may be of."""
    packages = {release.name for release in (release_hint.releases if release_hint else ())} or {
        p for p in (KERAS, TENSORFLOW) if pins.says(p)
    }
    return tuple(packages) if len(packages) == 1 else (KERAS, TENSORFLOW)


def candidates(package: str, code: str, pins: Pins, release_hint: ReleaseHint | None) -> tuple[Release, ...]:
    """Return the releases that a program's `keras` or `tensorflow` may be.

    Args:
      package: KERAS or TENSORFLOW. code: the program. release_hint: the value of `--from`, which wins if it concerns
        this package. A TensorFlow release does not determine standalone Keras before 3, and vice versa. An exact pin is
        more specific than a generation.
    """
    known_releases = STANDALONE if package == KERAS else WITH_TENSORFLOW
    if MARK in code:
        return (known_releases[-1],)
    if release_hint:
        hint_releases, exact = release_hint.of(package), pins.exact(package)
        if hint_releases:
            return (
                (exact,)
                if exact is not None and release_hint.generation and not _is_beside(exact, hint_releases)
                else hint_releases
            )
        if package == KERAS and release_hint.releases and not release_hint.of(KERAS) and not pins.says(KERAS):
            return release_hint.releases  # `import keras` of Keras 2.4 to 2.15 is tf.keras
    if pins.says(package):
        return _by_words(package, code, pins.filter(package, known_releases))
    return _by_words(package, code, known_releases)


def _is_beside(pinned: Release, hint_releases: Iterable[Release]) -> bool:
    """Whether a named generation is an additional one in the pinned release, as `experimental` is in 2.10."""
    minor = Version(pinned.version).release[:2]
    return any(r.generation != pinned.generation and Version(r.version).release[:2] == minor for r in hint_releases)


def contradiction(package: str, pins: Pins, release_hint: ReleaseHint | None) -> str:
    """Describe a contradiction between `--from` and an exact pin, else empty."""
    exact = pins.exact(package)
    hint_releases = release_hint.of(package) if release_hint else ()
    if release_hint is None or exact is None or not hint_releases:
        return ""
    if release_hint.generation:
        if exact.generation == release_hint.generation or _is_beside(exact, hint_releases):
            return ""
        return (
            f"{exact} is pinned, and --from {release_hint.generation} names another generation: dtopt reads the program"
            f" as {exact}. If that is wrong, name a release instead, such as\n  --from {hint_releases[-1]}"
        )
    short, long = sorted((Version(exact.version).release, Version(hint_releases[0].version).release), key=len)
    if long[: len(short)] == short:
        return ""
    return f"{exact} is pinned, and --from names {hint_releases[0]}: dtopt reads the program as {hint_releases[0]}"


def _by_words(package: str, code: str, releases: tuple[Release, ...]) -> tuple[Release, ...]:
    """Exclude releases by the program's own words; all are kept if these contradict each other."""
    left = releases
    if package == KERAS and KERAS2_WORDS.search(code) and not KERAS1_WORDS.search(code):
        left = tuple(r for r in left if not traits(r.generation).has_keras1_layers)
    if package == TENSORFLOW and TF1_WORDS.search(code) and not TF2_WORDS.search(code):
        left = tuple(r for r in left if r.version.startswith("1."))
    elif package == TENSORFLOW and TF2_WORDS.search(code):
        left = tuple(r for r in left if Version(r.version) >= Version("1.13"))
    return left or releases
