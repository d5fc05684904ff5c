"""Large files, deeply nested ones, and files that cannot be read next to others that can."""

from __future__ import annotations

import difflib
import time
from pathlib import Path

import pytest

from migrate.code import files, nesting, run
from migrate.code.findings import REWRITTEN, UNREADABLE
from migrate.code.run import migrate_code

HEAD = """import keras
from keras import backend as K
from keras.layers import Dense
from keras.models import Sequential
from keras.optimizers import Adam
m = Sequential()
"""
BLOCKS = {
    "names": """
a{0} = keras.optimizers.SGD(lr=0.1)
m{0} = Sequential([Dense(1)])
m{0}.compile(loss='mse', optimizer=a{0})
""",
    "one name": """
o = Adam(lr=0.1)
m.compile(loss='mse', optimizer=o)
m.optimizer.lr = 0.1
print(logs['lr'])
""",
    "functions": """
def f{0}(m):
    o = Adam(lr=0.1)
    m.compile(loss='mse', optimizer=o)
    cls = Adam
    return cls()
""",
    "strings": """
m.compile('rmsprop', 'mse')
K.set_value(m.optimizer.lr, 0.1)
t{0} = {{'a': Adam}}
o = t{0}['a'](lr=0.1)
""",
}


def seconds(tmp_path: Path, block: str, count: int) -> float:
    path = tmp_path / "program.py"
    path.write_text(HEAD + "".join(block.format(number) for number in range(count)))
    start = time.process_time()
    report = migrate_code([path], source="keras==2.2.4")
    assert report.counts[REWRITTEN] >= count
    return time.process_time() - start


@pytest.mark.breadth
@pytest.mark.parametrize("kind", BLOCKS)
def test_time_is_linear_in_the_number_of_optimizers(tmp_path: Path, kind: str) -> None:
    """Eight times as many took up to 64 times as long when each optimizer read the whole file again."""
    seconds(tmp_path, BLOCKS[kind], 20)
    ratio = seconds(tmp_path, BLOCKS[kind], 400) / seconds(tmp_path, BLOCKS[kind], 50)
    assert ratio < 16


@pytest.mark.breadth
@pytest.mark.parametrize("kind", BLOCKS)
def test_four_thousand_optimizers_take_seconds(tmp_path: Path, kind: str) -> None:
    assert seconds(tmp_path, BLOCKS[kind], 4000) < 30  # 10 s on an idle machine


DEEP = {
    "sum": lambda count: "+".join(["1"] * count),
    "brackets": lambda count: "(" * count + "1" + ")" * count,
    "attributes": lambda count: "a" + ".b" * count,
    "calls": lambda count: "a" + "(1)" * count,
    "signs": lambda count: "-" * count + "1",
    "not": lambda count: "not " * count + "1",
    "conditions": lambda count: "1 if a else " * count + "1",
    "strings": lambda count: "'a' " * count,
    "functions": lambda count: "lambda: " * count + "1",
}


@pytest.mark.parametrize("kind", DEEP)
@pytest.mark.parametrize("count", [800, 50_000])
@pytest.mark.quick(3)
def test_a_deep_file_hides_no_other(tmp_path: Path, kind: str, count: int) -> None:
    call = "import keras\no = keras.optimizers.SGD(lr=0.1)\n"
    (tmp_path / "a.py").write_text(f"{call}x = {DEEP[kind](count)}\n")
    (tmp_path / "b.py").write_text(call)
    report = migrate_code([tmp_path], source="keras==2.2.4")
    verdicts = {Path(f.path).name: f.verdict for f in report.findings}
    assert verdicts["b.py"] == REWRITTEN
    assert verdicts["a.py"] == (REWRITTEN if count == 800 else UNREADABLE)


def test_a_chain_of_branches_is_read(tmp_path: Path) -> None:
    code = "import keras\nif a:\n    pass\n" + "elif a:\n    o = keras.optimizers.SGD(lr=0.1)\n" * 500
    (tmp_path / "a.py").write_text(code)
    assert migrate_code([tmp_path], source="keras==2.2.4").counts == {REWRITTEN: 500}


def test_long_lists_and_files_are_not_deep() -> None:
    assert nesting.depth("x = [" + "f(1 + 1), " * 100_000 + "]\n") < 10
    assert nesting.depth("x = a.b + 1  # ((((\n'''(((('''\n" * 10_000) < 10


BROKEN = [
    ("import keras\nkeras.optimizers.SGD(lr=0.1)\nx = (\n", 3),
    ("import keras\n\n\nx = 1 +\nkeras.optimizers.SGD(lr=0.1)\n", 4),
    ("import keras\nif x:\n    keras.optimizers.SGD(lr=0.1)\n  y\n", 4),
    ("import keras\nkeras.optimizers.SGD(lr=0.1)\nx = 'a\n", 3),
    ("import keras\nkeras.optimizers.SGD(lr=0.1)\nx = 1 ? 2\n", 3),
]


@pytest.mark.parametrize(("code", "line"), BROKEN)
def test_an_error_has_its_line(tmp_path: Path, code: str, line: int) -> None:
    (tmp_path / "a.py").write_text(code)
    (finding,) = migrate_code([tmp_path], source="keras==2.2.4").findings
    assert (finding.verdict, finding.line) == (UNREADABLE, line)
    assert f"a.py:{line} is not Python" in finding.message


def test_what_dtopt_fails_on_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run.read_places

    def failing(one: object, *rest: object) -> object:
        if str(getattr(one, "path", "")).endswith("a.py"):
            raise KeyError("x")
        return whole(one, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "read_places", failing)
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("import keras\no = keras.optimizers.SGD(lr=0.1)\n")
    report = migrate_code([tmp_path], source="keras==2.2.4")
    assert [f.verdict for f in report.findings] == [UNREADABLE, REWRITTEN]


@pytest.mark.parametrize("changed", [[0], [3], [150, 199, 200, 201], list(range(0, 1000, 2)), list(range(300, 700))])
def test_a_diff_is_that_of_difflib(changed: list[int]) -> None:
    """It is made window by window; where a line is replaced by another, there is one way to say it."""
    before = [f"line {number}" for number in range(1000)]
    after = [f"new {number}" if number in changed else line for number, line in enumerate(before)]
    text = run._diff(files.Program(Path("f.py"), "\n".join(before) + "\n"), "\n".join(after) + "\n")
    whole = difflib.unified_diff(before, after, "a/f.py", "b/f.py", lineterm="")
    assert text == "\n".join(whole)


def test_tabs_mixed_with_spaces_are_named(tmp_path: Path) -> None:
    """Python reads them, with a tab to the next multiple of 8; LibCST does not."""
    path = tmp_path / "program.py"
    path.write_text("import keras\nfor a in b:\n\tfor c in a:\n    \t\tprint(c)\n\tkeras.optimizers.SGD(lr=0.1)\n")
    (finding,) = migrate_code([path], source="keras==2.2.4").findings
    assert (finding.verdict, finding.line) == (UNREADABLE, 4)
    assert "expand -i" in finding.message
