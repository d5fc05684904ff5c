"""Build what is published: `python tools/build.py [FOLDER] [--light]`, by default into `dist`.

- `dtopt`: an sdist, and a wheel with the kernel for the TensorFlow of this environment and for those that
  `python tools/versions.py kernels` left in `optim/native/prebuilt`.
- `dtopt-light`: the same packages without TensorFlow among what they depend on, and without the kernel.

Run it where `build`, `setuptools>=77`, numpy and TensorFlow are installed. `--light` makes dtopt-light alone, for which
the first two are enough. The same commit gives the same bytes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PREBUILT = Path("optim/native/prebuilt")
NVRTC = "\"nvidia-cuda-nvrtc-cu12==12.1.105; sys_platform == 'linux' and platform_machine == 'x86_64'\""
LIGHT = (
    ('name = "dtopt"', 'name = "dtopt-light"'),
    ('    "tensorflow>=2.16,<2.22",\n', '    "libcst>=1.5",\n    "packaging>=23",\n'),
    ('requires-python = ">=3.10,<3.14"', 'requires-python = ">=3.10"'),  # TensorFlow's bound
    (', "numpy>=1.26", "tensorflow>=2.16,<2.22",   # the last three: to compile the kernels\n', "]\n"),
    (f"            {NVRTC}]\n", ""),
    ("Mesh-aware TensorFlow optimizers, exact", "Exact"),
    (", and honest optimizer benchmarks", ", without TensorFlow: inspect, convert, verify, rewrite programs"),
)
"""What differs for `dtopt-light` in pyproject.toml."""


def build(source: Path, into: Path, *kinds: str) -> None:
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", *kinds, "-o", into, source], check=True)


def unpacked(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):  # not before Python 3.10.12 and 3.11.4
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
    return folder / sdist.name.removesuffix(".tar.gz")


def lighten(folder: Path) -> None:
    """Make the sources of dtopt those of dtopt-light. Raises ValueError: pyproject.toml is not as expected."""
    path = folder / "pyproject.toml"
    text = path.read_text(encoding="utf-8")
    time = path.stat().st_mtime  # that of the commit
    for old, new in LIGHT:
        if text.count(old) != 1:
            raise ValueError(f"pyproject.toml has {old!r} {text.count(old)} times, not once")
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    os.utime(path, (time, time))


def main(into: Path, light_alone: bool) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        build(ROOT, Path(scratch) / "sdist", "--sdist", "--skip-dependency-check")  # nothing is compiled
        (sdist,) = (Path(scratch) / "sdist").iterdir()
        light = unpacked(sdist, Path(scratch) / "light")
        lighten(light)
        build(light, into)
        if light_alone:
            return
        shutil.copy(sdist, into)
        clean = unpacked(sdist, Path(scratch) / "whole")  # an old `build` folder does not get into the wheel
        if (ROOT / PREBUILT).is_dir():
            shutil.copytree(ROOT / PREBUILT, clean / PREBUILT)
        build(clean, into, "--wheel")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build what is published.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("dist"))
    parser.add_argument("--light", action="store_true", help="dtopt-light alone")
    options = parser.parse_args()
    main(options.folder.resolve(), options.light)
