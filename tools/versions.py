"""What runs with which Python and TensorFlow: built, installed from the package index, tested, written down.

    python tools/versions.py kernels             compile the kernel for every TensorFlow, into optim/native/prebuilt
    python tools/build.py                        then make a wheel of it
    python tools/versions.py test WHEEL [3.12/2.18 ...]   install it next to each TensorFlow, and test it there;
                                                 3.12: all that have that Python
    python tools/versions.py quick WHEEL [3.12/2.18 ...]  the same, with some tests of each kind
    python tools/versions.py smoke WHEEL [3.12/2.18 ...]  only install it and take one step with its kernel
    python tools/versions.py light WHEEL [3.12 ...]       install dtopt-light, and migrate a file without TensorFlow
    python tools/versions.py table               the table of docs/tested.md

Results are kept in tools/versions.json, in which those of other commits stay until they are measured again; what passed
fewer tests than before replaces nothing, unless it is `test`. Each environment is new, and deleted after. Needs `uv`,
and the Pythons on the PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "tools" / "versions.json"
PAGE = ROOT / "docs" / "tested.md"
BEGIN, END = "<!-- tools/versions.py table -->\n", "<!-- end of the table -->\n"
OLD_PYTHONS = ("3.10", "3.11", "3.12")
PYTHONS = {
    "2.16": OLD_PYTHONS,
    "2.17": OLD_PYTHONS,
    "2.18": OLD_PYTHONS,
    "2.19": OLD_PYTHONS,
    "2.20": (*OLD_PYTHONS, "3.13"),
    "2.21": (*OLD_PYTHONS, "3.13"),
}
"""The Pythons that dtopt takes and that a TensorFlow has wheels for."""
NVRTC = "nvidia-cuda-nvrtc-cu12==12.1.105; sys_platform == 'linux' and platform_machine == 'x86_64'"
"""What compiles kernels for GPUs into the package."""
TOOLS = ("pytest", "pytest-timeout", "hypothesis")
QUICK = (
    "test_optim/whole/test_api.py",
    "test_optim/layouts/test_meshes.py",
    "test_optim/checkpoints/test_checkpoint.py",
    "test_migrate/whole/test_resume.py",
)
TESTS = (
    *QUICK,
    "test_optim/native/test_native_direct.py",
    "test_optim/native/test_native_meshes.py",
    "test_optim/step/test_sparse_cost.py",
    "test_migrate/whole/test_real_cases.py",
    "test_migrate/writers/test_keras_targets.py",
    "test_migrate/live/test_restore.py",
)
"""Of the API, checkpoints, meshes and migrations; the whole of `make test` runs with the locked versions."""
SMOKE = """
import json, optim, keras, tf_keras, tensorflow as tf
from optim.native import build, library
variable, optimizer = tf.Variable([1.0, 2.0, 3.0]), optim.SGD(0.5)
optimizer.apply_gradients([(tf.constant([1.0, 0.0, 2.0]), variable)])
assert variable.numpy().tolist() == [0.5, 2.0, 2.0]
status = library.status()
assert status.path and status.path.parent == build.PREBUILT, f"not the kernel of the wheel: {status}"
assert set(optimizer.executor_report().kernels.values()) == {"native"}, optimizer.executor_report()
print(json.dumps({"tensorflow": tf.__version__, "keras": keras.__version__, "tf_keras": tf_keras.__version__}))
"""
OLD = ROOT / "tests/fixtures/cases/corpus/keras224-adam-eps-none-nested/source/model.h5"
MIGRATING = (
    ("inspect", OLD),
    ("checkpoint", OLD, "new.keras", "--to", "keras", "--strict"),
    ("verify", OLD, "new.keras"),
)
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
LIMIT = 1800  # seconds that the tests of one environment may take


def call(
    *words: str | Path, cwd: Path = ROOT, check: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command that sees only the packages of its environment."""
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env={**clean, **QUIET, **variables}, capture_output=True, text=True
    )
    if check and done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))[:300]} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done


def environment(folder: Path, python: str, *packages: str) -> Path:
    """A new environment with these packages; returns its Python."""
    call("uv", "venv", "--quiet", "--clear", "--python", python, folder)
    interpreter = folder / "bin" / "python"
    call("uv", "pip", "install", "--quiet", "--python", interpreter, *packages)
    return interpreter


def kernels() -> None:
    """Compile into the source tree for every TensorFlow: the headers and the library to link with are in its wheel."""
    for tensorflow, pythons in PYTHONS.items():
        with tempfile.TemporaryDirectory() as scratch:
            python = environment(Path(scratch), pythons[-1], f"tensorflow=={tensorflow}.*", "setuptools", NVRTC)
            done = call(python, "-m", "optim.native.prebuild")
        print(*(line for line in done.stderr.splitlines() if line.startswith("dtopt: ")), sep="\n", flush=True)


def run(wheel: Path, python: str, tensorflow: str, tests: tuple[str, ...]) -> dict[str, Any]:
    """Install and test one combination, in a folder where the sources are not; without tests, one step is taken."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        needs = [f"tensorflow=={tensorflow}.*", f"tf_keras=={tensorflow}.*", *TOOLS]
        interpreter = environment(folder / "env", python, f"dtopt[keras,code] @ {wheel.resolve().as_uri()}", *needs)
        shutil.copytree(ROOT / "tests", folder / "tests")
        shutil.copy(ROOT / "pyproject.toml", folder)
        no_compiler = {"CXX": "none", "XDG_CACHE_HOME": str(folder / "cache")}
        version = call(interpreter, "-c", "import platform; print(platform.python_version())").stdout.strip()
        smoke = call(interpreter, "-c", SMOKE, cwd=folder, check=False, **no_compiler)
        result: dict[str, Any] = {"python": version, "tensorflow": tensorflow}
        if smoke.returncode != 0:
            last_line = smoke.stderr.strip().splitlines()[-1:]
            return {**result, "passed": 0, "failed": 1, "skipped": 0, "failures": [f"smoke: {' '.join(last_line)}"]}
        result |= json.loads(smoke.stdout.splitlines()[-1])
        if not tests:
            return {**result, "passed": 0, "failed": 0, "skipped": 0, "failures": []}
        report = folder / "report.xml"
        words = ["timeout", str(LIMIT), interpreter, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml", report]
        call(*words, *(f"tests/{name}" for name in tests), cwd=folder, check=False, **no_compiler)
        return {**result, **counted(report)}


def counted(report: Path) -> dict[str, Any]:
    """What pytest's report has."""
    if not report.is_file():
        return {"passed": 0, "failed": 1, "skipped": 0, "failures": ["the tests did not end"]}
    suite = ElementTree.parse(report).getroot()[0]
    failed = [
        case for case in suite.iter("testcase") if case.find("failure") is not None or case.find("error") is not None
    ]
    skipped, total = int(suite.get("skipped", 0)), int(suite.get("tests", 0))
    return {
        "passed": total - skipped - len(failed),
        "failed": len(failed),
        "skipped": skipped,
        "failures": [f"{case.get('classname')}::{case.get('name')}" for case in failed],
    }


def test(wheel: str, *names: str) -> None:
    """Test combinations, `PYTHON/TENSORFLOW` or `PYTHON` each; without names all of them."""
    measure(wheel, names, TESTS)


def quick(wheel: str, *names: str) -> None:
    """As `test`, with some of its tests."""
    measure(wheel, names, QUICK)


def smoke(wheel: str, *names: str) -> None:
    """Install combinations, as `test` names them, and take one step with the kernel of the wheel in each."""
    measure(wheel, names, ())


def light(wheel: str, *pythons: str) -> None:
    """Install dtopt-light with these Pythons, or all; inspect, convert and verify with it where no TensorFlow is."""
    for python in pythons or PYTHONS["2.21"]:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            interpreter = environment(folder / "env", python, f"dtopt-light[remote] @ {Path(wheel).resolve().as_uri()}")
            call(interpreter, "-c", "from importlib.util import find_spec; assert not find_spec('tensorflow')")
            for words in MIGRATING:
                call(interpreter.with_name("dtopt"), "migrate", *words, cwd=folder)
        print(f"dtopt-light, Python {python}: a file of Keras 2.2.4 is inspected, converted and verified", flush=True)


def measure(wheel: str, names: tuple[str, ...], tests: tuple[str, ...]) -> None:
    """Run combinations one after the other, and keep each result as it comes."""
    known = [f"{p}/{t}" for t, pythons in PYTHONS.items() for p in pythons]
    selection = [name_ for name in names for name_ in known if name in (name_, name_.split("/")[0])] if names else known
    failed = 0
    commit = call("git", "log", "-1", "--format=%h").stdout.strip()
    for name in selection:
        python, tensorflow = name.split("/")
        started = time.monotonic()
        result = run(Path(wheel), python, tensorflow, tests) | {"commit": commit}
        print(f"{name}: {result} in {time.monotonic() - started:.0f} s", flush=True)
        results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
        if tests == TESTS or result["failed"] or result["passed"] >= results.get(name, {}).get("passed", 0):
            results[name] = result
        RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=2) + "\n", encoding="utf-8")
        failed += result["failed"]
    sys.exit(1 if failed else 0)


def table() -> str:
    """The results as docs/tested.md shows them."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    pythons = PYTHONS["2.21"]
    lines = [f"| TensorFlow | {' | '.join(f'Python {p}' for p in pythons)} |", "|---" * (1 + len(pythons)) + "|"]
    for tensorflow, has in PYTHONS.items():
        cells = [cell(results.get(f"{p}/{tensorflow}")) if p in has else "not released" for p in pythons]
        lines.append(f"| {tensorflow} | {' | '.join(cells)} |")
    commits = sorted({result["commit"] for result in results.values()})
    return "\n".join(lines) + f"\n\nMeasured with wheels of these commits: {', '.join(commits)}.\n"


def cell(result: dict[str, Any] | None) -> str:
    if result is None:
        return "not run"
    keras = f"{result['tensorflow']}, Keras {result['keras']}" if "keras" in result else result["tensorflow"]
    if result["failed"]:
        return f"**{result['failed']} failed** ({keras})"
    return f"{result['passed']} passed ({keras})" if result["passed"] else f"one step taken ({keras})"


def write_table() -> None:
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    commands = {"kernels": kernels, "test": test, "quick": quick, "smoke": smoke, "light": light, "table": write_table}
    commands[sys.argv[1]](*sys.argv[2:])
