"""A network with one hidden layer learns the outputs of a fixed network of the same kind on random inputs."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

from bench.cases.workloads import Tensor

if TYPE_CHECKING:
    import numpy as np

INPUTS, TEACHERS, HIDDEN, OUTPUTS = 16, 16, 64, 4
BATCH = 64
LOOKED_AT = 1000


def _spread(inputs: int) -> float:
    """Return values of variance 1 / inputs."""
    return 2 * sqrt(3 / inputs)


TENSORS = (
    Tensor("in/kernel", (INPUTS, HIDDEN), 1, spread=_spread(INPUTS)),
    Tensor("in/bias", (HIDDEN,), 0, spread=0.0),
    Tensor("out/kernel", (HIDDEN, OUTPUTS), 0, spread=_spread(HIDDEN)),
    Tensor("out/bias", (OUTPUTS,), spread=0.0),
)


class Teacher:
    def __init__(self) -> None:
        import numpy as np

        random = np.random.default_rng(2)
        self._in = random.normal(0.0, 1.5 / sqrt(INPUTS), (INPUTS, TEACHERS)).astype(np.float32)
        self._out = random.normal(0.0, 1.0 / sqrt(TEACHERS), (TEACHERS, OUTPUTS)).astype(np.float32)
        self._x = random.standard_normal((LOOKED_AT, INPUTS), dtype=np.float32)

    def _taught(self, x: np.ndarray) -> np.ndarray:
        import numpy as np

        return np.tanh(x @ self._in) @ self._out

    def gradients(self, parameters: list[np.ndarray], seed: int, step: int) -> list[np.ndarray]:
        import numpy as np

        kernel, bias, out, last = parameters
        x = np.random.default_rng([seed, step]).standard_normal((BATCH, INPUTS), dtype=np.float32)
        hidden = np.tanh(x @ kernel + bias)
        off = 2.0 * (hidden @ out + last - self._taught(x)) / (BATCH * OUTPUTS)
        back = (off @ out.T) * (1.0 - np.square(hidden))
        slopes = (x.T @ back, back.sum(axis=0), hidden.T @ off, off.sum(axis=0))
        return [slope.astype(np.float32) for slope in slopes]

    def loss(self, parameters: list[np.ndarray]) -> float:
        import numpy as np

        kernel, bias, out, last = parameters
        prediction = np.tanh(self._x @ kernel + bias) @ out + last
        return float(np.mean(np.square(prediction - self._taught(self._x))))
