"""Describe a source that no reader knows: what it is, and what to type next."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import zipfile

from migrate.bytes import checkpoint_paths
from migrate.bytes.messages import some
from migrate.errors import UnknownFormatError
from migrate.readers.weight_list import TORCH_START
from optim.bytes import files, urls

ORBAX = {"_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt", "ocdbt.process_0"}
"""Names in folders of Orbax (`orbax-checkpoint` 0.5 to 0.12)."""
FEW = 8
"""Most folders of a folder that are searched: each folder at a URL costs requests."""

COMPRESSED = {
    b"\x1f\x8b": "gunzip -k",
    b"BZh": "bunzip2 -k",
    b"\xfd7zXZ": "unxz -k",
    b"\x28\xb5\x2f\xfd": "unzstd",
}
"""First bytes of a compressed file, and the program that unpacks it."""
_SUFFIX = re.compile(r"\.(?:zip|gz|bz2|xz|zst)$")
_OTHER = "which holds no optimizer state; migrate the checkpoint that the training run itself wrote"
_TORCH = "a file of PyTorch (torch.save), which dtopt does not read: it migrates checkpoints of Keras and TensorFlow"
OTHERS = (
    (re.escape(TORCH_START), _TORCH),
    (rb"\s*<(!doctype|html|head|body|\?xml|error)", "a web page or a server's answer, not the file. Download it again"),
    (rb'\s*\{[^{}]*"format"\s*:\s*"(layers|graph)-model"', f"a model of TensorFlow.js, {_OTHER}"),
    (rb'\s*\{.*"class_name"', "the config of a model, as model.to_json() gives it. It holds no optimizer state"),
    (rb".{4}TFL3", f"a TensorFlow Lite model, {_OTHER}"),
    (rb"GGUF", f"a GGUF file, {_OTHER}"),
    (rb".{5}\0{3}\{", f"a safetensors file, {_OTHER}"),
)
"""First bytes of what people give instead of a checkpoint, and what it is."""
OTHER_ENDINGS = {
    ".onnx": f"an ONNX model, {_OTHER}",
    ".pb": f"a graph of TensorFlow, {_OTHER}: the folder of a SavedModel, or the prefix of a checkpoint",
    ".pbtxt": f"a graph of TensorFlow, {_OTHER}: the folder of a SavedModel, or the prefix of a checkpoint",
}
READ = (
    ".h5, .keras and .weights.h5 files of Keras; SavedModel folders; TensorFlow checkpoints (PREFIX.index and"
    " PREFIX.data-...); get_weights() lists in .npz, .npy or .pkl; and its own slot checkpoints"
)


def error(path: str) -> UnknownFormatError:
    """Describe the source, and what to give or type instead."""
    description = _of_file(path) if files.is_file(path) and files.size(path) else None
    text, command = description or (_description(path), "")
    exception = UnknownFormatError(text)
    exception.commands = (command,) if command else ()
    return exception


def _description(path: str) -> str:
    if prefix := _without_index(path):
        return (
            f"{prefix}.index is missing, and the other files of that TensorFlow checkpoint cannot be read without it."
            " Copy it from where it was written"
        )
    if not path:
        return "the source is empty; name a file, a folder or the prefix of a TensorFlow checkpoint"
    if not files.exists(path) and not files.exists(path + ".index"):
        return (
            f"{path} does not exist, nor does {path}.index; give a file, a folder or the prefix of a TensorFlow"
            " checkpoint"
        )
    if files.is_file(path) and files.size(path) == 0:
        return f"{path} is empty; copy it again from where it was written"
    if (by_orbax := of_orbax(path)) is not None:
        return by_orbax
    if _is_unzipped_keras(path):
        return (
            f"{path} is a folder as save(zipped=False) of Keras 3 writes it; make it a file with python -m zipfile -c"
            f" model.keras {shlex.quote(path.rstrip('/'))}/*, and give model.keras"
        )
    below = _checkpoint_paths(path)
    if below:
        return (
            f"{path} is not a checkpoint; it contains {some(below, 3)}: name one of them, or take all with dtopt"
            f" migrate batch {shlex.quote(path)} --all --into FOLDER"
        )
    if files.is_folder(path):
        return f"{path} is of no known format: a folder that contains no checkpoint. dtopt reads {READ}"
    if not files.is_file(path):
        return f"{path} is not a regular file: it may be a pipe or a device. Give a file, a folder or a prefix"
    with files.opened(path) as file:
        start = file.read(16)
    return f"{path} is of no known format: it begins with {start!r}. dtopt reads {READ}"


def _of_file(path: str) -> tuple[str, str] | None:
    """Describe a file that must be unpacked first, with the command, or that dtopt does not read; None if unknown."""
    with files.opened(path) as file:
        start = file.read(512)
    quoted, plain = shlex.quote(path), _SUFFIX.sub("", path)
    if start.startswith(b"\x1f\x8b") and path.endswith((".tar.gz", ".tgz")):
        return f"{path} is a tar archive compressed with gzip. Unpack it, and give what it holds", f"tar xzf {quoted}"
    for magic, tool in COMPRESSED.items():
        if start.startswith(magic):
            return f"{path} is compressed. Unpack it, and give {plain}", f"{tool} {quoted}"
    if start[257:262] == b"ustar":
        return f"{path} is a tar archive. Unpack it, and give what it holds", f"tar xf {quoted}"
    if start.startswith(b"PK\x03\x04"):
        return _of_zip(path, plain)
    kind = next((what for pattern, what in OTHERS if re.match(pattern, start, re.DOTALL | re.IGNORECASE)), "")
    kind = kind or OTHER_ENDINGS.get(os.path.splitext(path)[1].lower(), "")
    return (f"{path} is {kind}", "") if kind else None


def _of_zip(path: str, plain: str) -> tuple[str, str]:
    try:
        with files.zipped(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, OSError):
        return f"{path} is a damaged zip archive; copy it again", ""
    if any(name.endswith("data.pkl") for name in names):
        return f"{path} is {_TORCH}", ""
    folders = [os.path.dirname(name) for name in names if os.path.basename(name) == SAVED_MODEL]
    folders += [name.removesuffix(".index") for name in names if name.endswith(ENDS)]
    if not folders:
        return f"{path} is a zip archive without a checkpoint: it holds {some(sorted(names), 3)}", ""
    plain = f"{path}-unpacked" if plain == path else plain
    inside = os.path.join(plain, folders[0]).rstrip("/")
    command = f"python -m zipfile -e {shlex.quote(path)} {shlex.quote(plain)}"
    return f"{path} is a zip archive. Unpack it, and give {inside}", command


def _without_index(path: str) -> str:
    """The checkpoint that a path belongs to if only its other parts are there; empty for other paths."""
    folder, name = os.path.split(path)
    if urls.is_url(path) or not files.is_folder(folder or os.curdir):
        return ""
    lone = checkpoint_paths.without_index(files.names(folder or os.curdir))
    return next(
        (os.path.join(folder, p) for p in lone if name == p or name.startswith((f"{p}.data-", f"{p}.meta"))), ""
    )


def _checkpoint_paths(path: str) -> list[str]:
    if urls.is_url(path) or not files.is_folder(path):
        return []
    paths: list[str] = []
    for here in itertools.islice(files.walk(path, stop=_is_saved_model), FOLDERS):
        ends = [] if _is_saved_model(here) else [n for n in sorted(files.names(here)) if n.endswith(ENDS)]
        paths += [here] if _is_saved_model(here) else [os.path.join(here, n.removesuffix(".index")) for n in ends]
    return paths


def _is_unzipped_keras(path: str) -> bool:
    from migrate.readers.keras_zip import CONFIG, METADATA, WEIGHTS

    return not urls.is_url(path) and files.is_folder(path) and {METADATA, CONFIG, WEIGHTS} <= set(files.names(path))


def _is_saved_model(folder: str) -> bool:
    return files.is_file(os.path.join(folder, SAVED_MODEL))


ENDS = (".index", ".h5", ".hdf5", ".keras")
SAVED_MODEL = "saved_model.pb"
FOLDERS = 200
"""Most subfolders that are searched for a message."""


def of_orbax(path: str) -> str | None:
    """Describe a folder of Orbax, or with steps of it, and what to do; None for other folders."""
    if not files.is_folder(path):
        return None
    names = files.names(path)
    steps = [os.path.join(path, name) for name in sorted(names)[:FEW]]
    if not ORBAX & set(names) and not any(files.is_folder(step) and ORBAX & set(files.names(step)) for step in steps):
        return None
    return (
        f"{path} is a checkpoint of Orbax (JAX), or contains some, which dtopt does not read. Load it with Orbax, and"
        " pass its values to migrate.restore, or save them as a list"
    )
