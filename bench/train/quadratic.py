"""A quadratic bowl after DeepOBS' `quadratic_deep` (Schneider, Balles and Hennig, 2019).

Of its 100 eigenvalues 90 are between 0 and 1 and 10 between 30 and 60. The rotation is fixed. The loss is the mean over
a batch of ½ (θ-x)ᵀ Q (θ-x).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.cases.workloads import Tensor

if TYPE_CHECKING:
    import numpy as np

DIMS = 100
STEEP = 10
BATCH = 128
NOISE = 0.3
TENSORS = (Tensor("theta", (DIMS,), 0, spread=2.0),)


class Quadratic:
    def __init__(self) -> None:
        import numpy as np

        random = np.random.default_rng(0)
        steep = random.uniform(30.0, 60.0, STEEP)
        values = np.concatenate([random.uniform(0.0, 1.0, DIMS - STEEP), steep])
        rotation, _ = np.linalg.qr(random.standard_normal((DIMS, DIMS)))
        self.q = (rotation * values) @ rotation.T

    def gradients(self, parameters: list[np.ndarray], seed: int, step: int) -> list[np.ndarray]:
        import numpy as np

        centre = np.random.default_rng([seed, step]).normal(0.0, NOISE, (BATCH, DIMS)).mean(axis=0)
        return [(self.q @ (parameters[0] - centre)).astype(np.float32)]

    def loss(self, parameters: list[np.ndarray]) -> float:
        """Return the loss without the noise: 0 at the optimum."""
        return float(0.5 * parameters[0] @ self.q @ parameters[0])
