"""`tools/gpu_check.py`, on the CPU: what is to run at the first try on a machine with a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulated_gpu import needs_nvrtc
from tests.test_optim.kernel_support import require_kernel

TOOL = Path(__file__).parents[1] / "tools" / "gpu_check.py"


@needs_nvrtc
@pytest.mark.parametrize("only", ["buffers", pytest.param("", marks=pytest.mark.breadth)])
def test_all_checks_pass_through_emulated_launches(only: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTOPT_KERNELS", "build")
    require_kernel()
    words = ["--emulated", "--into", str(tmp_path), "--only", only]
    done = subprocess.run([sys.executable, str(TOOL), *words], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = json.loads((tmp_path / "checks.json").read_text())
    assert checks
    assert all(check["ok"] for check in checks)


def test_without_a_gpu_it_says_what_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), "--into", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert "pip install 'tensorflow[and-cuda]'" in done.stderr
