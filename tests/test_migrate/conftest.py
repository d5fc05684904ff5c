"""The real checkpoints of tests/fixtures/cases/corpus, as fixtures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from migrate import surfaces
from migrate.proof import loaded, loading
from tests.places import CORPUS

STANDALONE = {"keras122": "keras1", "keras224": "keras2", "keras224py27": "keras2", "keras231": "keras2.3"}


@dataclass(frozen=True)
class Case:
    """One real checkpoint: where it is, what wrote it, and what a user would have to say about it."""

    name: str
    document: dict[str, Any]
    oracle: Any

    @property
    def source(self) -> str:
        folder, kind = CORPUS / self.name / "source", self.document["format"]
        return str(folder / ("model.h5" if kind == "h5" else kind))

    @property
    def generation(self) -> str:
        document = self.document
        if document["framework"] == "keras":
            return STANDALONE[document["generation"]]
        if document.get("plan") == "new":
            return "optimizer"
        return "optimizer_v1" if document["generation"] in ("tf14", "tf112", "tf113") else "optimizer_v2"

    @property
    def names(self) -> list[str]:
        """Trainable variables, in optimizer order."""
        return [v["name"].removesuffix(":0") for v in self.document["trainable"]]

    @property
    def hints(self) -> dict[str, Any]:
        """Hints that a list needs; none for formats that say everything."""
        if self.document["format"] == "h5":
            return {}
        optimizer = self.document["optimizer"]
        return {
            "optimizer_config": {"class_name": optimizer["class"], "config": optimizer["config"]},
            "variables": [{"name": v["name"], "shape": v["shape"]} for v in self.document["trainable"]],
            "generation": self.generation,
        }


@pytest.fixture(autouse=True)
def as_typed() -> Iterator[None]:
    """Advice as the command line words it; test_answers.py has what Python is told."""
    token = surfaces.current.set(surfaces.SHELL)
    yield
    surfaces.current.reset(token)


@pytest.fixture(scope="session")
def load_case() -> Any:
    """A function: name of a case -> Case."""

    def load(name: str) -> Case:
        document = json.loads((CORPUS / name / "case.json").read_text())
        return Case(name, document, np.load(CORPUS / name / "oracle.npz"))

    return load


@pytest.fixture
def loaded_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` loads targets in a process of its own, see test_verify_models.py; here, where Keras is, without one."""
    monkeypatch.setattr(loaded, "_run", loading.main)
