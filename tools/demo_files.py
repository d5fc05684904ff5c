"""Write what `dtopt demo` unpacks, dtopt_cli/demo.zip, from tests/fixtures/cases: python tools/demo_files.py"""

from __future__ import annotations

import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / "tests" / "fixtures" / "cases"
ARCHIVE = ROOT / "dtopt_cli" / "demo.zip"
FILES = {
    "old.h5": "stories/resumed/model.h5",
    "train_tf115.py": "stories/resumed/train_tf115.py",
    "tf115.json": "stories/resumed/tf115.json",
    "continue.py": "stories/resumed/continue.py",
    "keras231.h5": "corpus/keras231-adam-amsgrad-mlp/source/model.h5",
    "bert": "corpus/extra-tf115-bert-warm3-saver/source",
    "gan": "several/gan/tf24/source",
    "embedding": "corpus/tf115-sgd-nesterov-checkpoint-embed/source",
    "momentum": "corpus/tf24-sgd-momentum-ckpt-convbn/source",
    "program": "stories/keras22",
    "program_tf115": "stories/tf115",
}
"""Names in the demo's folder: files, and folders whose files are taken."""
TIME = (1980, 1, 1, 0, 0, 0)
"""Of every member, so that the same files give the same archive."""


def members() -> dict[str, bytes]:
    """The content of each file by its name in the archive."""
    contents: dict[str, bytes] = {}
    for name, source in FILES.items():
        path = CASES / source
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            contents[f"{name}/{file.name}" if path.is_dir() else name] = file.read_bytes()
    return contents


def main() -> None:
    with zipfile.ZipFile(ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members().items():
            archive.writestr(zipfile.ZipInfo(name, TIME), content, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main()
