"""Two versions in one run: each finds its own `optim`, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bench import peers
from bench.errors import OptionError
from bench.step.against import home
from bench.step.query import make_plan
from bench.step.rows import rerun_command
from tests.places import ROOT


def test_a_folder_comes_first_on_the_path_of_its_workers_and_goes_with_the_run(tmp_path: Path) -> None:
    (tmp_path / "optim").mkdir()
    (tmp_path / "optim" / "__init__.py").write_text("HERE = True\n")
    with home(str(tmp_path)) as other:
        code = f"import sys; sys.path[:0] = [{other.folder!r}]; import optim; assert optim.HERE"
        subprocess.run([sys.executable, "-c", code], check=True, cwd="/")
        assert other.python is None
    assert not Path(other.folder).exists()
    assert (tmp_path / "optim" / "__init__.py").is_file()


def test_a_commit_of_the_checkout_is_built_beside() -> None:
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("this is no checkout")
    with home("HEAD") as other:
        assert (Path(other.folder) / "optim" / "__init__.py").is_file()
        assert len(other.label) >= 10


def test_an_environment_brings_its_interpreter(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    with home(str(tmp_path)) as other:
        assert other.python == str(tmp_path / "bin" / "python")
        assert [path.name for path in Path(other.folder).iterdir()] == ["bench"]


def test_a_release_brings_its_optim_and_its_version_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This `bench` drives it: that of the release may know other requests."""
    info = "dtopt-9.8.7.dist-info"
    with zipfile.ZipFile(tmp_path / "dtopt-9.8.7-py3-none-any.whl", "w") as wheel:
        for package in ("optim", "bench"):
            wheel.writestr(f"{package}/__init__.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: dtopt\nVersion: 9.8.7\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with home("9.8.7") as other:
        assert other.label == "9.8.7"
        assert (Path(other.folder) / "optim" / "__init__.py").is_file()
        code = "from importlib.metadata import version; import bench; print(version('dtopt'), bench.__file__)"
        paths = os.pathsep.join((other.folder, str(ROOT)))
        found = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
        )
        assert found.stdout.split() == ["9.8.7", str(ROOT / "bench" / "__init__.py")], found.stderr


@pytest.mark.parametrize("text", ["no-such-branch", "."])
def test_what_names_nothing_says_what_could_be_named(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match="--against"), home(text):
        pass


def test_the_other_version_is_the_baseline_of_its_twin(tmp_path: Path) -> None:
    other = peers.ours.PEERS[0].at(peers.peer.Home("before", str(tmp_path)))
    plan = make_plan(peer=("optim-local",), against=other.home)
    assert [peer.name for peer in plan.peers] == ["optim-local", "optim-local@before"]
    assert plan.baseline == "optim-local@before"


def test_a_row_is_measured_again_beside_the_same_version(tmp_path: Path) -> None:
    other = peers.peer.Home("before", str(tmp_path), source="v0.1")
    plan = make_plan(peer=("optim-local",), against=other)
    command = rerun_command(plan.cases[0], plan.peers[1].name, plan.again)
    assert "-p optim-local --" in command
    assert "--against v0.1" in command
    assert "--baseline" not in command
