"""Keep TensorFlow's compiler of DTensor functions from running them out of order.

Its pass that combines independent all-reduces (`dtensor/mlir/dtensor_allreduce_combine_optimization.cc`, also in TF
2.21) moves them down to the last of them, and sorts ops that depend on them after it, by values alone. An assignment
may then come after a later read of the same variable, which gives the old value. Two gradients, or two norms, in one
function are enough. With several steps in one function all but the first would start from old variables. An environment
variable switches the pass off. TensorFlow reads it once, when it compiles for DTensor first, so `import optim` sets it.
"""

from __future__ import annotations

import os
import sys
import warnings

VARIABLE = "DTENSOR_ENABLE_COMBINE_ALL_REDUCES_OPTIMIZATION"
_DTENSOR = "tensorflow.dtensor.python.api"
_was_switched_off: list[bool] = []


def keep() -> None:
    """Switch the pass off in this process, unless the environment asks for it."""
    if not _was_switched_off:
        is_early = getattr(sys.modules.get(_DTENSOR), "_dtensor_singleton", None) is None
        was_off = os.environ.get(VARIABLE) == "0"
        os.environ.setdefault(VARIABLE, "0")
        _was_switched_off.append(was_off or (is_early and os.environ[VARIABLE] == "0"))


def warn_if_not_kept() -> None:
    """While a step over DTensors is traced: warn, once, that reads after it may give old values."""
    if not _was_switched_off[0]:
        _was_switched_off[0] = True
        warnings.warn(
            f"optim was imported after DTensor was first used, or {VARIABLE} is not 0: TensorFlow may run a read of a"
            " variable before an earlier step in the same tf.function. Import optim first, or set the variable to 0",
            UserWarning,
            stacklevel=2,
        )
