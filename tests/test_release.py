"""What is published: the distributions, their wheels, and the table of versions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from optim.native import modules
from tests.places import ROOT
from tools import build, versions

BACKEND = "import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"


def test_the_table_of_versions_is_what_was_measured() -> None:
    page = versions.PAGE.read_text(encoding="utf-8")
    assert page.partition(versions.BEGIN)[2].partition(versions.END)[0] == versions.table()


def test_what_is_locked_is_there_for_every_python() -> None:
    """Where a package has one hash, it is often that of the wheel for the Python which made the lock, and no other."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    hashes = {entry.split("==")[0]: entry.count("--hash=") for entry in re.split(r"(?m)^(?=\w)", text) if entry}
    assert len(hashes) > 100
    assert {name for name, n in hashes.items() if n < 2} == {"flatbuffers"}, "flatbuffers is one wheel for all"


def test_pythons_and_tensorflows_are_those_of_the_project() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    minors = [int(name.split(".")[1]) for name in versions.PYTHONS]
    assert f'"tensorflow>=2.{minors[0]},<2.{minors[-1] + 1}"' in text
    pythons = sorted({int(p.split(".")[1]) for has in versions.PYTHONS.values() for p in has})
    assert f'requires-python = ">=3.{pythons[0]},<3.{pythons[-1] + 1}"' in text
    assert all((ROOT / "tests" / name).is_file() for name in versions.TESTS)


def test_the_page_on_installing_names_what_builds() -> None:
    """Environments of Python 3.10 and 3.11 begin with an older setuptools."""
    needed = re.search(r'requires = \["(setuptools[^"]*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert needed
    assert f"pip install build '{needed[1]}'\n" in (ROOT / "docs" / "install.md").read_text(encoding="utf-8")


def test_one_release_of_nvrtc_compiles_what_is_published() -> None:
    """PTX of a later release is refused by drivers that the package supports."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert text.count(f'"{versions.NVRTC}"') == 2  # to build, to develop
    assert f'"{versions.NVRTC}"' == build.NVRTC
    assert versions.NVRTC.startswith(f"{modules.PACKAGE};")
    assert modules.PACKAGE.partition("==")[2].startswith("{}.{}.".format(*modules.NEWEST))


def test_the_light_distribution_does_not_depend_on_tensorflow(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    build.lighten(tmp_path)
    text = (tmp_path / "pyproject.toml").read_text(encoding="utf-8")
    assert 'name = "dtopt-light"' in text
    assert '"libcst' in text.partition("dependencies = [")[2].partition("]")[0]
    assert '"tensorflow' not in text.partition("[project.optional-dependencies]")[0].replace(
        '"tensorflow", "keras"', ""
    )


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """The sources as they are committed or about to be, with the kernel that was compiled among them."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith("tests/fixtures"):
            (tmp_path / "sources" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / "sources" / name)
    return tmp_path / "sources"


def _built(kind: str, folder: Path, into: Path) -> Path:
    into.mkdir()
    words = [sys.executable, "-c", BACKEND.format(kind=kind), str(into)]
    subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True, env={**os.environ, "CXX": "none"})
    (archive,) = into.iterdir()
    return archive


@pytest.mark.breadth
def test_what_is_in_the_archives(sources: Path, tmp_path: Path) -> None:
    """Twice the same bytes, from files that only their owner may read, too; every package typed; no tests."""
    sdists = [_built("sdist", sources, tmp_path / f"sdist{i}") for i in range(2)]
    assert sdists[0].read_bytes() == sdists[1].read_bytes()
    unpacked = build.unpacked(sdists[0], tmp_path / "unpacked")
    assert not [f for f in unpacked.rglob("*") if f.suffix == ".so" or "tests" in f.parts]
    wheels = [_built("wheel", unpacked, tmp_path / "wheel0")]
    for file in unpacked.rglob("*"):
        file.chmod(file.stat().st_mode & 0o700)
    wheels.append(_built("wheel", unpacked, tmp_path / "wheel1"))
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    names = zipfile.ZipFile(wheels[0]).namelist()
    tops = {name.split("/")[0] for name in names}
    packages = {"optim", "migrate", "bench", "dtopt_cli"}
    assert packages == {top for top in tops if not top.endswith(".dist-info")}
    assert {"optim/__init__.pyi", *(f"{package}/py.typed" for package in packages)} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    python = {str(f.relative_to(ROOT)) for package in packages for f in (ROOT / package).rglob("*.py")}
    assert python == {name for name in names if name.endswith(".py")}
