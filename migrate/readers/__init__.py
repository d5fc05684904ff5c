"""One file per format, and folders of their parts. `READERS` lists all formats. Detection reads the content, never only
the suffix."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from migrate.errors import UnknownFormatError
from migrate.readers import unknown
from migrate.state import OptimizerState, Stored
from optim.errors import HyperparameterError


@dataclass(frozen=True)
class Reader:
    """A format.

    Attributes:
      name: its value for `--from`. module: a module of this package with `sniff(path)` and `read(path)`.
      takes_generation: whether the file is read differently for each generation, by `read(path, generation)`.
      takes_optimizer: whether a file may hold several optimizers, with `read(path, optimizer_path)`.
    """

    name: str
    module: str
    description: str
    takes_generation: bool = False
    takes_optimizer: bool = False

    def load(self) -> ModuleType:
        return import_module(f"migrate.readers.{self.module}")

    def sniff(self, path: str) -> bool:
        """Whether the content of `path` has this format."""
        return bool(self.load().sniff(path))

    def read(self, path: str, generation: str | None, optimizer_path: str | None = None) -> Stored | OptimizerState:
        """Read the source. Raises HyperparameterError for an `optimizer_path` if there is no choice."""
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
    Reader("slots", "slots", "a slot-variable checkpoint of dtopt", takes_optimizer=True),
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
"""In the order in which they are tried."""


def detect(path: str, format: str = "auto") -> Reader:
    """The reader for a source.

    Args:
      path: a file, a folder, or the prefix of a TensorFlow checkpoint.
      format: the name of a reader, or `auto`.

    Raises:
      UnknownFormatError: nothing is there, or no reader knows it, or not the named one.
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
    raise unknown.error(path)
