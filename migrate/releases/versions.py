"""What a source shows of the release that wrote it."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace

TENSORFLOW, THEANO, JAX_OR_PYTORCH = "tensorflow", "theano", "jax or torch"
"""Values of `Versions.backend`; others are `jax`, `torch` and `cntk`."""
YES, PERHAPS = "yes", "perhaps"
"""Values of `Versions.dtensor`."""
Number = tuple[int, ...]


def version_tuple(version: str | None) -> Number | None:
    """Return a version as numbers: `"2.1.6-tf"` -> (2, 1, 6); None if it is not a version."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    return tuple(int(x or 0) for x in match.groups()) if match else None


@dataclass(frozen=True)
class Versions:
    """What a source shows of the release that wrote it; an empty field is unknown.

    Attributes:
      keras: the version string of that Keras, such as `2.1.6-tf`.
      backend: of Keras: `tensorflow`, `theano`, `cntk`, `jax`, `torch`, or JAX_OR_PYTORCH.
      tensorflow: the release of TensorFlow.
      tensorflow_after, tensorflow_before: releases of TensorFlow that the writer is later or earlier than.
      graph_mode: whether names show that `fit` made a graph of the step, as without eager execution.
      dtensor: YES for an optimizer of DTensor, PERHAPS for one that may be a strategy's.
    """

    keras: str = ""
    backend: str = ""
    tensorflow: str = ""
    tensorflow_after: str = ""
    tensorflow_before: str = ""
    graph_mode: bool = False
    dtensor: str = ""

    @property
    def keras_number(self) -> Number | None:
        return version_tuple(self.keras)

    @property
    def tensorflow_number(self) -> Number | None:
        return version_tuple(self.tensorflow)

    @property
    def may_be_on_tensorflow(self) -> bool:
        """Whether nothing shows another backend of Keras."""
        return self.backend in ("", TENSORFLOW)

    def __or__(self, other: Versions) -> Versions:
        """Return these versions, with the fields that `other` knows in their place."""
        values = {field.name: getattr(other, field.name) for field in fields(other) if getattr(other, field.name)}
        return replace(self, **values)

    def to_dict(self) -> dict[str, str]:
        """Return the known fields under their names in reports."""
        values = {_NAMES.get(field.name, field.name): getattr(self, field.name) for field in fields(self)}
        return {name: YES if value is True else value for name, value in values.items() if value}


_NAMES = {
    "tensorflow_after": "tensorflow after",
    "tensorflow_before": "tensorflow before",
    "graph_mode": "in graph mode",
}
UNKNOWN = Versions()
