"""Notebooks: cells with IPython's own lines, cells that are no Python, and what else is in the JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from migrate.code.findings import REWRITTEN, UNREADABLE, UNSURE
from migrate.code.run import CodeReport, migrate_code

IMPORT = "from keras.optimizers import SGD"
NEW = "optim.for_keras(optim.SGD(learning_rate=0.1))"


def notebook(*cells: str, indent: int | None = 1) -> str:
    code_cells = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    return json.dumps({"cells": code_cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 2}, indent=indent)


def run(tmp_path: Path, text: str) -> tuple[str, CodeReport]:
    path = tmp_path / "n.ipynb"
    path.write_text(text)
    report = migrate_code([path], source="keras==2.2.4", write=True)
    return path.read_text(), report


def sources(text: str) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(text)["cells"]]


@pytest.mark.parametrize("magic", ["%%time", "%%capture out", "%%timeit -n 1", "  %%time"])
def test_cells_that_a_magic_runs_are_read(tmp_path: Path, magic: str) -> None:
    text, report = run(tmp_path, notebook(f"{IMPORT}\nimport keras", f"{magic}\no = SGD(lr=0.1)"))
    assert sources(text)[1] == f"{magic}\no = {NEW}"
    assert [(f.verdict, f.cell, f.line) for f in report.findings] == [(REWRITTEN, 2, 2)]


def test_a_new_import_takes_the_place_of_an_old_one(tmp_path: Path) -> None:
    text, report = run(tmp_path, notebook(IMPORT, "%%timeit\nSGD(lr=0.1)"))
    assert sources(text) == ["import optim", f"%%timeit\n{NEW}"]
    assert report.changes[0].diff.splitlines()[2:] == [
        "@@ -1,5 +1,5 @@",
        " # cell 1",
        f"-{IMPORT}",
        "+import optim",
        " # cell 2",
        " %%timeit",
        "-SGD(lr=0.1)",
        f"+{NEW}",
    ]


def test_a_cell_of_old_imports_alone_is_emptied(tmp_path: Path) -> None:
    text, _ = run(tmp_path, notebook("import keras\nx = 1", IMPORT, "o = SGD(lr=0.1)"))
    assert sources(text) == ["import keras\nimport optim\nx = 1", "", f"o = {NEW}"]


def test_comments_above_a_removed_import_stay(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(f"import keras\n\n# why\n{IMPORT}\ndef f():\n    return SGD(lr=0.1)\n")
    migrate_code([path], source="keras==2.2.4", write=True)
    assert path.read_text() == f"import keras\n\n# why\nimport optim\ndef f():\n    return {NEW}\n"
    path.write_text(f"import keras\ndef f():\n    # why\n    {IMPORT}\n    return SGD(lr=0.1)\n")
    migrate_code([path], source="keras==2.2.4", write=True)
    assert path.read_text() == f"import keras\nimport optim\ndef f():\n    # why\n    return {NEW}\n"
    path.write_text(f"import keras\n{IMPORT}\no = SGD(lr=0.1)\nif o:\n    pass\n    # why\n    {IMPORT}\n# end\n")
    migrate_code([path], source="keras==2.2.4", write=True)
    assert path.read_text() == f"import keras\nimport optim\no = {NEW}\nif o:\n    pass\n    # why\n# end\n"


def test_a_cell_magic_stays_the_first_line(tmp_path: Path) -> None:
    text, _ = run(tmp_path, notebook("%%time\nimport keras\no = keras.optimizers.SGD(lr=0.1)"))
    assert sources(text) == [f"%%time\nimport keras\nimport optim\no = {NEW}"]
    text, _ = run(tmp_path, notebook("%%time\nif x:\n  from keras.optimizers import SGD\n  o = SGD(lr=0.1)"))
    assert sources(text)[0].startswith("%%time\nimport optim\nif x:\n")


@pytest.mark.parametrize("line", ["  %%time", "  %time", "  !ls \\\n     -l", "  x = !ls", "  keras?"])
def test_lines_of_ipython_inside_of_blocks_stay(tmp_path: Path, line: str) -> None:
    cell = f"{IMPORT}\nimport optim\ntry:\n{line}\nexcept ValueError:\n  pass\no = "
    text, report = run(tmp_path, notebook(f"{cell}SGD(lr=0.1)"))
    assert sources(text)[0].endswith(f"{line}\nexcept ValueError:\n  pass\no = {NEW}")
    assert report.exit_code == 0


def test_a_line_that_begins_with_percent_is_python(tmp_path: Path) -> None:
    cell = f'{IMPORT}\nimport optim\nprint("a %s"\n% 1)\no = '
    text, _ = run(tmp_path, notebook(f"{cell}SGD(lr=0.1)"))
    assert sources(text) == [f'import optim\nprint("a %s"\n% 1)\no = {NEW}']


BROKEN = [
    ("x = 1\ny = )\n", 2, "not Python"),
    ("import os\n\nprint 'x'\n", 3, "Python 2"),
    ("x = " + "(" * 3000 + ")" * 3000, 1, "nested"),
]


@pytest.mark.parametrize(("broken", "line", "message"), BROKEN)
def test_a_cell_that_is_no_python_hides_no_other(tmp_path: Path, broken: str, line: int, message: str) -> None:
    text, report = run(tmp_path, notebook(IMPORT, broken, "o = SGD(lr=0.1)"))
    assert sources(text)[1:] == [broken, f"o = {NEW}"]
    assert [(f.verdict, f.cell, f.line) for f in report.findings] == [(UNREADABLE, 2, line), (REWRITTEN, 3, 1)]
    assert message in report.findings[0].message
    assert report.exit_code == 3


def test_a_cell_that_is_written_to_a_file_is_named(tmp_path: Path) -> None:
    text, report = run(
        tmp_path, notebook(IMPORT, "%%writefile train.py\nfrom keras.optimizers import Adam\nAdam(lr=1)")
    )
    assert sources(text)[1].endswith("Adam(lr=1)")
    assert [(f.verdict, f.cell) for f in report.findings] == [(UNSURE, 2)]
    assert not run(tmp_path, notebook(IMPORT, "%%bash\nls"))[1].findings


ODD = [
    ("  ", True, lambda text: text.replace("<", "\\u003c").replace("'", "\\u0027")),
    ("\t", False, lambda text: text.replace("é", "\\u00e9")),
    (None, True, lambda text: text),
    (1, False, lambda text: text.replace('"metadata": {}', '"metadata" :   {  }')),
]


@pytest.mark.parametrize(("indent", "newline", "written"), ODD)
def test_only_the_lines_that_change_are_written(tmp_path: Path, indent: object, newline: bool, written: object) -> None:
    cell = f"{IMPORT}\n# <b>'é'</b>\nimport optim\nx = '<'\no = SGD(lr=0.1)  # <a>\n"
    code_cells = [{"cell_type": "code", "source": cell.splitlines(keepends=True), "outputs": [{"text": "<é>"}]}]
    document = {"cells": [{"cell_type": "markdown", "source": "<SGD(lr=0.1)>"}, *code_cells], "metadata": {}}
    text = json.dumps(document, indent=indent, ensure_ascii=False) + "\n" * newline  # type: ignore[arg-type]
    before = written(text)  # type: ignore[operator]
    after, _ = run(tmp_path, before)
    gone, old, new = written(f'"{IMPORT}\\n"'), "SGD(lr=0.1)  #", f"{NEW}  #"  # type: ignore[operator]
    start, end = before.index(gone), before.index(gone) + len(gone)
    end += before[end:].index('"')
    assert after == (before[:start] + before[end:]).replace(old, new)


def test_a_source_that_is_one_string_stays_one(tmp_path: Path) -> None:
    cell = {"cell_type": "code", "source": f"{IMPORT}\nimport optim\no = SGD(lr=0.1)"}
    text, _ = run(tmp_path, json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4}))
    assert json.loads(text)["cells"][0]["source"] == f"import optim\no = {NEW}"
