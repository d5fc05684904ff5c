"""`dtopt bench plan`: the answer as a sentence and an exit code, JSON alone on stdout, no TensorFlow."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench import kinds
from bench.forecast import row as plan_row
from bench.results import document
from bench.results.document import Result
from bench.results.records import Roof, Sample
from bench.roof import row as roof_row
from bench.scale import row as scale_row
from dtopt_cli.commands.bench import app
from optim.errors import DtoptError
from tests.helpers.timing import HANGS
from tests.places import CORPUS, ROOT


def call(*words: str) -> Any:
    return CliRunner().invoke(app, ["plan", *words])


def test_llama_fits_on_eight_devices_and_not_on_four() -> None:
    eight = call("-w", "llama-7b", "--devices", "8", "--memory", "24GB")
    assert eight.exit_code == 0
    assert "llama-7b with adam fits: --mesh " in eight.stdout
    four = call("-w", "llama-7b", "--devices", "4", "--memory", "16GB")
    assert four.exit_code == 1
    assert "does not fit: the least is" in four.stdout
    assert call("-w", "llama-7b", "--devices", "4", "--memory", "48GB").exit_code == 0
    assert call("-w", "llama-7b", "--devices", "4", "--memory", "28GB", "--other", "2GB").exit_code == 1


def test_json_is_a_result_that_can_be_read_again(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    done = call("-w", "gpt2", "--mesh", "2x2", "--mesh", "512x8", "--use-ema", "--json", "--output", str(file))
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert document["kind"] == "dtopt bench plan"
    read = kinds.from_json(document)
    assert read == kinds.load(file)
    assert {row.mesh for row in read.rows} == {"batch=2,model=2", "batch=512,model=8"}
    assert all("average" in row.slot_bytes for row in read.rows)


def test_a_row_names_the_command_that_makes_it_again() -> None:
    words = ["-w", "gpt2:layer", "-o", "lamb", "--dtype", "bfloat16", "--clipnorm", "1", "--use-ema"]
    words += ["--gradient-accumulation-steps", "2", "--device-type", "v4", "--batch-size", "64"]
    words += ["--memory", "1GB", "--bandwidth", "100GB/s", "--link", "1GB/s", "--json"]
    for row in kinds.from_json(json.loads(call(*words, "--mesh", "2x4").stdout)).rows[:3]:
        program, group, *again = row.rerun.split()
        assert (program, group, again[0]) == ("dtopt", "bench", "plan")
        (same,) = kinds.from_json(json.loads(call(*again[1:], "--json").stdout)).rows
        assert (same.device_bytes, same.sent_bytes, same.fits) == (row.device_bytes, row.sent_bytes, row.fits)
        assert (same.update_seconds, same.exchange_seconds) == (row.update_seconds, row.exchange_seconds)


def test_speeds_from_a_measured_roof(tmp_path: Path) -> None:
    file = tmp_path / "roof.json"
    sample = Sample(0, 0, 0, 1, 0.5)
    roofs = tuple(Roof("w", "adam", f"roof {speed}", 10, speed, (sample,)) for speed in (1e9, 2e9))
    document.save(Result({}, roofs, ()), file)
    words = ["-w", "one16m", "--mesh", "2x2", "--layout", "megatron", "--slot-placement", "like_variable", "--json"]
    (row,) = json.loads(call(*words, "--roof", str(file)).stdout)["rows"]
    # Four devices share the machine: 28 bytes per parameter and replica.
    assert row["update_seconds"] == pytest.approx(28 * 4096 * 4096 * 2 / 2e9)
    (row,) = json.loads(call(*words, "--bandwidth", "1GB/s").stdout)["rows"]
    assert row["update_seconds"] == pytest.approx(28 * 4096 * 4096 / 2 / 1e9)


def test_shapes_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "shapes.json"
    file.write_text('[[1024, 512], {"name": "b", "shape": [512]}]')
    done = call(
        "--shapes", str(file), "--mesh", "batch=4", "--layout", "replicated", "--slot-placement", "zero1", "--json"
    )
    (row,) = json.loads(done.stdout)["rows"]
    assert row["parameters"] == 1024 * 512 + 512
    assert row["slot_bytes"] == {"m": (1024 * 512 + 512), "v": (1024 * 512 + 512)}


def test_weights_alone_are_refused_with_what_does_instead() -> None:
    weights = CORPUS / "keras231-adagrad-decay-eps-nested/source/model_weights.h5"
    done = call("--shapes", str(weights))
    assert isinstance(done.exception, DtoptError), done.output
    assert "for --shapes, module:function that returns variables does as well" in str(done.exception)


@pytest.mark.parametrize(
    "words",
    [
        ("-w", "gtp2"),
        ("-o", "adamant"),
        ("--layout", "diagonal"),
        ("--slot-placement", "zero9"),
        ("--mesh", "0x2"),
        ("--mesh", "2", "--devices", "2"),
        ("--memory", "much"),
        ("--other", "1GB"),
        ("--memory", "1GB", "--other", "1GB"),
        ("--shapes", "missing.json"),
        ("--shapes", "a.json", "-w", "gpt2"),
        ("--bandwidth", "1GB/s", "--roof", "a.json"),
        ("--dtype", "int4"),
    ],
)
def test_usage_errors(words: tuple[str, ...]) -> None:
    done = call(*words)
    assert isinstance(done.exception, DtoptError), done.output
    assert done.exception.exit_code == 2


def test_it_needs_no_tensorflow() -> None:
    code = (
        "import sys; sys.modules['tensorflow'] = None; from dtopt_cli.commands.bench import app;"
        "app(['plan', '-w', 'llama-7b', '--devices', '8', '--memory', '24GB'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        timeout=HANGS,
    )
    assert done.returncode == 0, done.stderr
    assert "fits:" in done.stdout


@pytest.mark.parametrize("record", [plan_row.Row, plan_row.Exchange, roof_row.Row, scale_row.Row, scale_row.Efficiency])
def test_every_member_of_a_row_is_documented(record: Any) -> None:
    page = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
    missing = [f.name for f in dataclasses.fields(record) if f"`{f.name}`" not in page and f"`{f.name}[]`" not in page]
    assert not missing
