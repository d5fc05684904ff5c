"""Two versions in one run: each finds its own `optim`, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench import peers
from bench.errors import OptionError
from bench.step.against import home
from bench.step.query import make_plan
from bench.step.rows import rerun_command

ROOT = Path(__file__).resolve().parents[2]


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
    other = peers.peer.Home("before", str(tmp_path), asked="v0.1")
    plan = make_plan(peer=("optim-local",), against=other)
    command = rerun_command(plan.cases[0], plan.peers[1].name, plan.again)
    assert "-p optim-local --" in command
    assert "--against v0.1" in command
    assert "--baseline" not in command
