"""Every release that writes optimizer state.

`keras` is how each Keras names its version: `keras/__init__.py` of each TensorFlow. TensorFlow 1.14 to 2.2 use 2.3.0-tf
if TensorFlow 2's behaviour was on when Keras was imported, else 2.2.4-tf.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from migrate import generations
from migrate.releases.versions import TENSORFLOW, Number, version_tuple

KERAS, TF_KERAS = "keras", "tf_keras"
TF_KERAS_FAMILY = "tf.keras"
NEVER = (99,)
GRAPH, DTENSOR = "graph", "dtensor"
"""Modes of a step other than the usual one: in a graph that `fit` made, and of an optimizer of DTensor."""


@dataclass(frozen=True)
class Package:
    """A release on the package index.

    Attributes:
      version: on the index, of the last patch of a minor release if patches do not differ.
      keras: the version string of its Keras, in each of its modes.
      since: the first TensorFlow that a standalone Keras ran on.
    """

    name: str
    version: str
    keras: tuple[str, ...] = ()
    since: Number = (1, 0)

    @cached_property
    def minor(self) -> Number:
        return (version_tuple(self.version) or ())[:2]

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


def _rows(name: str, text: str) -> tuple[Package, ...]:
    """Parse `text`, one release a row: the version, then version strings of its Keras, by default the version."""
    rows = (line.split() for line in text.strip().splitlines())
    return tuple(Package(name, version, tuple(keras)) for version, *keras in rows)


TENSORFLOWS = _rows(
    TENSORFLOW,
    """
    1.0.1
    1.1.0   2.0.0-tf
    1.2.1   2.0.2-tf
    1.3.0   2.0.6-tf
    1.4.1   2.0.8-tf
    1.5.1   2.1.2-tf
    1.6.0   2.1.3-tf
    1.7.1   2.1.4-tf
    1.8.0   2.1.5-tf
    1.9.0   2.1.6-tf
    1.10.1  2.1.6-tf
    1.11.0  2.1.6-tf
    1.12.3  2.1.6-tf
    1.13.2  2.2.4-tf
    1.14.0  2.2.4-tf 2.3.0-tf
    1.15.5  2.2.4-tf 2.3.0-tf
    2.0.4   2.2.4-tf 2.3.0-tf
    2.1.4   2.2.4-tf 2.3.0-tf
    2.2.3   2.2.4-tf 2.3.0-tf
    2.3.4   2.4.0
    2.4.4   2.4.0
    2.5.3   2.5.0
    2.6.5   2.6.0
    2.7.4   2.7.0
    2.8.4   2.8.0
    2.9.3   2.9.0
    2.10.1  2.10.0
    2.11.1  2.11.0
    2.12.1  2.12.0
    2.13.1  2.13.1
    2.14.1  2.14.0
    2.15.1  2.15.0
    """,
)
TF_KERASES = tuple(Package(TF_KERAS, f"2.{minor}.0", (f"2.{minor}.0",)) for minor in range(16, 22))
STANDALONE = tuple(
    Package(KERAS, f"{minor}.{patch}", (f"{minor}.{patch}",), (1, 13) if (minor, patch) == ("2.2", "5") else (1, 0))
    for minor, patches in {
        "1.0": "58",
        "1.1": "2",
        "1.2": "2",
        "2.0": "0245689",
        "2.1": "0123456",
        "2.2": "012345",
        "2.3": "01",
    }.items()
    for patch in patches
)
"""Releases of standalone Keras. 2.2.5 came out half a year after TensorFlow 1.13."""
KERAS_3 = tuple(Package(KERAS, f"3.{minor}.0", (f"3.{minor}.0",)) for minor in range(16))
PACKAGES = (*TENSORFLOWS, *TF_KERASES, *STANDALONE, *KERAS_3)


@dataclass(frozen=True)
class Release:
    """Who wrote optimizer state: a release of Keras or TensorFlow, and what it ran on.

    Attributes:
      generation: one of `generations.GENERATIONS`.
      package: the row of the table.
      tensorflow: its TensorFlow, as (major, minor); () on another backend, or on any.
      keras: the version string of its Keras, empty if it has no Keras.
      backend: of Keras.
      mode: GRAPH, DTENSOR, or empty.
    """

    generation: str
    package: Package
    tensorflow: Number
    keras: str = ""
    backend: str = TENSORFLOW
    mode: str = ""

    @cached_property
    def keras_number(self) -> Number:
        return version_tuple(self.keras) or ()

    @property
    def traits(self) -> generations.Generation:
        """Traits of its generation."""
        return generations.traits(self.generation)

    @property
    def is_native(self) -> bool:
        """Whether its updates are Keras's own code, before OptimizerV2."""
        return self.traits.is_native

    @property
    def is_optimizer_v2(self) -> bool:
        return self.generation == generations.OPTIMIZER_V2

    @property
    def is_tf_train(self) -> bool:
        return self.generation == generations.TF1

    @property
    def is_keras_3(self) -> bool:
        return self.generation == generations.KERAS3

    @property
    def is_standalone(self) -> bool:
        """Whether it is a Keras that is not part of TensorFlow."""
        return self.package.name == KERAS

    @property
    def is_before_tf_keras(self) -> bool:
        """Whether it is Keras 1 or 2."""
        return self.is_standalone and self.is_native

    @property
    def family(self) -> str:
        """The family name to show: Keras 1 or 2, tf.keras or Keras 3."""
        return "Keras 3" if self.is_keras_3 else "Keras 1 or 2" if self.is_before_tf_keras else TF_KERAS_FAMILY

    def since(self, tf: Number = NEVER, keras3: Number = (3,), alone: bool = False) -> bool:
        """Return whether it does what came with these versions of its family; `alone`: whether Keras 1 and 2 did."""
        if self.is_before_tf_keras:
            return alone
        return self.keras_number >= (keras3 if self.is_keras_3 else tf)

    @property
    def name(self) -> str:
        """The name to show, without the TensorFlow that it ran on."""
        if self.package.name == TENSORFLOW:
            return "TF " + ".".join(map(str, self.package.minor))
        return f"{'Keras' if self.is_standalone else 'tf_keras'} {self.package.version}"


BY_TENSORFLOW = {
    generations.TF1: ((1, 0), (2, 15)),
    generations.OPTIMIZER_V1: ((1, 1), (2, 15)),
    generations.OPTIMIZER_V2: ((1, 13), (2, 15)),
    generations.EXPERIMENTAL: ((2, 9), (2, 12)),
    generations.OPTIMIZER: ((2, 11), (2, 15)),
}
"""Generation -> the first and the last TensorFlow that has it; `tf_keras` has it later.

`experimental` of 2.11 and 2.12 is only DTensor's.
"""
STANDALONE_SINCE: dict[str, Number] = {
    generations.KERAS1: (1,),
    generations.KERAS2: (2,),
    generations.KERAS2_3: (2, 3),
    generations.KERAS3: (3,),
}


DEFAULTS = (((1, 14), generations.OPTIMIZER_V2), ((2, 11), generations.OPTIMIZER))
"""The TensorFlow from which on `tf.keras.optimizers` are of a generation.

Before, they are OPTIMIZER_V1; from 2.16 on, they are those of Keras 3.
"""


def default_generation(package: str, version: str) -> str:
    """Return the generation of the optimizers that a release has under their plain names."""
    number = version_tuple(version if "." in version else f"{version}.0") or ()
    if package == TENSORFLOW and number >= (2, 16):
        return generations.KERAS3
    if package == KERAS and not (2, 4) <= number < (3,):
        return [generations.KERAS1, *(name for name, since in STANDALONE_SINCE.items() if since <= number)][-1]
    return [generations.OPTIMIZER_V1, *(name for since, name in DEFAULTS if since <= number)][-1]


def row(package: str, version: str) -> Package | None:
    """Return the row of a minor release."""
    return next((p for p in PACKAGES if p.name == package and p.minor == (version_tuple(version) or ())[:2]), None)


def _of_tensorflow() -> Iterator[Release]:
    for generation, (first, last) in BY_TENSORFLOW.items():
        for package in TENSORFLOWS:
            if first <= package.minor <= last:
                for keras in package.keras or ("",):
                    yield from (
                        Release(generation, package, package.minor, keras, mode=mode)
                        for mode in _modes(generation, package.minor)
                    )
    for package in TF_KERASES:
        for generation in (generations.OPTIMIZER_V1, generations.OPTIMIZER_V2, generations.OPTIMIZER):
            yield Release(generation, package, package.minor, package.keras[0])


def _modes(generation: str, tensorflow: Number) -> tuple[str, ...]:
    if generation == generations.EXPERIMENTAL:
        return ("", DTENSOR) if tensorflow <= (2, 10) else (DTENSOR,)
    return ("", GRAPH) if generation == generations.OPTIMIZER_V2 else ("",)


def _of_keras() -> Iterator[Release]:
    for package in (*STANDALONE, *KERAS_3):
        generation = default_generation(KERAS, package.version)
        if generation == generations.KERAS3:
            yield from (
                Release(generation, package, (), package.keras[0], backend) for backend in (TENSORFLOW, "jax", "torch")
            )
            continue
        for other in TENSORFLOWS:
            if package.since <= other.minor <= ((2, 2) if generation == generations.KERAS2_3 else (1, 15)):
                yield Release(generation, package, other.minor, package.keras[0])
        yield from (Release(generation, package, (), package.keras[0], backend) for backend in ("theano", "cntk"))


RELEASES = (*_of_keras(), *_of_tensorflow())
