"""`dtopt migrate code`: exit codes, JSON and SARIF alone on stdout, and files that change at once or not at all."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from migrate.code import files
from tests.places import CORPUS, STORIES

ADADELTA = CORPUS / "keras224-adam-eps-none-nested" / "source" / "model.h5"
GOOD = "import keras\no = keras.optimizers.SGD(lr=0.1)\n"
BY_HAND = "import keras\nclass Mine(keras.optimizers.SGD):\n    pass\n"
PYTHON_2 = "import keras\no = keras.optimizers.SGD(lr=0.1)\nprint 'x'\n"


@pytest.fixture
def program(tmp_path: Path) -> Any:
    def write(text: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


FROM = ("--from", "keras==2.2.4")


@pytest.mark.parametrize(("text", "code"), [(GOOD, 0), (BY_HAND, 1), (PYTHON_2, 3)])
def test_exit_codes(dtopt: Any, program: Any, text: str, code: int) -> None:
    assert dtopt("code", str(program(text)), *FROM)[0] == code


def test_two_releases_that_differ_are_2_and_nothing_is_written(dtopt: Any, program: Any) -> None:
    path = program("import keras\no = keras.optimizers.Adam(lr=0.1)\np = keras.optimizers.SGD(lr=0.1)\n")
    code, out, err = dtopt("code", str(path), "--write")
    assert code == 2
    assert "+p = optim.for_keras(optim.SGD(learning_rate=0.1))" in out
    assert "1 place depends on the release, and nothing is written" in err
    assert "\n  --from keras==2." in err
    assert "lr=0.1" in path.read_text()


@pytest.mark.parametrize(
    "arguments", [("nowhere.py",), (".", "--to", "torch"), (".", "--from", "keras"), (".", "--json", "--sarif")]
)
def test_wrong_arguments_are_2(dtopt: Any, program: Any, monkeypatch: pytest.MonkeyPatch, arguments: Any) -> None:
    monkeypatch.chdir(program(GOOD).parent)
    assert dtopt("code", *arguments)[0] == 2


def test_the_diff_is_one_that_patch_takes(dtopt: Any, program: Any, tmp_path: Path) -> None:
    text = GOOD.replace(
        "lr=0.1", "lr=first_learning_rate * number_of_workers * batch_size / 256, momentum=0.9, decay=0.0"
    )
    path = program(text)
    _, out, _ = dtopt("code", str(path), *FROM)
    assert "1 rewritten; 1 file would change (--write)" in out
    assert path.read_text() == text
    diff = tmp_path / "diff"
    diff.write_text(out[: out.index(f"{path}:")])
    subprocess.run(["git", "apply", "--unsafe-paths", "--directory=/", diff], cwd=tmp_path, check=True)
    patched = path.read_text()
    path.write_text(text)
    dtopt("code", str(path), *FROM, "--write")
    assert path.read_text() == patched != text


def test_json_stands_alone(dtopt: Any, program: Any) -> None:
    path = program(GOOD)
    code, out, _ = dtopt("code", str(path), *FROM, "--write", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["counts"] == {"rewritten": 1}
    assert document["changed"] == [str(path)]
    finding = document["findings"][0]
    assert (finding["line"], finding["column"], finding["verdict"]) == (2, 5, "rewritten")


def test_sarif_has_what_its_schema_requires(dtopt: Any, program: Any) -> None:
    """The whole of it was validated with the schema of OASIS; this holds what that requires of such a log."""
    path = program(GOOD + "class Mine(keras.optimizers.SGD):\n    pass\n")
    code, out, _ = dtopt("code", str(path), str(program(PYTHON_2, "old.py")), *FROM, "--sarif")
    log = json.loads(out)
    assert code == 3
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert run["tool"]["driver"]["name"]
    assert {result["level"] for result in run["results"]} == {"note", "warning", "error"}
    for result in run["results"]:
        assert result["ruleId"] in rules
        assert result["message"]["text"]
        region = result["locations"][0]["physicalLocation"]["region"]
        assert min(region["startLine"], region["startColumn"]) >= 1


def test_a_file_that_cannot_be_replaced_stays_whole(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = program(GOOD)

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        files.write(files.read(path), "other")
    assert path.read_text() == GOOD
    assert os.listdir(path.parent) == [path.name]


def test_permissions_and_links_stay(dtopt: Any, program: Any, tmp_path: Path) -> None:
    path = program(GOOD)
    path.chmod(0o750)
    link = tmp_path / "link.py"
    link.symlink_to(path)
    assert dtopt("code", str(link), *FROM, "--write")[0] == 0
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o750
    assert "optim" in path.read_text()


@pytest.mark.parametrize("indent", [1, 2, None])
def test_a_notebook_is_written_as_it_was(dtopt: Any, program: Any, indent: int | None) -> None:
    cells = [
        {"cell_type": "code", "execution_count": 3, "metadata": {"é": "☃"}, "outputs": [{"text": "✓"}], "source": GOOD},
        {"cell_type": "markdown", "metadata": {}, "source": ["# é\n", "text"]},
    ]
    document = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 2}
    path = program(json.dumps(document, indent=indent, ensure_ascii=False) + "\n", "n.ipynb")
    assert dtopt("code", str(path), *FROM, "--write")[0] == 0
    cells[0]["source"] = "import keras\nimport optim\no = optim.for_keras(optim.SGD(learning_rate=0.1))\n"
    assert path.read_text() == json.dumps(document, indent=indent, ensure_ascii=False) + "\n"


def test_checkpoints_are_tied_to_the_program(dtopt: Any, program: Any, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    shutil.copy(ADADELTA, runs / "model.h5")
    path = program("import keras\no = keras.optimizers.Adam(lr=0.1, epsilon=1e-3)\n")
    _, out, _ = dtopt("code", str(path), *FROM, "--checkpoints", str(runs))
    lines_of_runs = out[out.index(str(runs)) :]
    assert f"written by the Adam of {path}:2" in lines_of_runs
    assert f"dtopt migrate checkpoint {runs}/model.h5 {runs}/model.slots" in lines_of_runs


@pytest.mark.parametrize(
    ("case", "named"),
    [("keras224-adadelta-mlp", "keras==2.2.4"), ("tf115-sgd-nesterov-checkpoint-embed", "optimizer_v2")],
)
def test_checkpoints_name_the_release_that_decides(
    dtopt: Any, program: Any, tmp_path: Path, case: str, named: str
) -> None:
    path = program("import keras\no = keras.optimizers.Adagrad()\n")
    code, _, err = dtopt("code", str(path))
    assert (code, "Name it, such as\n  --from keras==3." in err) == (2, True)
    shutil.copytree(CORPUS / case / "source", tmp_path / "runs")
    code, _, err = dtopt("code", str(path), "--checkpoints", str(tmp_path / "runs"))
    assert (code, err.endswith(f"These wrote the checkpoints in {tmp_path / 'runs'}:\n  --from {named}\n")) == (2, True)


def test_a_checkpoint_takes_its_hint_from_the_program(dtopt: Any, tmp_path: Path) -> None:
    folder = tmp_path / "keras22"
    shutil.copytree(STORIES / "keras22", folder)
    arguments = ("checkpoint", str(folder / "optimizer.pkl"), str(folder / "out"), "--variables")
    script = ("--optimizer-from", str(folder / "train.py"))
    code, _, err = dtopt(*arguments, str(folder / "variables.json"), *script)
    assert code == 0
    assert '"class_name": "SGD"' in err
    both = dtopt(*arguments, str(folder / "variables.json"), *script, "--optimizer-config", '{"class_name": "SGD"}')
    assert both[0] == 2


def test_the_command_for_a_checkpoint_names_the_place_in_the_program(dtopt: Any, tmp_path: Path) -> None:
    """In a notebook as well, whose places are cells and lines."""
    folder = tmp_path / "keras22"
    shutil.copytree(STORIES / "keras22", folder)
    cells = ["import keras", (folder / "train.py").read_text()]
    (folder / "train.py").unlink()
    listed = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": cell} for cell in cells]
    (folder / "train.ipynb").write_text(json.dumps({"cells": listed, "metadata": {}, "nbformat": 4}))
    _, out, _ = dtopt("code", str(folder / "train.ipynb"), *FROM, "--checkpoints", str(folder))
    (command,) = [line for line in out.splitlines() if line.strip().startswith("dtopt migrate") and "pkl" in line]
    words = shlex.split(command)[2:]
    words[words.index("FILE")] = str(folder / "variables.json")
    assert ":cell 2:" in words[words.index("--optimizer-from") + 1]
    code, _, err = dtopt(*words, "--generation", "keras2")
    assert code == 0, err
    assert '"class_name": "SGD"' in err
