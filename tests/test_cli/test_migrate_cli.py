"""`dtopt migrate`: what it prints, where, and how it ends."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dtopt_cli import importing
from migrate.proof import loaded
from tests.places import CORPUS, SCOPED

ADAM = str(CORPUS / "keras224-adam-eps-none-nested" / "source" / "model.h5")
SGD = str(CORPUS / "tf29-adam-clipnorm-decay-nested" / "source" / "model.h5")
LIST = str(CORPUS / "tf215-new-sgd-gclip-weights-mlp" / "source" / "weights.npz")
DECAYED = CORPUS / "extra-k224-adadelta-decay-mlp-npz"


def _hint_files(folder: Path, case: Path) -> list[str]:
    document = json.loads((case / "case.json").read_text())
    optimizer = {"class_name": document["optimizer"]["class"], "config": document["optimizer"]["config"]}
    variables = [{"name": v["name"], "shape": v["shape"]} for v in document["trainable"]]
    (folder / "optimizer.json").write_text(json.dumps(optimizer))
    (folder / "variables.json").write_text(json.dumps(variables))
    return ["--optimizer-config", str(folder / "optimizer.json"), "--variables", str(folder / "variables.json")]


def test_checkpoint_prints_a_summary_and_writes(dtopt: Any, tmp_path: Path) -> None:
    code, out, err = dtopt("checkpoint", ADAM, str(tmp_path / "out"))
    assert code == 0
    assert "optim.Adam from generation keras2, 5 steps taken; 16 slots, 8 variables" in out
    assert "fidelity: exact" in out
    assert "placeholder" in err or "unused slot vhat" in err
    assert (tmp_path / "out" / "checkpoint").exists()


def test_checkpoint_json_is_one_document(dtopt: Any, tmp_path: Path) -> None:
    code, out, err = dtopt("checkpoint", ADAM, str(tmp_path / "out"), "--json", "--dry-run")
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert (report["optimizer"], report["fidelity"], report["written"], report["slots"]) == ("Adam", "exact", False, 16)
    assert report["matched"]["m/dense_1/kernel"] == "position"
    assert not (tmp_path / "out").exists()


def test_quiet_prints_nothing(dtopt: Any, tmp_path: Path) -> None:
    assert dtopt("checkpoint", ADAM, str(tmp_path / "out"), "--quiet") == (0, "", "")


def test_an_existing_target_is_kept_unless_told(dtopt: Any, tmp_path: Path) -> None:
    target = str(tmp_path / "out")
    assert dtopt("checkpoint", ADAM, target)[0] == 0
    code, out, err = dtopt("checkpoint", SGD, target)
    assert (code, out) == (2, "")
    assert "--overwrite" in err
    assert dtopt("checkpoint", SGD, target, "--overwrite")[0] == 0


def test_a_list_needs_its_hints_and_takes_them(dtopt: Any, tmp_path: Path) -> None:
    code, out, err = dtopt("checkpoint", LIST, str(tmp_path / "out"))
    assert (code, out) == (3, "")
    assert "--optimizer-config" in err
    assert "Traceback" not in err
    hints = _hint_files(tmp_path, CORPUS / "tf215-new-sgd-gclip-weights-mlp")
    code, out, _ = dtopt("checkpoint", LIST, str(tmp_path / "out"), *hints, "--generation", "optimizer")
    assert code == 0
    assert "optim.SGD" in out


def test_a_config_may_be_what_get_config_gave_to_pickle(dtopt: Any, tmp_path: Path) -> None:
    case = CORPUS / "extra-k224py27-sgd-protocol0-pkl"
    config, weights = str(case / "source" / "config.pkl"), str(case / "source" / "weights.pkl")
    hints = [*_hint_files(tmp_path, case)[2:], "--generation", "keras2", "--optimizer-config", config]
    code, _, err = dtopt("checkpoint", weights, str(tmp_path / "out"), *hints)
    assert code == 3
    assert "--set class_name=CLASS" in " ".join(err.split())
    code, out, _ = dtopt("checkpoint", weights, str(tmp_path / "out"), *hints, "--set", "class_name=SGD")
    assert (code, "fidelity: exact" in out) == (0, True)
    (tmp_path / "evil.pkl").write_bytes(b"(dcos\nsystem\n(S'true'\ntR.")
    code, _, err = dtopt("inspect", weights, "--optimizer-config", str(tmp_path / "evil.pkl"))
    assert code == 3
    assert "os.system" in err


def test_a_line_break_in_a_path_can_be_typed_as_it_is_shown(dtopt: Any, tmp_path: Path) -> None:
    source = tmp_path / "it's a\nfolder" / "model.h5"
    source.parent.mkdir()
    shutil.copy(ADAM, source)
    code, out, _ = dtopt("checkpoint", str(source), str(tmp_path / "out"))
    assert (code, "a\nfolder" in out) == (0, False)
    words = out.split("    dtopt migrate verify ")[1].splitlines()[0]
    typed = subprocess.run(["bash", "-c", f"printf '%s|' {words}"], capture_output=True, text=True, check=True)
    assert typed.stdout == f"{source}|{tmp_path / 'out'}|"
    _, out, _ = dtopt("inspect", str(source))
    assert "a\nfolder" not in out


def test_strict_refuses_what_is_not_exact(dtopt: Any, tmp_path: Path) -> None:
    hints = _hint_files(tmp_path, DECAYED)
    arguments = [
        "checkpoint",
        str(DECAYED / "source" / "weights.npz"),
        str(tmp_path / "out"),
        *hints,
        "--generation",
        "keras2",
    ]
    code, out, err = dtopt(*arguments, "--strict")
    assert (code, out) == (1, "")
    assert "refused by --strict" in err
    assert not (tmp_path / "out").exists()
    code, out, _ = dtopt(*arguments)
    assert code == 0
    assert "fidelity: approximate" in out
    assert "decay starts again" in out


def test_inspect_shows_every_slot(dtopt: Any) -> None:
    code, out, _ = dtopt("inspect", ADAM, "--stats")
    assert code == 0
    for part in (
        "keras2",
        "keras_version is '2.2.4'",
        "5 steps taken",
        "dense_4/bias",
        "position",
        "norm",
        "epsilon=1e-07",
    ):
        assert part in out
    code, out, _ = dtopt("inspect", ADAM, "--json")
    document = json.loads(out)
    assert len(document["slots"]) == 16
    assert {row["slot"] for row in document["slots"]} == {"m", "v"}
    assert document["slots"][0]["stats"] is None


def test_inspect_shows_what_is_there_before_what_is_missing(dtopt: Any) -> None:
    source = str(CORPUS / "tf24-sgd-momentum-ckpt-convbn" / "source" / "ckpt-1")
    code, out, err = dtopt("inspect", source)
    assert code == 3
    for part in ("unknown (its slots fit SGD", "iter=4", "3x3x2x3", "batch_normalization/moving_mean"):
        assert part in out
    assert "add --set class_name=CLASS" in err
    code, out, err = dtopt("inspect", source, "--json")
    assert (code, json.loads(out)["refused"] in err) == (3, True)
    assert dtopt("inspect", source, "--optimizer", "other")[1] == ""


def test_verify_shows_the_first_differences_and_all_of_them_in_json(dtopt: Any, tmp_path: Path) -> None:
    dtopt("checkpoint", ADAM, str(tmp_path / "out"))
    code, out, _ = dtopt("verify", SGD, str(tmp_path / "out"))
    shown = [line for line in out.splitlines() if line.startswith("  ")]
    code, output, _ = dtopt("verify", SGD, str(tmp_path / "out"), "--json")
    every = json.loads(output)["differences"]
    assert code == 1
    assert len(every) > 6
    assert f"and {len(every) - 5} more; --json lists them all" in " ".join(out.split())
    assert sum(" ".join(out.split()).count(" ".join(text.split())) > 0 for text in every) == 5, shown


def test_verify_says_same_or_different(dtopt: Any, tmp_path: Path) -> None:
    assert dtopt("checkpoint", ADAM, str(tmp_path / "out"))[0] == 0
    code, out, _ = dtopt("verify", ADAM, str(tmp_path / "out"))
    assert code == 0
    assert "same: 16 slots and 8 variables bit for bit, 5 steps taken" in out
    code, out, _ = dtopt("verify", SGD, str(tmp_path / "out"))
    assert code == 1
    assert "different" in out
    code, out, _ = dtopt("verify", SGD, str(tmp_path / "out"), "--json")
    assert (code, json.loads(out)["ok"]) == (1, False)


def test_verify_imports_tensorflow_only_where_this_process_needs_it(
    dtopt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And without Keras and JAX, which are there again afterwards."""
    ahead = []
    monkeypatch.setattr(importing, "tensorflow_meanwhile", lambda: ahead.append("") or nullcontext())
    for to, dest in (("slots", "out"), ("list", "out.npz"), ("tf-keras", "out.h5")):
        assert dtopt("checkpoint", SGD, str(tmp_path / dest), "--to", to)[0] == 0
    monkeypatch.setattr(loaded, "_run", lambda *_: "the process ended with 1, saying nothing")
    assert [dtopt("verify", SGD, str(tmp_path / dest))[0] for dest in ("out", "out.npz", "out.h5")] == [0, 0, 1]
    assert ahead == [""]
    for module in importing.NEEDLESS:
        monkeypatch.delitem(sys.modules, module, raising=False)
    kept = ModuleType("kept")
    monkeypatch.setitem(sys.modules, "jax", kept)
    with importing._without_others():
        with pytest.raises(ImportError):
            import_module("keras.src.optimizers")
        assert sys.modules["jax"] is kept
    assert "keras.src.optimizers" not in sys.modules
    assert sys.modules["jax"] is kept


def test_a_command_takes_its_step_without_the_kernel_and_leaves_the_rest_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would spend more time to find the kernel, or even compile it."""
    done = []
    monkeypatch.setattr(importing, "tensorflow_quietly", lambda: done.append(""))
    monkeypatch.delitem(sys.modules, "tensorflow")
    for asked in (None, "build"):
        monkeypatch.delenv(importing.KERNELS, raising=False)
        if asked:
            monkeypatch.setenv(importing.KERNELS, asked)
        before = sys.getswitchinterval()
        with importing.tensorflow_meanwhile():
            assert os.environ[importing.KERNELS] == (asked or "off")
        assert (os.environ.get(importing.KERNELS), sys.getswitchinterval()) == (asked, before)
    assert done == ["", ""]


@pytest.mark.parametrize("command", ["inspect", "checkpoint"])
def test_broken_input_is_one_message_and_no_target(command: str, dtopt: Any, tmp_path: Path) -> None:
    broken = tmp_path / "model.h5"
    broken.write_bytes(Path(ADAM).read_bytes()[:5000])
    code, out, err = dtopt(command, str(broken), *([str(tmp_path / "out")] if command == "checkpoint" else []))
    assert (code, out) == (3, "")
    assert err.startswith("dtopt: ")
    assert "damaged" in err
    assert "Traceback" not in err
    assert sorted(os.listdir(tmp_path)) == ["model.h5"]


@pytest.mark.parametrize("text", ["no json", "[]", "3"])
def test_a_hint_that_is_no_json_object_is_a_usage_error(text: str, dtopt: Any, tmp_path: Path) -> None:
    (tmp_path / "optimizer.json").write_text(text)
    assert dtopt("inspect", ADAM, "--optimizer-config", str(tmp_path / "optimizer.json"))[0] == 2


def test_unknown_names_are_said(dtopt: Any, tmp_path: Path) -> None:
    code, _, err = dtopt("checkpoint", ADAM, str(tmp_path / "out"), "--to", "onnx")
    assert (code, "slots" in err) == (2, True)
    code, _, err = dtopt("inspect", ADAM, "--from", "word")
    assert (code, "h5" in err) == (2, True)
    code, _, err = dtopt("inspect", ADAM, "--generation", "keras9")
    assert (code, "keras2.3" in err) == (2, True)


def test_people_are_shown_what_a_formula_gives_at_this_step(dtopt: Any) -> None:
    source = str(SCOPED / "warm" / "source" / "model.ckpt")
    _, out, _ = dtopt("inspect", source, "--explain")
    assert out.count("<Formula of 25 operations, 0.06 at step 3>") == 3
    assert "'operations'" not in out
    _, out, _ = dtopt("inspect", source, "--json")
    assert len(json.loads(out)["hyperparameters"]["learning_rate"]["config"]["operations"]) == 25


def test_help_and_inspect_import_no_tensorflow() -> None:
    code = "import sys; from dtopt_cli.app import main\ntry: main()\nfinally: assert 'tensorflow' not in sys.modules"
    for arguments in (["--help"], ["migrate", "inspect", ADAM]):
        subprocess.run(
            [sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


def test_the_step_of_an_approximate_migration_is_not_said_to_agree() -> None:
    """It printed `one step agrees (error is 1.7e+04 % of the rounding tolerance)`."""
    from dtopt_cli.commands.migrate_printing import _step

    assert _step(172.0) == "one step differs by 172 times the rounding tolerance, as an approximate migration may"
    assert _step(0.5).startswith("one step agrees")
