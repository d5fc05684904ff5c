"""One table of exit codes: what the commands use, what errors bring, what is documented."""

from __future__ import annotations

import re

import bench.errors
from dtopt_cli.exit_codes import Exit
from optim.errors import DtoptError
from tests.places import ROOT

PAGE = ROOT / "docs" / "benchmarking.md"


def test_the_documented_codes_are_those_there_are() -> None:
    table = PAGE.read_text().partition("## Exit codes")[2].partition("\n## ")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == sorted(Exit)


def test_errors_end_with_one_of_them() -> None:
    kinds = [one for one in vars(bench.errors).values() if isinstance(one, type) and issubclass(one, DtoptError)]
    assert {one.exit_code for one in kinds} == {Exit.USAGE, Exit.BROKEN, Exit.NOTHING_RAN, Exit.INCOMPARABLE}
