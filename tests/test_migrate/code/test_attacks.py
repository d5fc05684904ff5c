"""Programs that lead a reader astray: what may not be an optimizer is left alone, and so is all around one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from migrate.code.run import CodeReport, migrate_code

NOT_OPTIMIZERS = [
    "import tensorflow\nimport torch.optim as optim\nfrom torch.optim import Adam\no = Adam(x, lr=0.1)\n",
    "from keras.optimizers import SGD\ndef SGD(lr):\n    return lr\no = SGD(lr=0.1)\n",
    "import keras, re\nre.compile('sgd')\n",
    "import keras\nfrom mine import *\no = Adam(lr=0.1)\n",
    "import keras\nclass A:\n    lr = 1\na = A()\nprint(a.lr)\n",
    "import keras\ntext = 'keras.optimizers.SGD(lr=0.1)'\n# keras.optimizers.SGD(lr=0.1)\n",
    "try:\n    from keras.optimizers import Adam\nexcept ImportError:\n    Adam = None\no = Adam(lr=0.1)\n",
    "import keras\no = keras.optimizers.SGD(**options)\n",
    "import functools, keras\nmake = functools.partial(keras.optimizers.SGD, lr=0.1)\n",
    "import keras\nclass Mine(keras.optimizers.SGD):\n    pass\n",
]


def run(path: Path, code: bytes, **options: object) -> tuple[bytes, CodeReport]:
    path.write_bytes(code)
    report = migrate_code([path], source="keras==2.2.4", write=True, **options)  # type: ignore[arg-type]
    return path.read_bytes(), report


@pytest.mark.parametrize("code", NOT_OPTIMIZERS)
def test_what_may_be_no_optimizer_is_left_alone(tmp_path: Path, code: str) -> None:
    after, report = run(tmp_path / "p.py", code.encode())
    assert after == code.encode()
    assert "rewritten" not in report.counts


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"import keras\r\no = keras.optimizers.SGD(lr=0.1)\r\n", b"import keras\r\nimport optim\r\n"),
        (b"# coding: latin-1\nimport keras\n# \xe9\no = keras.optimizers.SGD(lr=0.1)\n", b"# \xe9\n"),
        (b"import keras\nif x:\n\to = keras.optimizers.SGD(lr=0.1)\n", b"\n\to = "),
        (b"\xef\xbb\xbfimport keras\no = keras.optimizers.SGD(lr=0.1)\n", b"\xef\xbb\xbfimport keras\n"),
        (b"import keras\noptim = keras.optimizers.SGD(lr=0.1)\n", b"dtopt_optim.for_keras(dtopt_optim.SGD("),
    ],
)
def test_bytes_around_stay(tmp_path: Path, before: bytes, after: bytes) -> None:
    code, _ = run(tmp_path / "p.py", before)
    assert after in code
    assert b"learning_rate=0.1" in code


def test_python_2_is_said(tmp_path: Path) -> None:
    code = b"import keras\no = keras.optimizers.SGD(lr=0.1)\nprint 'x'\n"
    after, report = run(tmp_path / "p.py", code)
    assert after == code
    assert report.exit_code == 3
    assert "Python 2" in report.findings[0].message


def test_a_notebook_keeps_its_other_cells(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": ["SGD(lr=0.1)"]},
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": ["!pip install keras==2.2.4\n", "import keras"]},
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": ["%%bash\n", "keras.optimizers.SGD(lr=0.1)"]},
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": ["%time\n", "o = keras.optimizers.SGD(lr=0.1)"]},
    ]
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 2}, indent=1) + "\n")
    report = migrate_code([path], write=True)
    after = json.loads(path.read_text())["cells"]
    assert after[:1] == cells[:1]
    assert after[2] == cells[2]
    assert "".join(after[1]["source"]) == "!pip install keras==2.2.4\nimport keras\nimport optim"
    assert "".join(after[3]["source"]) == "%time\no = optim.for_keras(optim.SGD(learning_rate=0.1))"
    verdicts = [(finding.verdict, finding.cell, finding.line) for finding in report.findings]
    assert verdicts == [("unsure", 3, 1), ("rewritten", 4, 2)]
