"""The pictures of the documentation show what was measured, and that a migrated run goes on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from tests.places import ROOT
from tools import pictures

ROUNDING = 1e-4
"""Relative, of a loss after 80 steps that began alike; measured: 2.6e-6."""


def measured(name: str) -> dict:
    return json.loads((pictures.PICTURES / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["resumed", "zero1", "packages", "migration", "step"])
def test_a_picture_is_drawn_from_its_numbers(name: str) -> None:
    drawn = pictures.drawn()[name]
    assert (pictures.PICTURES / f"{name}.svg").read_text(encoding="utf-8") == drawn
    root = ElementTree.fromstring(drawn)
    assert all(x <= float(root.get("width", 0)) and y <= float(root.get("height", 0)) for x, y in _points(drawn))
    assert root.findtext("{http://www.w3.org/2000/svg}title")
    assert "prefers-color-scheme: dark" in drawn


def _points(drawn: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+),(-?[\d.]+)", drawn)]


def test_the_axes_of_the_losses_are_named_and_hold_all() -> None:
    drawn = pictures.drawn()["resumed"]
    assert ">training step</text>" in drawn
    assert ">training loss</text>" in drawn
    assert all(84 <= y <= 304 for path in re.findall(r'<path class="(?:a|b|c|own|lost)"[^>]* d="(M[^"]*L[^"]*)"', drawn)
               for _, y in _points(path))  # fmt: skip


def check_losses(numbers: dict) -> None:
    """Keras 3 and the mesh continue on the curve of TensorFlow 1.15; with the weights only the loss stays higher."""
    then = json.loads((pictures.STORY / "tf115.json").read_text())["losses"]
    np.testing.assert_allclose(numbers["tf115"], then, atol=1e-6)
    went_on = numbers["keras3"] + numbers["mesh"]
    assert len(went_on) == pictures.END - pictures.SAVED
    np.testing.assert_allclose(went_on, then[pictures.SAVED :], rtol=ROUNDING)
    ratios = np.divide(numbers["lost"], then[pictures.SAVED :])
    assert ratios[0] == pytest.approx(1, rel=1e-3), "the same weights"
    assert min(ratios[1:]) > 1.1
    assert ratios[-1] > 2


def test_the_losses_shown_go_on_as_they_did() -> None:
    check_losses(measured("resumed"))


@pytest.mark.breadth
def test_the_numbers_can_be_measured_again() -> None:
    code = "import json; from tools import pictures as p; print('FOUND', json.dumps([p.resumed(), p.zero1()]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    answer = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    resumed, zero1 = json.loads(answer.removeprefix("FOUND "))
    check_losses(resumed)
    assert zero1 == measured("zero1")
