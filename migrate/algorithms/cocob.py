"""COCOB of TensorFlow Addons, which has no learning rate.

Source: `optimizers/cocob.py` of TensorFlow Addons 0.14 - 0.23.
"""

from __future__ import annotations

from migrate.algorithms import spec
from optim.rules.cocob import COCOBRule

SLOTS = spec.slots_of(
    COCOBRule(),
    largest_gradient=("lr",),
    gradient_norm_sum=("grad_norm_sum",),
    gradient_sum=("gradients_sum",),
    bet=("tilde_w",),
    reward=("reward",),
)


ALGORITHM = spec.Algorithm(
    name="COCOB",
    slots=SLOTS,
    arguments=spec.numbers("alpha"),
    defaults=spec.constants(learning_rate=1.0, alpha=100.0),
    scalars=("alpha",),
    time_decay=False,
)
