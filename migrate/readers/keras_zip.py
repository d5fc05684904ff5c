"""`.keras` files: a zip of metadata.json, config.json and model.weights.h5.

Nothing is extracted under a member's own name, and no layer is built: of the config only JSON is read. An uncompressed
member (as Keras writes it) is read in place, others from an unlinked temporary file.
Upstream: `saving/saving_lib.py::_save_model_to_fileobj` of tf_keras 2.12 - 2.21 and Keras 3.0 - 3.15.
"""

from __future__ import annotations

import io
import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np

from migrate import algorithms, claims
from migrate.algorithms.clipping import LIMITS
from migrate.bytes import hdf5, json_text
from migrate.errors import DamagedFileError, MissingHintError
from migrate.readers.keras import for_keras
from migrate.readers.keras.left_out import complete
from migrate.readers.keras.model import check_inputs
from migrate.readers.keras.tree import check_numbering, read_tree
from migrate.readers.keras.vars import stored
from migrate.releases import recognition
from migrate.releases.versions import Versions, version_tuple
from migrate.state import OptimizerState, Stored, StoredModel
from optim.bytes import files
from optim.bytes.checks import Check, Crc32
from optim.bytes.ranges import CHUNK, Extent
from optim.bytes.window import Window
from optim.errors import UnsupportedError

NAME = "keras"
ASSETS = "assets/"
"""The folder for what layers have in addition to weights, such as vocabularies."""
METADATA, CONFIG, WEIGHTS, NPZ = "metadata.json", "config.json", "model.weights.h5", "model.weights.npz"
MAX_JSON = 256 << 20
MAX_RATIO = 1100
"""Best compression ratio of Deflate, rounded up from 1030."""
CHECKED_AT_ONCE = 256 << 20
"""Bytes of weights whose checksum is checked at once, in negligible time."""


def sniff(path: str) -> bool:
    """Whether it is a zip with a Keras config, even if damaged."""
    if not files.is_file(path):
        return False
    with files.opened(path) as file:
        if file.read(4) != b"PK\x03\x04":
            return False
    try:
        with files.zipped(path) as archive:
            return {CONFIG, WEIGHTS, NPZ} & set(archive.namelist()) != set()
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError):
        return path.endswith(".keras")  # so that reading it reports the damage


def read(path: str) -> Stored | OptimizerState:
    """Return everything that the file has of its optimizer, in the file's own terms. Tensors stay in it.

    Raises:
      DamagedFileError: it is truncated, contradicts itself, or declares more than it can hold.
    """
    members = _members(path)
    metadata, config = _json(path, members, METADATA), _json(path, members, CONFIG)
    check_inputs(config, path)
    version = str(metadata.get("keras_version") or "")
    number = version_tuple(version)
    if number is None:
        raise DamagedFileError(f"{path}: {METADATA} has no keras_version; the file is damaged")
    if WEIGHTS not in members:
        what = f"{NPZ}, which Keras itself cannot read back" if NPZ in members else "no weights"
        raise UnsupportedError(f"{path} holds {what}; save it again with its weights in HDF5")
    source = _embedded_weights(path, members[WEIGHTS])
    with hdf5.opened(source, attributes=True) as file:
        root = read_tree(file, source)
    check_numbering(root, str(source))
    generation = recognition.of_keras_file(number[0] >= 3)
    optimizer, warnings = _optimizer_config(config, generation)
    expected = {METADATA, CONFIG, WEIGHTS}
    strange = sorted(name for name in members if name not in expected and not name.startswith(ASSETS))
    if strange:
        warnings += (f"the zip holds {len(strange)} members that Keras does not use, ignored: {strange[0]!r}",)
    if for_keras.is_config(optimizer):
        assert optimizer is not None
        return for_keras.read(root, path, config, optimizer, Versions(version))
    content = stored(
        NAME,
        root,
        path,
        config=config,
        optimizer_config=optimizer,
        generation=generation,
        evidence=(f"a zip with {CONFIG} and {WEIGHTS}", f"{METADATA} has keras_version {version!r}"),
        versions=Versions(version, _backend(optimizer)),
        warnings=warnings,
    )
    compiled = config.get("compile_config")
    training = compiled if isinstance(compiled, Mapping) else None
    model = complete(config, [v.name for v in content.variables]) if content.traits.has_keras3_layers else config
    doubts = claims.remembered(metadata.get(claims.REMEMBERED))
    return replace(content, model=StoredModel(model, training, None, _assets(path, members)), doubts=doubts)


def _assets(path: str, members: Mapping[str, zipfile.ZipInfo]) -> dict[str, Callable[[], Iterator[bytes]]]:
    """Files of a `.keras` other than config and weights, see `StoredModel.assets`."""
    assets = {}
    for name, info in members.items():
        if name.startswith(ASSETS) and not info.is_dir():
            if ".." in name.split("/"):
                raise DamagedFileError(f"{path}: the member {name!r} leads out of its folder; refused")
            _check_size(path, info)
            assets[name] = _Member(path, info).chunks
    return assets


def _members(path: str) -> dict[str, zipfile.ZipInfo]:
    try:
        with files.zipped(path) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, OSError, struct.error) as error:
        raise DamagedFileError(f"{path} is a damaged zip archive ({error}); copy it again") from error
    members = {info.filename: info for info in infos}
    if len(members) != len(infos):
        raise DamagedFileError(f"{path} holds two members of one name; such files are refused")
    return members


def _check_size(path: str, info: zipfile.ZipInfo) -> None:
    where = f"{path}: {info.filename}"
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UnsupportedError(f"{where} is encrypted or compressed in a way that Keras does not use; zip it again")
    if info.compress_size > files.size(path) or info.file_size > max(info.compress_size, 1) * MAX_RATIO:
        raise DamagedFileError(f"{where} declares {info.file_size} bytes, more than can be stored there; refused")


def _json(path: str, members: Mapping[str, zipfile.ZipInfo], name: str) -> dict[str, Any]:
    if name not in members:
        raise DamagedFileError(f"{path} holds no {name}; the file is incomplete")
    info = members[name]
    _check_size(path, info)
    if info.file_size > MAX_JSON:
        raise DamagedFileError(f"{path}: {name} has {info.file_size} bytes, more than any config; refused")
    try:
        with files.zipped(path) as archive:
            document = json_text.parsed(archive.read(info))
    except (ValueError, RecursionError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DamagedFileError(f"{path}: {name} cannot be read ({error}); copy the file again") from error
    if not isinstance(document, dict):
        raise DamagedFileError(f"{path}: {name} is no JSON object; the file is damaged")
    return document


def _optimizer_config(config: Mapping[str, Any], generation: str) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """`{"class_name", "config"}` of `compile_config.optimizer`, and warnings about it."""
    compiled = config.get("compile_config")
    document = compiled.get("optimizer") if isinstance(compiled, Mapping) else None
    if isinstance(document, str):
        warning = f"compile() was given the name {document!r} alone: a learning rate set later is not recorded"
        return {"class_name": document, "config": _defaults(document, generation)}, (warning,)
    if not isinstance(document, Mapping) or not isinstance(document.get("config"), Mapping):
        return None, ()
    return {**document, "class_name": str(document.get("class_name", "")), "config": dict(document["config"])}, ()


def _defaults(class_name: str, generation: str) -> dict[str, Any]:
    """Return the config of `compile("adam")`: the default of each argument but the learning rate."""
    try:
        defaults = algorithms.find(class_name).defaults(generation)
    except (UnsupportedError, MissingHintError):
        return {}
    options = dict.fromkeys((*LIMITS, "weight_decay"))
    return {**options, "use_ema": False, **{key: value for key, value in defaults.items() if key != "learning_rate"}}


def _backend(optimizer: Mapping[str, Any] | None) -> str:
    """The backend of Keras 3, if the optimizer's class shows it: on PyTorch nine of them are subclasses."""
    is_torch = str((optimizer or {}).get("module")).startswith("keras.src.backend.torch.")
    return "torch" if is_torch else ""


def _embedded_weights(path: str, info: zipfile.ZipInfo) -> hdf5.Embedded:
    _check_size(path, info)
    member, in_place = _Member(path, info), info.compress_type == zipfile.ZIP_STORED
    start = member.start() if in_place else 0
    check = Crc32(start, info.file_size, member.part, member.compare) if in_place else Check(member.unpack)
    if info.file_size <= CHECKED_AT_ONCE:
        check.finish()
    name = f"{path}:{info.filename}"
    return hdf5.Embedded(name, info.file_size, path if in_place else None, start, member.open, check)


@dataclass
class _Member:
    """One member of a zip. `unpacked` is a temporary file of its bytes if they are compressed."""

    path: str
    info: zipfile.ZipInfo
    unpacked: Any = None

    def open(self) -> BinaryIO:
        if self.info.compress_type == zipfile.ZIP_STORED:
            return io.BufferedReader(Window(files.filling(self.path), self.start(), self.info.file_size))
        self.unpack()
        return io.BufferedReader(Window(files.filling_open(os.dup(self.unpacked.fileno())), 0, self.info.file_size))

    def part(self, offset: int, size: int) -> Iterator[np.ndarray]:
        """Yield bytes of the file, piece by piece."""
        return Extent(self.path, offset, size, self.info.filename).chunks(np.empty(CHUNK, np.uint8))

    def compare(self, crc: int) -> None:
        if crc != self.info.CRC:
            raise DamagedFileError(
                f"{self.path}: {self.info.filename} is damaged (its checksum is wrong); copy it again"
            )

    def start(self) -> int:
        """The offset of an uncompressed member in the zip."""
        with files.opened(self.path) as file:
            file.seek(self.info.header_offset)
            header = file.read(30)
        if len(header) < 30 or header[:4] != b"PK\x03\x04":
            raise DamagedFileError(
                f"{self.path} is a damaged zip archive: {self.info.filename} is not where the archive's table puts it"
            )
        name, extra = struct.unpack("<HH", header[26:30])
        start = self.info.header_offset + 30 + name + extra
        stored_size = self.info.compress_size
        if stored_size != self.info.file_size or start + stored_size > files.size(self.path):
            raise DamagedFileError(f"{self.path} is truncated: {self.info.filename} is not whole; copy it again")
        return int(start)

    def unpack(self) -> None:
        """Unpack the member once, and compare its checksum."""
        if self.unpacked is None:
            file = tempfile.TemporaryFile()  # noqa: SIM115 - kept open as long as the tensors may be asked for
            for chunk in self.chunks():
                file.write(chunk)
            file.flush()
            self.unpacked = file

    def chunks(self) -> Iterator[bytes]:
        """Yield all its bytes; zipfile compares the checksum at the end, and stops at the declared size."""
        try:
            with files.zipped(self.path) as archive, archive.open(self.info) as member:
                while chunk := member.read(CHUNK):
                    yield chunk
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise DamagedFileError(f"{self.path}: {self.info.filename} is damaged ({error}); copy it again") from error
