"""How dtopt's own kernel is built, found and chosen."""

from __future__ import annotations

import itertools
import logging
import os
import re
import shutil
import sys
import threading
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import optim
from optim.errors import HyperparameterError
from optim.native import build, compiling, generate, library, mode
from optim.native.compiling import Recipe
from tests.helpers.timing import until
from tests.test_optim.native.kernel_support import require_kernel


@pytest.fixture(autouse=True)
def _mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mode.VARIABLE, "auto")


@pytest.fixture
def _forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a process that has not loaded the kernel, with an empty cache, of a package without prebuilt libraries."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(library, "_kernels", library._Kernels())
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "none")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mode.VARIABLE, "build")
    require_kernel()


def step() -> optim.Adam:
    optimizer, variable = optim.Adam(0.1), tf.Variable(np.ones(5, np.float32))
    optimizer.apply_gradients([(np.ones(5, np.float32), variable)])
    np.testing.assert_allclose(variable.numpy(), np.full(5, 0.9), rtol=1e-6)
    return optimizer


@pytest.mark.usefixtures("kernel")
def test_off_leaves_all_to_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = step()
    assert set(optimizer.executor_report().kernels.values()) == {"native"}
    monkeypatch.setenv(mode.VARIABLE, "off")
    report = optimizer.executor_report()
    assert set(report.kernels.values()) == {"fused"}
    assert report.why_not_native == "DTOPT_KERNELS=off"


def test_an_unknown_mode_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mode.VARIABLE, "fast")
    with pytest.raises(HyperparameterError, match="auto, build, off"):
        step()


@pytest.mark.usefixtures("_forgotten")
def test_steps_go_on_while_it_is_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    waits = f"until test -e {tmp_path}/go; do sleep 0.1; done"
    monkeypatch.setenv("CXX", _compiler(tmp_path, f"{waits}; echo 'x.h: error: a header is missing' >&2; exit 1"))
    with caplog.at_level(logging.WARNING, "optim"):
        optimizer = step()
        assert "in the background" in optimizer.executor_report().why_not_native
        step()
        assert len(caplog.records) == 1, "said once"
        assert "in the background" in caplog.text
        (tmp_path / "go").touch()
        assert until(lambda: "error: a header is missing" in optimizer.executor_report().why_not_native)
    assert "a header is missing" in caplog.text
    assert set(optimizer.executor_report().kernels.values()) == {"fused"}


@pytest.mark.usefixtures("_forgotten")
def test_without_a_compiler_steps_still_run(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O9")
    with caplog.at_level(logging.WARNING, "optim"):
        step()
        optimizer = step()
    assert [r.message.count("no-such-compiler -O9 not found") for r in caplog.records] == [1], "said once"
    assert "no-such-compiler -O9 not found" in optim.build_kernels().reason
    assert set(optimizer.executor_report().kernels.values()) == {"fused"}
    assert "no-such-compiler -O9 not found" in optimizer.executor_report().why_not_native


def _compiler(tmp_path: Path, body: str) -> str:
    """A script in the place of a compiler, whose `$made` is the file asked for."""
    script = tmp_path / "compiler"
    script.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done; made=$2\n{body}\n')
    script.chmod(0o755)
    return str(script)


@pytest.mark.usefixtures("_forgotten")
def test_what_the_compiler_says_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", _compiler(tmp_path, "echo 'x.h: error: a header is missing' >&2; exit 1"))
    status = optim.build_kernels()
    assert (status.available, status.path) == (False, None)
    assert "error: a header is missing" in status.reason
    assert not list(tmp_path.glob("dtopt/kernels/*.so"))


@pytest.mark.usefixtures("_forgotten")
def test_a_cache_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", _compiler(tmp_path, 'echo built > "$made"'))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    status = optim.build_kernels()
    assert not status.available
    assert "cannot be used" in status.reason
    assert "set XDG_CACHE_HOME" in status.reason


@pytest.mark.usefixtures("_forgotten")
def test_what_cannot_be_loaded_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", _compiler(tmp_path, 'echo nonsense > "$made"'))
    status = optim.build_kernels()
    assert not status.available
    assert "the kernel cannot be used" in status.reason


def test_another_tensorflow_has_another_build(monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.ops()
    monkeypatch.setattr(tf.version, "VERSION", "0.1.0")
    build.ops.cache_clear()
    try:
        after = build.ops()
        assert (after.name, after.key != before.key) == ("ops-0.1", True)
        assert build.find(after) is None
    finally:
        build.ops.cache_clear()


RECIPE = Recipe("some", "0" * 64, (("int f();\n", ()),), ())


@pytest.fixture
def made(_forgotten: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What a compiler made that is not one."""
    monkeypatch.setenv("CXX", _compiler(tmp_path, f'echo once >> {tmp_path / "log"}; sleep 0.2; echo built > "$made"'))
    return compiling.compile_into(RECIPE, build.cached(RECIPE))


def test_a_build_is_found_again(made: Path) -> None:
    assert build.find(RECIPE) == made
    assert build.find(Recipe("some", "1" * 64, (), ())) is None


@pytest.mark.parametrize("damage", ["truncated", "changed", "record", "no record"])
@pytest.mark.quick(1)
def test_a_damaged_build_is_made_anew(made: Path, damage: str) -> None:
    record = made.with_suffix(".json")
    if damage == "truncated":
        made.write_bytes(made.read_bytes()[:3])
    elif damage == "changed":
        made.write_text("bui1t\n")
    elif damage == "record":
        record.write_text("[]")
    else:
        record.unlink()
    assert build.find(RECIPE) is None
    compiling.compile_into(RECIPE, made)
    assert build.find(RECIPE) == made
    assert made.read_text() == "built\n"


def test_a_build_that_others_may_write_is_not_run(made: Path) -> None:
    made.chmod(0o775)
    assert build.find(RECIPE) is None


def test_a_build_under_a_lax_umask_is_used(made: Path) -> None:
    made.unlink()
    before = os.umask(0o002)
    try:
        compiling.compile_into(RECIPE, made)
    finally:
        os.umask(before)
    assert build.find(RECIPE) == made


def test_a_compiler_may_have_arguments(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"/bin/sh {os.environ['CXX']}")
    made.unlink()
    compiling.compile_into(RECIPE, made)
    assert build.find(RECIPE) == made


@pytest.mark.skipif(not any(map(shutil.which, compiling.COMPILERS)), reason="no C++ compiler")
def test_a_library_does_not_tell_where_it_was_made(tmp_path: Path) -> None:
    include = tmp_path / "include"
    include.mkdir()
    (include / "here.h").write_text("inline const char* Here() { return __FILE__; }\n")
    text = '#include "here.h"\nextern "C" { const char* f() { return Here(); } const char* g() { return __FILE__; } }\n'
    recipe = Recipe("some", "3" * 64, ((text, ("-fPIC", f"-I{include}")),), ())
    one, two = (compiling.compile_into(recipe, tmp_path / folder / "some.so").read_bytes() for folder in ("a", "bcd"))
    assert one == two
    assert str(tmp_path).encode() not in one


def test_waiting_for_a_rule_of_ones_own(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library._kernels, "ops", object())
    program = generate.Program("Mine_0", (), (), is_identity_at_zero=False, code="// nothing\n")
    library.want(program)
    assert "the kernel cannot be used" in optim.build_kernels().reason, "what a compiler made that is not one"
    assert list(tmp_path.glob("dtopt/kernels/rule-*.so"))


def test_concurrent_builds_compile_once(made: Path, tmp_path: Path) -> None:
    made.unlink()
    (tmp_path / "log").unlink()
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(compiling.compile_into(RECIPE, made))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "log").read_text().splitlines() == ["once"] * 2, "compiled and linked"
    assert found == [made] * 4
    assert sorted(p.suffix for p in made.parent.iterdir()) == [".json", ".lock", ".so"]


def test_a_background_build_tells_what_went_wrong(tmp_path: Path) -> None:
    process = compiling.start([(Recipe("bad", "2" * 64, (("this is no C++\n", ()),), ()), tmp_path / "x" / "bad.so")])
    assert process.stderr is not None
    said = process.stderr.read()
    assert process.wait() == 1
    assert "error" in said or "no C++ compiler" in said


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/cpuinfo")
def test_the_level_is_one_that_the_processor_has() -> None:
    has = Path("/proc/cpuinfo").read_text()
    assert build.level() in build.LEVELS
    assert build.level() == "base" or build.level() in has.replace("avx512f", "avx512")


def test_the_sources_are_part_of_the_package() -> None:
    folder = files("optim.native") / "cpp"
    every = (build.MATHS_SOURCES, build.OPS_SOURCES, (*build.GPU_SOURCES, "abi.h"))
    for named in every[:2]:
        included = re.findall(r'#include "([a-z_]+\.h)"', "".join((folder / name).read_text() for name in named))
        assert {*included, *(name for name in named if name.endswith(".cc"))} == set(named)
    assert {f.name for f in folder.iterdir()} == set(itertools.chain(*every))
    assert '"native/cpp/*", "native/prebuilt/*"' in Path("pyproject.toml").read_text()


def test_every_rule_compiles_to_a_function_of_its_own() -> None:
    programs = generate.builtin_programs()
    text = generate.source(programs)
    for program in programs:
        assert text.count(f"DTOPT_UPDATE({program.name})") == 1
