"""Logistic regression on synthetic data. The loss is the gap to the optimum, which Newton's method finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.cases.workloads import Tensor

if TYPE_CHECKING:
    import numpy as np

EXAMPLES = 2000
FEATURES = 32
BATCH = 128
PENALTY = 1e-3
NEWTON_STEPS = 30
TENSORS = (Tensor("w", (FEATURES, 1), 0), Tensor("b", (1,), spread=0.0))


class Logistic:
    def __init__(self) -> None:
        import numpy as np

        random = np.random.default_rng(1)
        scales = np.logspace(-1.0, 0.5, FEATURES)  # features of unequal size
        self.x = random.standard_normal((EXAMPLES, FEATURES)) * scales
        true = random.standard_normal((FEATURES, 1)) / scales[:, None]
        self.y = (self.x @ true * 0.5 + random.logistic(size=(EXAMPLES, 1)) > 0).astype(np.float64)
        self.optimum = self._optimum()

    def _value(self, w: np.ndarray, b: np.ndarray) -> float:
        import numpy as np

        z = self.x @ w + b
        return float(np.mean(np.logaddexp(0.0, z) - self.y * z) + 0.5 * PENALTY * np.sum(np.square(w)))

    def _slopes(self, w: np.ndarray, b: np.ndarray, rows: np.ndarray | slice) -> tuple[np.ndarray, np.ndarray]:
        import numpy as np

        x, y = self.x[rows], self.y[rows]
        off = (1.0 / (1.0 + np.exp(-(x @ w + b))) - y) / len(x)
        return x.T @ off + PENALTY * w, off.sum(axis=0)

    def _optimum(self) -> float:
        """Run Newton's method from zero, on w and b together."""
        import numpy as np

        w: np.ndarray = np.zeros((FEATURES, 1))
        b: np.ndarray = np.zeros(1)
        whole = np.hstack([self.x, np.ones((EXAMPLES, 1))])
        for _ in range(NEWTON_STEPS):
            slope = np.concatenate([part.ravel() for part in self._slopes(w, b, slice(None))])
            likely = 1.0 / (1.0 + np.exp(-(self.x @ w + b)))
            curvature = whole.T @ (whole * likely * (1.0 - likely)) / EXAMPLES
            curvature += np.diag([PENALTY] * FEATURES + [0.0])
            step = np.linalg.solve(curvature, slope)
            w, b = w - step[:FEATURES, None], b - step[FEATURES:]
        return self._value(w, b)

    def gradients(self, parameters: list[np.ndarray], seed: int, step: int) -> list[np.ndarray]:
        import numpy as np

        rows = np.random.default_rng([seed, step]).integers(0, EXAMPLES, BATCH)
        return [slope.astype(np.float32) for slope in self._slopes(parameters[0], parameters[1], rows)]

    def loss(self, parameters: list[np.ndarray]) -> float:
        return max(self._value(parameters[0], parameters[1]) - self.optimum, 0.0)
