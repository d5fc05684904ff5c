"""The optimizer interfaces of Keras before 2.9, over the same algorithms: `legacy.v1` and `legacy.v2`.

- `optim.legacy.v1`: `keras.optimizers` of tf.keras 1.x and Keras 1 and 2 (`get_updates`, `lr=`).
- `optim.legacy.v2`: OptimizerV2 of TF 2.0 to 2.10, which 2.11 calls `optimizers.legacy` (`apply_gradients`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optim.legacy import v1 as v1
    from optim.legacy import v2 as v2

__all__ = ["v1", "v2"]


if not TYPE_CHECKING:  # for type checkers any name would be one

    def __getattr__(name: str) -> Any:
        if name in __all__:
            return import_module(f"optim.legacy.{name}")
        raise AttributeError(f"module 'optim.legacy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
