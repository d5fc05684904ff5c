"""The source of GPU machine code: the package, the user's cache, or NVRTC.

The package has PTX of the built-in rules, which every supported driver compiles for its GPU. The installed NVRTC
compiles a user's own rule, and the result is kept in the cache next to the CPU's libraries.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from optim.native import build, cuda, nvrtc
from optim.native.compiling import BuildError, is_intact
from optim.native.driver import PTX_IS_TOO_NEW, Driver, Gpu

PACKED = build.PREBUILT / "gpu.ptx.xz"
FORMAT = "JSON of PTX by key, in xz"
NEWEST = (12, 1)
"""The CUDA release of PTX in the package: older drivers refuse newer PTX."""
PACKAGE = "nvidia-cuda-nvrtc-cu12==12.1.105"


def image(source: str) -> bytes:
    """Return the PTX of a module: from the package, from the cache, or compiled and kept there.

    Raises:
      BuildError: NVRTC is missing, or it failed. OSError: the cache cannot be written.
    """
    ptx = at_hand(source)
    return ptx if ptx is not None else _keep(cached(source), key(source), _ptx(source).encode())


def at_hand(source: str) -> bytes | None:
    """Return the PTX of a module if nothing has to be compiled for it."""
    ptx = packed().get(key(source))
    return ptx.encode() if ptx is not None else _read(cached(source), key(source))


def accepted(source: str, driver: Driver) -> bytes:
    """Return the module in a form that the driver accepts on each GPU in use: PTX, or machine code if it is too new.

    Raises:
      BuildError: the driver accepts neither. OSError: the cache cannot be written.
    """
    module, gpus = image(source), driver.gpus()
    if not any(driver.result_of_loading(module, gpu) == PTX_IS_TOO_NEW for gpu in gpus):
        _check(driver, module, gpus)
        return module
    kinds = sorted({gpu.capability for gpu in gpus})
    if len(kinds) > 1:
        names = " and ".join(f"sm_{kind}" for kind in kinds)
        raise BuildError(f"NVRTC is newer than the driver, and the GPUs differ ({names}): pip install {PACKAGE}")
    module = machine_code(source, kinds[0])
    _check(driver, module, gpus)
    return module


def _check(driver: Driver, module: bytes, gpus: Sequence[Gpu]) -> None:
    for gpu in gpus:
        if code := driver.result_of_loading(module, gpu):
            raise BuildError(f"the driver does not load the kernel for sm_{gpu.capability}: {driver.text(code)}")


def machine_code(source: str, capability: int) -> bytes:
    """Return a module compiled for one kind of GPU. Raises as `image` does."""
    name = f"sm_{capability}"
    stored = _read(cached(source, name), key(source, name))
    if stored is not None:
        return stored
    code = nvrtc.find().machine_code(source, headers(), cuda.OPTIONS, capability)
    return _keep(cached(source, name), key(source, name), code)


def _ptx(source: str) -> str:
    return nvrtc.find().ptx(source, headers(), cuda.OPTIONS)


def cached(source: str, *kind: str) -> Path:
    """Return where the PTX of a module, or its machine code of a kind, is in the user's cache."""
    return build.cache_folder() / f"gpu-{key(source, *kind)[:16]}.{'cubin' if kind else 'ptx'}"


def _read(path: Path, wanted: str) -> bytes | None:
    """Read a file of the cache; None if it is missing or damaged."""
    return path.read_bytes() if is_intact(path, wanted) else None


def _keep(path: Path, wanted: str, data: bytes) -> bytes:
    """Write a file, and its record next to it. Returns the data."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    record = {"key": wanted, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    for target, content in ((path, data), (path.with_suffix(".json"), json.dumps(record).encode())):
        part = target.with_name(f"{target.name}.{os.getpid()}")
        part.write_bytes(content)
        os.chmod(part, 0o644)
        os.replace(part, target)
    return data


@cache
def headers() -> dict[str, str]:
    """Return the files that the text of a module includes, by name."""
    return {name: build.text(name) for name in build.GPU_SOURCES}


@cache
def key(source: str, *more: str) -> str:
    """Return a digest of everything that a module depends on."""
    return build.digest(source, *headers().values(), *cuda.OPTIONS, *more)


@cache
def packed() -> dict[str, str]:
    """Return the modules in the package, by key; empty if the file is missing or damaged."""
    data = _read(PACKED, FORMAT)
    return json.loads(lzma.decompress(data)) if data is not None else {}


def pack(sources: Iterable[str]) -> int:
    """Compile modules into the package, unless all are there. Returns how many there are.

    Raises:
      BuildError: NVRTC is missing, fails, or is too new.
    """
    texts = {key(source): source for source in sources}
    if packed().keys() == texts.keys():
        return len(texts)
    release = nvrtc.find().version
    if release > NEWEST:
        raise BuildError(f"NVRTC {release[0]}.{release[1]} writes PTX that older drivers refuse: pip install {PACKAGE}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        modules = dict(zip(sorted(texts), pool.map(_ptx, (texts[name] for name in sorted(texts))), strict=True))
    _keep(PACKED, FORMAT, lzma.compress(json.dumps(modules).encode(), preset=9))
    packed.cache_clear()
    return len(modules)
