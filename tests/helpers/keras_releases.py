"""What differs between the releases of Keras 3 with which the tests run: the last for Python 3.10 is 3.12."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import numpy as np
import pytest
from packaging.version import Version

INSTALLED = Version(metadata.version("keras"))
LOSS_OF_BATCH = Version("3.15")
"""Since when `train_on_batch` returns the loss of its batch, and not the mean since metrics were reset."""


def needs_keras(release: str) -> pytest.MarkDecorator:
    """For a test of what no Keras before `release` has."""
    return pytest.mark.skipif(Version(release) > INSTALLED, reason=f"of Keras {release}, and {INSTALLED} is installed")


def loss_of_batch(model: Any, x: Any, y: Any) -> float:
    """The loss of one batch, on which a model of Keras 3 or tf_keras takes a step."""
    model.reset_metrics()
    return float(np.ravel(model.train_on_batch(x, y))[0])
