"""A character language model: it predicts the next character from the 8 before it.

The network is a table, a hidden layer and softmax, as in Bengio et al., 2003. The text is real and on every machine:
`pydoc_data.topics`, Python's own help. It differs between Python versions, so its hash belongs to the result.
"""

from __future__ import annotations

from functools import cache
from math import log, sqrt
from typing import TYPE_CHECKING

from bench.cases.workloads import Tensor

if TYPE_CHECKING:
    import numpy as np

CONTEXT, VOCABULARY, WIDTH, HIDDEN = 8, 64, 16, 128
BATCH = 128
HELD_OUT = 0.1
LOOKED_AT = 2000

TENSORS = (
    Tensor("embedding", (VOCABULARY, WIDTH), 0, spread=1.0),
    Tensor("hidden/kernel", (CONTEXT * WIDTH, HIDDEN), 1, spread=2 * sqrt(3 / (CONTEXT * WIDTH))),
    Tensor("hidden/bias", (HIDDEN,), 0, spread=0.0),
    Tensor("out/kernel", (HIDDEN, VOCABULARY), 0, spread=2 * sqrt(3 / HIDDEN)),
    Tensor("out/bias", (VOCABULARY,), spread=0.0),
)


@cache
def text() -> str:
    """Return all of the help, topics in order of their names."""
    from pydoc_data import topics

    return "\n".join(topics.topics[name] for name in sorted(topics.topics))


def source() -> str:
    import hashlib

    return hashlib.sha256(text().encode()).hexdigest()[:16]


class Chars:
    def __init__(self) -> None:
        import numpy as np

        counts: dict[str, int] = {}
        for char in text():
            counts[char] = counts.get(char, 0) + 1
        common = sorted(counts, key=lambda char: (-counts[char], char))[: VOCABULARY - 1]
        numbers = {char: number for number, char in enumerate(common)}
        codes = np.array([numbers.get(char, VOCABULARY - 1) for char in text()])
        cut = int(len(codes) * (1.0 - HELD_OUT))
        self._learned, held_out = codes[:cut], codes[cut:]
        places = np.random.default_rng(3).integers(0, len(held_out) - CONTEXT, LOOKED_AT)
        self._x, self._y = self._at(held_out, places)

    @staticmethod
    def _at(codes: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        import numpy as np

        return codes[places[:, None] + np.arange(CONTEXT)], codes[places + CONTEXT]

    @staticmethod
    def _forward(parameters: list[np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (inputs of the hidden layer, hidden layer, logarithms of the probabilities)."""
        import numpy as np

        table, kernel, bias, out, last = parameters
        inputs = table[x].reshape(len(x), -1)
        hidden = np.tanh(inputs @ kernel + bias)
        z = hidden @ out + last
        z = z - z.max(axis=1, keepdims=True)
        return inputs, hidden, z - np.log(np.exp(z).sum(axis=1, keepdims=True))

    def gradients(self, parameters: list[np.ndarray], seed: int, step: int) -> list[np.ndarray]:
        import numpy as np

        table, kernel, _, out, _ = parameters
        places = np.random.default_rng([seed, step]).integers(0, len(self._learned) - CONTEXT, BATCH)
        x, y = self._at(self._learned, places)
        inputs, hidden, logs = self._forward(parameters, x)
        off = np.exp(logs)
        off[np.arange(BATCH), y] -= 1.0
        off /= BATCH
        back = (off @ out.T) * (1.0 - np.square(hidden))
        in_table = np.zeros_like(table)
        np.add.at(in_table, x, (back @ kernel.T).reshape(BATCH, CONTEXT, WIDTH))
        slopes = (in_table, inputs.T @ back, back.sum(axis=0), hidden.T @ off, off.sum(axis=0))
        return [slope.astype(np.float32) for slope in slopes]

    def loss(self, parameters: list[np.ndarray]) -> float:
        """Return the loss in bits per character."""
        import numpy as np

        logs = self._forward(parameters, self._x)[2]
        return float(-np.mean(logs[np.arange(len(self._y)), self._y]) / log(2.0))
