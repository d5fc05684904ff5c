"""One file per format, and folders of their parts. `READERS` is the whole list of formats; detection looks at content,
never at the suffix alone."""

from __future__ import annotations

import itertools
import os
import shlex
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from migrate.bytes import checkpoint_paths, files, urls
from migrate.bytes.messages import some
from migrate.errors import UnknownFormatError
from migrate.state import OptimizerState, Stored
from optim.errors import HyperparameterError

ORBAX = {"_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt", "ocdbt.process_0"}
"""What lies in folders of Orbax (`orbax-checkpoint` 0.5 to 0.12)."""
FEW = 8
"""Folders of a folder that are looked into: behind a URL, each costs requests."""


@dataclass(frozen=True)
class Reader:
    """One format: `name` is what `--from` takes, `module` a module of this package with `sniff(path)` and
    `read(path)`.

    `takes_generation`: whether how the file is read depends on the generation, so that `read(path,
    generation)`. `takes_optimizer`: whether a file may hold several optimizers, so that `read(path, optimizer_path)`.
    """

    name: str
    module: str
    description: str
    takes_generation: bool = False
    takes_optimizer: bool = False

    def load(self) -> ModuleType:
        return import_module(f"migrate.readers.{self.module}")

    def sniff(self, path: str) -> bool:
        """Whether the content of `path` is of this format."""
        return bool(self.load().sniff(path))

    def read(self, path: str, generation: str | None, optimizer_path: str | None = None) -> Stored | OptimizerState:
        """What the source holds. Raises HyperparameterError for an `optimizer_path` where nothing is to choose."""
        if self.takes_optimizer:
            return self.load().read(path, optimizer_path)
        if optimizer_path is not None:
            raise HyperparameterError(f"{path} is {self.description}, with one optimizer only; leave out --optimizer")
        if self.takes_generation:
            return self.load().read(path, generation)
        return self.load().read(path)


READERS = (
    Reader("h5", "keras_h5", "Keras 1 or 2, tf.keras or tf_keras `.h5` (HDF5 with a group model_weights)", True),
    Reader("keras", "keras_zip", "a `.keras` file of tf_keras 2.12 and later or Keras 3 (a zip with config.json)"),
    Reader("weights_h5", "weights_h5", "a `.weights.h5` of tf_keras 2.12 and later or Keras 3, whole or in shards"),
    Reader("list", "weight_list", "a get_weights() list in `.npz`, `.npy` or `.pkl`", True),
    Reader("slots", "slots", "a slot-variable checkpoint of dtopt"),
    Reader("saved_model", "saved_model", "a SavedModel folder (saved_model.pb and variables/)", takes_optimizer=True),
    Reader(
        "tf_object",
        "tf_object",
        "a TensorFlow 2 object-based checkpoint (PREFIX.index and PREFIX.data-...)",
        takes_optimizer=True,
    ),
    Reader("tf_dtensor_names", "tf_dtensor_names", "a checkpoint of dtensor.name_based_save"),
    Reader(
        "tf1_saver",
        "tf1_saver",
        "a name-based checkpoint of tf.train.Saver (tf.train.* or Keras in graph mode)",
        takes_optimizer=True,
    ),
)
"""In the order in which they are asked."""


def detect(path: str, format: str = "auto") -> Reader:
    """The reader for a source.

    Args:
      path: a file, a folder, or the prefix of a TensorFlow checkpoint.
      format: the name of a reader, or `auto`.

    Raises:
      UnknownFormatError: nothing is there, or no reader knows it, or not the one named.
      HyperparameterError: there is no format of that name.
    """
    if format != "auto":
        named = next((r for r in READERS if r.name == format), None)
        if named is None:
            raise HyperparameterError(
                f"there is no format {format!r}; --from takes auto, {', '.join(r.name for r in READERS)}"
            )
        if not named.sniff(path):
            raise UnknownFormatError(f"{path} is not {named.description}; leave out --from to have it recognised")
        return named
    for reader in READERS:
        if reader.sniff(path):
            return reader
    raise UnknownFormatError(_unknown(path))


def _unknown(path: str) -> str:
    if prefix := _without_index(path):
        return (
            f"{prefix}.index is not there, without which nothing tells what is in the other files of that TensorFlow"
            " checkpoint; copy it from where it was written"
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
    if _is_unzipped(path):
        return (
            f"{path} is a folder as save(zipped=False) of Keras 3 writes it; make it a file with python -m zipfile -c"
            f" model.keras {shlex.quote(path.rstrip('/'))}/*, and give model.keras"
        )
    below = _below(path)
    if below:
        return (
            f"{path} is no checkpoint itself; below it lie {some(below, 3)}: name one of them, or take all with"
            f" dtopt migrate batch {shlex.quote(path)} --all --into FOLDER"
        )
    looked = "; ".join(reader.description for reader in READERS)
    return f"{path} is of no known format; looked for: {looked}"


def _without_index(path: str) -> str:
    """The checkpoint that a path is, or is of, and of which only other parts are there; empty if it is none."""
    folder, name = os.path.split(path)
    if urls.is_url(path) or not files.is_folder(folder or os.curdir):
        return ""
    lone = checkpoint_paths.without_index(files.names(folder or os.curdir))
    return next(
        (os.path.join(folder, p) for p in lone if name == p or name.startswith((f"{p}.data-", f"{p}.meta"))), ""
    )


def _below(path: str) -> list[str]:
    """What is called as checkpoints are in a folder and the first of the folders in it."""
    if urls.is_url(path) or not files.is_folder(path):
        return []
    found: list[str] = []
    for here in itertools.islice(files.walk(path, stop=_is_saved_model), FOLDERS):
        ends = [] if _is_saved_model(here) else [n for n in sorted(files.names(here)) if n.endswith(ENDS)]
        found += [here] if _is_saved_model(here) else [os.path.join(here, n.removesuffix(".index")) for n in ends]
    return found


def _is_unzipped(path: str) -> bool:
    """Whether a folder on this machine has the members of a `.keras` file."""
    from migrate.readers.keras_zip import CONFIG, METADATA, WEIGHTS

    return not urls.is_url(path) and files.is_folder(path) and {METADATA, CONFIG, WEIGHTS} <= set(files.names(path))


def _is_saved_model(folder: str) -> bool:
    return files.is_file(os.path.join(folder, SAVED_MODEL))


ENDS = (".index", ".h5", ".hdf5", ".keras")
SAVED_MODEL = "saved_model.pb"
FOLDERS = 200
"""That are looked into for a message."""


def of_orbax(path: str) -> str | None:
    """That a folder, or one of the steps in it, is of Orbax, and what to do; None where it is not."""
    if not files.is_folder(path):
        return None
    names = files.names(path)
    steps = [os.path.join(path, name) for name in sorted(names)[:FEW]]
    if not ORBAX & set(names) and not any(files.is_folder(step) and ORBAX & set(files.names(step)) for step in steps):
        return None
    return (
        f"{path} is a checkpoint of Orbax (JAX), or holds some, which are not read here; load it with Orbax, and hand"
        " its values to migrate.restore or save them as a list"
    )
