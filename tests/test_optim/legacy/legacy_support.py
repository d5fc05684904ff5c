"""Optimizers that real releases saved, for the tests of `optim.legacy`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import tensorflow as tf

from tests.places import CORPUS
from tests.test_optim.support import variable

ROUNDING_OF_MOVEMENT, ROUNDING_OF_VALUE = 1e-5, 2e-6
"""float32 over six steps; a step of another rule differs by at least a hundred times as much."""


class Case:
    """One checkpoint: what the release's optimizer held, and what it did next."""

    def __init__(self, name: str):
        self.document = json.loads((CORPUS / name / "case.json").read_text())
        self.oracle = np.load(CORPUS / name / "oracle.npz")
        self.config: dict[str, Any] = dict(self.document["optimizer"]["config"])
        self.names = [v["name"].split(":")[0] for v in self.document["trainable"]]

    def sharding(self) -> dict[str, list[str]]:
        """Each variable over the axis x of size 2 along its first dim that this divides."""
        found = {}
        for name, entry in zip(self.names, self.document["trainable"], strict=True):
            even = [d for d, size in enumerate(entry["shape"]) if size % 2 == 0]
            if even:
                found[name] = ["x" if d == even[0] else "unsharded" for d in range(len(entry["shape"]))]
        return found

    @property
    def weights(self) -> list[np.ndarray]:
        count = sum(key.startswith("at_save/opt/") for key in self.oracle.files)
        return [self.oracle[f"at_save/opt/{j}"] for j in range(count)]

    def optimizer(self, module: Any, **changes: Any) -> Any:
        return getattr(module, self.document["optimizer"]["class"]).from_config({**self.config, **changes})

    def variables(self, place: Any) -> list[Any]:
        values = {name: self.oracle[f"at_save/var/{i}"] for i, name in enumerate(self.names)}
        return list(place.variables(values, tf.float32).values())

    def gradient(self, step: int, i: int, layout: Any) -> Any:
        value = self.oracle[f"grad/{step}/{i}"]
        if layout is None and self.document["trainable"][i].get("sparse"):
            rows = np.flatnonzero(np.abs(value).max(axis=1))
            return tf.IndexedSlices(tf.constant(value[rows]), tf.constant(rows), tf.constant(value.shape))
        return variable(value, layout, "gradient", tf.float32).read_value()

    def check(self, step: int, live: list[Any]) -> None:
        """The variables are where the release's were after this step."""
        from optim.layouts.placement import to_host

        for i, name in enumerate(self.names):
            want = self.oracle[f"var/{step}/{i}"].astype(np.float64)
            moved = np.linalg.norm(want - self.oracle[f"at_save/var/{i}"])
            error = np.linalg.norm(to_host(live[i]) - want)
            assert error <= max(ROUNDING_OF_MOVEMENT * moved, ROUNDING_OF_VALUE * np.linalg.norm(want)), (step, name)


def same_lists(found: list[np.ndarray], want: list[np.ndarray]) -> None:
    assert [w.shape for w in found] == [w.shape for w in want]
    for a, b in zip(found, want, strict=True):
        np.testing.assert_array_equal(a.astype(b.dtype), b)
