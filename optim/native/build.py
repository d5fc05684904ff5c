"""The libraries, their sources, and where they are stored.

- `maths`: the functions of the built-in rules, generated from them, for several instruction sets. No TensorFlow.
- `rule`: the same for one rule of a user's, for this processor.
- `ops`: TensorFlow's ops, for one minor version of TensorFlow.

Each is in the package, where the wheel or `python -m optim.native.prebuild` put it, or in the user's cache. A record of
its sources is stored next to it: a build of other sources, or a damaged one, is never loaded.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from optim.native import generate
from optim.native.compiling import Recipe, is_intact

HERE = Path(__file__).parent
PREBUILT = HERE / "prebuilt"
SOURCES = HERE / "cpp"
MATHS_SOURCES = ("abi.h", "packed.h", "arithmetic.h", "math.h", "basics.cc")
OF_KERNELS = ("gpu.h", "packed_gpu.h", "squares_gpu.h", "sums_gpu.h", "table_gpu.h")
GPU_SOURCES = ("arithmetic.h", "packed.h", "squares.h", "table.h", "sums.h", *OF_KERNELS)
"""Sources of the GPU kernels, which `cuda` compiles."""
OPS_SOURCES = tuple(
    sorted(
        f.name
        for f in SOURCES.iterdir()
        if f.suffix in (".h", ".cc") and f.name not in ("arithmetic.h", "math.h", "basics.cc", *OF_KERNELS)
    )
)
COMMON = ("-std=c++17", "-fPIC", "-w", "-fvisibility=hidden")
MATHS_FLAGS = (
    *COMMON,
    "-O3",
    "-fno-math-errno",  # a vector sqrt; values stay the same
    "-fno-trapping-math",  # vector code for choices; values stay the same
    "-ffp-contract=off",  # no fused multiply-add, or processors, vector bodies and scalar tails would round differently
    f"-I{SOURCES}",
)
MATHS_LINK = ("-static-libgcc",)  # conversions of float16 are only in libgcc_s of GCC 12 and later
OPS_FLAGS = (*COMMON, "-O1", "-fvisibility=default")
AVX2 = ("avx2", "fma", "f16c", "bmi", "bmi2")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
LEVELS = {"base": (), "avx2": AVX2, "avx512": AVX512}
"""Instruction sets by name, with their compiler flags: a processor uses the last one that it has."""


@cache
def level() -> str:
    """Return the best of LEVELS that this processor, and its system, have."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "base"
    flags = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
    has = set(flags.replace(" bmi1 ", " bmi ").split())
    return [name for name, parts in LEVELS.items() if has.issuperset(parts)][-1]


def levels() -> list[str]:
    """Return the levels to compile for this kind of machine."""
    return list(LEVELS) if platform.machine().lower() in ("x86_64", "amd64") else ["base"]


@cache
def maths(everywhere: bool = False) -> Recipe:
    """Return the library of all built-in rules: for this processor, or for all that have the same machine code."""
    names = tuple(levels()) if everywhere else (level(),)
    title = "maths" if everywhere else "maths-here"
    return _maths(title, generate.builtin_programs(), names, with_basics=True)


def needed() -> list[Recipe]:
    """Return the libraries that a process loads: the ops, and the maths from the package or else for this machine."""
    return [ops(), maths(everywhere=find(maths(everywhere=True)) is not None)]


def rule(program: generate.Program) -> Recipe:
    """Return the library of one rule, for this processor."""
    return _maths("rule", [program], (level(),), with_basics=False)


def _maths(title: str, programs: Sequence[generate.Program], names: Sequence[str], with_basics: bool) -> Recipe:
    source = generate.source(programs)
    files = [source, *([str(SOURCES / "basics.cc")] if with_basics else [])]
    flags = {name: (*(f"-m{part}" for part in LEVELS[name]), f"-DDTOPT_LEVEL={name}") for name in names}
    objects = tuple((file, flags[name]) for name in names for file in files)
    same = [flag for flag in MATHS_FLAGS if not flag.startswith("-I")]
    key = digest(source, *map(text, MATHS_SOURCES), *same, *MATHS_LINK, *names, platform.system(), platform.machine())
    return Recipe(title, key, objects, MATHS_FLAGS, MATHS_LINK)


@cache
def ops() -> Recipe:
    """Return the library of ops, for the installed TensorFlow."""
    import tensorflow as tf

    flags = tf.sysconfig.get_compile_flags()
    options = [flag for flag in flags if not flag.startswith("-I")]
    minor = ".".join(tf.version.VERSION.split(".")[:2])
    key = digest(*map(text, OPS_SOURCES), *OPS_FLAGS, minor, *options, platform.system(), platform.machine())
    objects = ((str(SOURCES / "ops.cc"), tuple(flags)),)
    return Recipe(f"ops-{minor}", key, objects, OPS_FLAGS, tuple(tf.sysconfig.get_link_flags()))


def find(recipe: Recipe) -> Path | None:
    """Return a library made by this recipe; None if it does not exist."""
    for path, is_trusted in ((PREBUILT / f"{recipe.name}.so", True), (cached(recipe), False)):
        if (is_trusted or _is_ours(path)) and is_intact(path, recipe.key):
            return path
    return None


def cached(recipe: Recipe) -> Path:
    """Return the library's path in the user's cache."""
    return cache_folder() / f"{recipe.name}-{recipe.key[:16]}.so"


def cache_folder() -> Path:
    """Return the folder of libraries compiled at first use."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "dtopt" / "kernels"


def _is_ours(path: Path) -> bool:
    """Whether only this user and root can have put it there: it is about to be run."""
    if os.name != "posix":
        return True
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & 0o022


@cache
def text(name: str) -> str:
    """Return one of the sources."""
    return (SOURCES / name).read_text(encoding="utf-8")


def digest(*parts: str) -> str:
    """Return a digest of everything that a build depends on."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
