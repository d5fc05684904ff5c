"""Files at URLs, through fsspec: `s3://`, `gs://`, `az://`, `hf://`, `http(s)://`, `memory://` and its others.

Files are read by ranges, in blocks of BLOCK bytes of which a few are cached, so memory is bounded and little is
transferred. fsspec finds the credentials; those in a URL are never shown. A store's version of an object (ETag,
generation, time of the last change) shows whether it is unchanged.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, BinaryIO, TypeVar

import numpy as np

from optim.bytes.urls import shown
from optim.bytes.window import Fill, Window
from optim.errors import UnknownFormatError, UnsupportedError

BLOCK = 1 << 20
AHEAD = 8
"""Blocks to read together if one follows the other."""
KEPT = 32
"""Cached blocks of each open file."""
WHOLE = 4
"""Whole files from servers that send no parts, on disk."""
TRIES = 5
PAUSE = 0.2
"""Seconds before the second try; doubled before each further one."""
VERSIONS = ("ETag", "etag", "generation", "version_id", "VersionId", "md5Hash", "content_md5", "blob_id", "sha256")
TIMES = ("LastModified", "last_modified", "updated", "mtime", "created", "Last-Modified")
PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
PACKAGES |= {"hf": "huggingface_hub", "http": "aiohttp", "https": "aiohttp"}
LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError)
"""Errors that another try would not fix."""
T = TypeVar("T")


def is_file(url: str) -> bool:
    info = _info(url)
    return info is not None and info["type"] == "file"


def is_folder(url: str) -> bool:
    info = _info(url)
    return info is not None and info["type"] == "directory"


def exists(url: str) -> bool:
    return _info(url) is not None


def names(folder: str) -> list[str]:
    """Raises OSError if the folder cannot be listed."""
    known = _LISTED.get()
    if known is not None and folder.rstrip("/") in known:
        return sorted(known[folder.rstrip("/")])
    system, path = system_of(folder)
    system.invalidate_cache()
    listed = _patiently(folder, lambda: system.ls(path, detail=True))
    files_last = sorted(listed, key=lambda info: info["type"] == "file")  # a file next to a folder of its name is found
    infos = {str(info["name"]).rstrip("/"): info for info in files_last}
    infos.pop(path.rstrip("/"), None)
    entries = {file_path.rsplit("/", 1)[-1]: info for file_path, info in infos.items()}
    if known is not None and not folder.startswith("http"):  # a web server's list is a page with links
        known[folder.rstrip("/")] = entries
    return sorted(entries)


_LISTED: ContextVar[dict[str, dict[str, dict[str, Any]]] | None] = ContextVar("listed", default=None)
"""Known files in folders: `{folder: {name: info}}`."""


def listings_kept() -> contextlib.AbstractContextManager[None]:
    """Inside, a folder is listed once, and its list answers for each of its files."""
    return _known_inside(_LISTED)


_ANSWERS: ContextVar[dict[str, dict[str, Any] | None] | None] = ContextVar("answers", default=None)
"""What a store answered about each URL."""


def answers_kept() -> contextlib.AbstractContextManager[None]:
    """Inside, ask a store once about each URL."""
    return _known_inside(_ANSWERS)


@contextlib.contextmanager
def _known_inside(known: ContextVar[Any]) -> Iterator[None]:
    token = known.set({})
    try:
        yield
    finally:
        known.reset(token)


def size(url: str) -> int:
    return int(identity(url)[2])


def identity(url: str) -> tuple[None, str, int, str]:
    """Raises OSError if the file does not exist."""
    info = _info(url)
    if info is None or info["type"] != "file":
        raise FileNotFoundError(2, "not found", shown(url))
    length = info.get("size")
    if length is None:
        length = _whole(url).seek(0, io.SEEK_END)
    version = next((info[key] for key in (*VERSIONS, *TIMES) if info.get(key)), "")
    return None, url, int(length), str(version)


def opened(url: str) -> BinaryIO:
    file = _Blocks(url)
    return io.BufferedReader(Window(contextlib.nullcontext(file.fill), 0, file.size), BLOCK)


def fill(url: str) -> Fill:
    """Return a function that reads pieces of the file into a buffer."""
    return _Blocks(url).fill


def system_of(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, and the path in it.

    Raises:
      UnsupportedError: fsspec, or the package that it needs for this kind of URL, is not installed.
      UnknownFormatError: this kind of URL is not known.
    """
    scheme = url.partition("://")[0]
    try:
        import fsspec
    except ImportError as error:
        packages = " ".join(("fsspec", *filter(None, [PACKAGES.get(scheme)])))
        raise UnsupportedError(f"{scheme}:// needs fsspec: pip install {packages}") from error
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        package = PACKAGES.get(scheme, "a package that fsspec names")
        raise UnsupportedError(f"{scheme}:// needs {package}: pip install {package}") from error
    except ValueError as error:
        raise UnknownFormatError(f"{shown(url)}: {scheme}:// is not known ({shown(str(error))})") from None
    return system, path


def _info(url: str) -> dict[str, Any] | None:
    is_known, info = _listed(url.rstrip("/"))
    if is_known:
        return info
    answers = _ANSWERS.get()
    if answers is None:
        return _query(url)
    if url not in answers:
        answers[url] = _query(url)
    return answers[url]


def _query(url: str) -> dict[str, Any] | None:
    system, path = system_of(url)
    system.invalidate_cache()
    try:
        return _patiently(url, lambda: system.info(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _listed(url: str) -> tuple[bool, dict[str, Any] | None]:
    """Whether the lists of folders answer, and what: a file is in one, and nothing is in a file."""
    known, place = _LISTED.get() or {}, url
    while place:
        folder, _, name = place.rpartition("/")
        if folder in known:
            info = known[folder].get(name)
            if place == url:
                return True, info
            return info is None or info["type"] == "file", None
        place = folder
    return False, None


def _patiently(url: str, call: Callable[[], T]) -> T:
    """Try again after network errors. Raises OSError, without credentials in its text."""
    for left in reversed(range(TRIES)):
        try:
            return call()
        except LASTING as error:
            raise type(error)(getattr(error, "errno", None) or 5, shown(str(error)) or type(error).__name__) from None
        except Exception as error:  # of any library that fsspec uses: botocore, aiohttp, gcsfs, ...
            if not left:
                what = f"{type(error).__name__}: {error}".rstrip(": ")
                raise OSError(5, f"gave up after {TRIES} tries ({shown(what)})") from None
        time.sleep(PAUSE * 2 ** (TRIES - 1 - left))
    raise AssertionError


_DOWNLOADED: OrderedDict[str, Any] = OrderedDict()


def _whole(url: str) -> Any:
    """Store a whole file in an unnamed temporary file, if its server cannot send parts."""
    if url not in _DOWNLOADED:
        system, path = system_of(url)

        def fetch() -> Any:
            file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as it may be read
            with system.open(path, "rb", block_size=0) as source:
                while piece := source.read(BLOCK):
                    file.write(piece)
            return file

        _DOWNLOADED[url] = _patiently(url, fetch)
        while len(_DOWNLOADED) > WHOLE:
            _DOWNLOADED.popitem(last=False)
    return _DOWNLOADED[url]


class _Blocks:
    """One file, with a few blocks in memory."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._system, self._path = system_of(url)
        self.size = size(url)
        self._last = -2
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def fill(self, buffer: np.ndarray, offset: int) -> int:
        """Read at most to the end of a block."""
        if offset >= self.size:
            return 0
        number, start = divmod(offset, BLOCK)
        piece = self._block(number)[start : start + len(buffer)]
        buffer[: len(piece)] = np.frombuffer(piece, np.uint8)
        return len(piece)

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            count = AHEAD if number == self._last + 1 else 1
            start, end = number * BLOCK, min((number + count) * BLOCK, self.size)
            data = self._fetched(start, end)
            for i in range(0, len(data), BLOCK):
                self._blocks[number + i // BLOCK] = data[i : i + BLOCK]
            while len(self._blocks) > KEPT:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(number)
        self._last = number
        return self._blocks[number]

    def _fetched(self, start: int, end: int) -> bytes:
        if self._url in _DOWNLOADED:
            return self._of_whole(start, end)

        def fetch() -> bytes:
            data: bytes = self._system.cat_file(self._path, start=start, end=end)
            if len(data) < end - start:
                raise OSError(5, f"{len(data)} of {end - start} bytes arrived")
            return data

        data = _patiently(self._url, fetch)
        if len(data) > end - start:  # a server that ignores the range and sends the whole file
            return self._of_whole(start, end)
        return data

    def _of_whole(self, start: int, end: int) -> bytes:
        file = _whole(self._url)
        file.seek(start)
        return bytes(file.read(end - start))


def send(path: str, url: str) -> None:
    """Upload a local file; it appears when it is complete. Raises OSError."""
    system, place = system_of(url)

    def put() -> None:
        with contextlib.suppress(NotImplementedError, FileExistsError):
            system.makedirs(place.rsplit("/", 1)[0], exist_ok=True)
        system.put_file(path, place)

    _patiently(url, put)


def remove(url: str) -> None:
    """Remove as far as possible."""
    system, place = system_of(url)
    with contextlib.suppress(OSError, NotImplementedError):
        _patiently(url, lambda: system.rm_file(place))


@contextlib.contextmanager
def copied(url: str) -> Iterator[str]:
    """Yield a local copy of a file or of a folder of files, under its own last name."""
    with tempfile.TemporaryDirectory(prefix="dtopt-") as folder:
        local = os.path.join(folder, url.rstrip("/").rsplit("/", 1)[-1])
        pairs = [(url, local)]
        if is_folder(url):
            os.mkdir(local)
            pairs = [(f"{url.rstrip('/')}/{name}", os.path.join(local, name)) for name in names(url)]
        for source, path in pairs:
            with opened(source) as there, open(path, "wb") as here:
                shutil.copyfileobj(there, here, AHEAD * BLOCK)
        yield local
