"""Compile the libraries into the package: `python -m optim.native.prebuild`. The wheel's build calls this.

The ops are compiled for the installed TensorFlow, and left out without one. Libraries of other versions stay, so that a
wheel for several is made by calling this once under each. NVRTC compiles GPU kernels, without a GPU.
"""

from __future__ import annotations

import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from optim.native import build, cuda, generate, modules
from optim.native.compiling import BuildError, Recipe, compile_into


def main() -> int:
    """Compile all at the same time, and report the results. What cannot be compiled here is compiled at first use."""
    recipes: list[Recipe] = [build.maths(everywhere=True)]
    try:
        recipes.append(build.ops())
    except ImportError:
        print("dtopt: no TensorFlow here, its ops are compiled at first use", file=sys.stderr)
    with ThreadPoolExecutor() as pool:
        builds = [pool.submit(compile_into, recipe, build.PREBUILT / f"{recipe.name}.so") for recipe in recipes]
        _pack()
    return max(map(_report, builds))


def _pack() -> None:
    """Compile the kernels for GPUs."""
    try:
        count = modules.pack(cuda.sources(generate.builtin_programs()))
        size = modules.PACKED.stat().st_size
        print(f"dtopt: {modules.PACKED.name}, {count} modules, {size} bytes", file=sys.stderr)
    except (BuildError, OSError) as error:
        print(f"dtopt: kernels for GPUs are not prebuilt: {error}", file=sys.stderr)


def _report(library: Future[Path]) -> int:
    """Report a library that was compiled, or why it was not. Returns the exit code."""
    try:
        path = library.result()
    except BuildError as error:
        print(f"dtopt: the kernel is not prebuilt: {error}", file=sys.stderr)
        return 1
    print(f"dtopt: {path.name}, {path.stat().st_size} bytes", file=sys.stderr)
    path.with_suffix(".lock").unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
