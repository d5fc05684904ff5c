"""The command line in this process."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import pytest


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """A function: words -> (exit code, stdout, stderr), through the console script's own entry point."""
    from dtopt_cli import app

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dtopt", *words])
        with pytest.raises(SystemExit) as end:
            app.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


@pytest.fixture
def dtopt(main: Any) -> Any:
    return partial(main, "migrate")
