"""The ops with which TensorFlow steps: `ApplyAdam`, `ResourceApplyAdam`, `SparseApplyAdam`, and what their inputs are.

Source: tensorflow/core/ops/training_ops.cc. The sparse op of a kernel has the numbers of rows after the gradient.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from migrate.graphs.nodes import Nodes

RATE = "learning_rate"
L2, SHRINKAGE = "l2_regularization_strength", "l2_shrinkage_regularization_strength"
_NAMES = {"rate": RATE, "l1": "l1_regularization_strength", "l2": L2, "shrinkage": SHRINKAGE}
_NAMES |= {"power": "learning_rate_power"}
_OPS = """
GradientDescent  GradientDescentOptimizer  SGD       | | 0 | rate gradient
Momentum         MomentumOptimizer         -         | momentum | 0 | rate gradient momentum
KerasMomentum    -                         SGD       | momentum | 0 | rate gradient momentum
Adagrad          AdagradOptimizer          -         | accumulator | 0 | rate gradient
AdagradV2        -                         Adagrad   | accumulator | 0 | rate epsilon gradient
ProximalAdagrad  ProximalAdagradOptimizer  -         | accumulator | 0 | rate l1 l2 gradient
Adadelta         AdadeltaOptimizer         Adadelta  | accum_grad accum_var | 0 | rate rho epsilon gradient
RMSProp          RMSPropOptimizer          RMSprop   | rms momentum | 0 | rate rho momentum epsilon gradient
CenteredRMSProp  RMSPropOptimizer          RMSprop   | mg rms momentum | 0 | rate rho momentum epsilon gradient
Adam             AdamOptimizer             Adam      | m v | 2 | rate beta_1 beta_2 epsilon gradient
AdamWithAmsgrad  -                         Adam      | m v vhat | 2 | rate beta_1 beta_2 epsilon gradient
AdaMax           AdaMaxOptimizer           Adamax    | m v | 1 | rate beta_1 beta_2 epsilon gradient
Ftrl             FtrlOptimizer             Ftrl      | accumulator linear | 0 | gradient rate l1 l2 power
FtrlV2           FtrlOptimizer             Ftrl      | accumulator linear | 0 | gradient rate l1 l2 shrinkage power
"""
"""Op, class of tf.train, of OptimizerV2 | inputs after the variable: slots of tf.keras | powers of betas | the rest."""
_OF_BOTH: dict[str, dict[str, Any]] = {
    "RMSProp": {"centered": False},
    "CenteredRMSProp": {"centered": True},
    "Ftrl": {SHRINKAGE: 0.0},
}
_OF_V2 = {**_OF_BOTH, "Adam": {"amsgrad": False}, "AdamWithAmsgrad": {"amsgrad": True}}
"""Options of a class that choose its kernel."""


@dataclass(frozen=True)
class Kernel:
    """A kernel, and the class that steps with it.

    Attributes:
      state: the number of its leading inputs that are variables: its own, slots and powers of betas.
      others: the inputs after these, under Keras's names. fixed: options of the class that choose this kernel.
    """

    class_name: str
    slots: tuple[str, ...]
    state: int
    others: tuple[str, ...]
    fixed: Mapping[str, Any]

    def inputs(self, rows: bool = False) -> dict[str, int]:
        """Map its arguments to numbers of inputs. `rows`: of the sparse kernel."""
        after = self.others.index("gradient")
        return {n: self.state + i + (rows and i > after) for i, n in enumerate(self.others) if i != after}

    def gradient(self, nodes: Nodes, name: str) -> str:
        """Return the gradient that an update gets, before it adds up repeated rows (training/optimizer.py 1.15)."""
        return nodes.before_rows_added(nodes.inputs[name][self.state + self.others.index("gradient")])


def _kernels(column: int, fixed: Mapping[str, Mapping[str, Any]]) -> dict[str, Kernel]:
    kernels = {}
    for row in _OPS.strip().splitlines():
        names, slots, powers, others = (part.split() for part in row.split("|"))
        arguments = tuple(_NAMES.get(name, name) for name in others)
        state = 1 + len(slots) + int(powers[0])
        kernels[names[0]] = Kernel(names[column], tuple(slots), state, arguments, fixed.get(names[0], {}))
    return {op: kernel for op, kernel in kernels.items() if kernel.class_name != "-"}


TF_TRAIN, OPTIMIZER_V2 = _kernels(1, _OF_BOTH), _kernels(2, _OF_V2)
CALLED = frozenset(kernel.class_name.removesuffix("Optimizer") for kernel in TF_TRAIN.values())
"""The names of tf.train's slots unless the program names the optimizer."""
ARGUMENTS = frozenset(key for kernel in TF_TRAIN.values() for key in kernel.inputs())


def kernel_of(op: str, kernels: Mapping[str, Kernel]) -> tuple[Kernel, bool] | None:
    """Return the kernel of an op, and whether it is the sparse one."""
    match = re.fullmatch(r"(?:Resource)?(Sparse)?Apply(\w+)", op)
    kernel = kernels.get(match.group(2)) if match else None
    return (kernel, bool(match and match.group(1))) if kernel is not None else None
