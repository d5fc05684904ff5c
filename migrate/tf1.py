"""What `tf.train.*Optimizer` of TensorFlow 1 means in Keras's terms: classes, arguments, slots, step count.

A Saver names a slot `<variable>/<Optimizer>`, the next ones `<variable>/<Optimizer>_1`, `_2`; which is which only the
class and its arguments say. Source: `tensorflow/python/training/*.py` 1.15.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from migrate.algorithms.spec import Algorithm
from migrate.errors import AmbiguousError
from migrate.state import LazyArray, Stored

CLASSES = {
    "GradientDescentOptimizer": "SGD",
    "MomentumOptimizer": "SGD",
    "RMSPropOptimizer": "RMSprop",
    "AdagradOptimizer": "Adagrad",
    "AdadeltaOptimizer": "Adadelta",
    "AdamOptimizer": "Adam",
    "FtrlOptimizer": "Ftrl",
}
RENAMED = {"beta1": "beta_1", "beta2": "beta_2", "use_nesterov": "nesterov"}
OWN = ("use_locking", "accum_name", "linear_name")
"""Arguments without effect on how state is used."""
SLOTS = {
    "SGD": ("m",),
    "RMSprop": ("velocity", "momentum"),
    "Adagrad": ("accumulator",),
    "Adadelta": ("accumulated_grad", "accumulated_delta_var"),
    "Adam": ("m", "v"),
    "Ftrl": ("accumulator", "linear"),
}
CENTERED = ("velocity", "average_gradient", "momentum")
POWERS = (("beta2_power", "beta_2"), ("beta1_power", "beta_1"))
"""The powers that AdamOptimizer keeps, the slower to vanish first."""
GLOBAL_STEP = "global_step"
AVERAGES = "ExponentialMovingAverage"
"""What tf.train.ExponentialMovingAverage keeps beside variables: no slots."""


def keras_style(class_name: str, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Class and arguments of a `tf.train` optimizer under the names that Keras has for them."""
    plain = class_name.rsplit(".", 1)[-1]
    renamed = {RENAMED.get(key, key): value for key, value in config.items() if key not in OWN}
    if plain == "RMSPropOptimizer" and "decay" in renamed:
        renamed["rho"] = renamed.pop("decay")
    return CLASSES.get(plain, plain), renamed


def slot_names(stored: Stored, algorithm: Algorithm, config: Mapping[str, Any]) -> dict[str, str | None]:
    """`optim`'s slot for each name in the source, None for what is none of this optimizer's.

    Raises:
      AmbiguousError: slots of more than one optimizer.
    """
    wanted = CENTERED if config.get("centered") else SLOTS.get(algorithm.name, ())
    numbered = [(name, re.fullmatch(r"(.+?)(?:_(\d+))?", name)) for name in stored.slots]
    bases = sorted({found.group(1) for _, found in numbered if found} - {AVERAGES})
    if len(bases) > 1:
        own = [base for base in bases if base == config.get("name")]
        if not own:
            raise AmbiguousError(
                f"the checkpoint holds slots named {', '.join(bases)}: those of several optimizers; say which in"
                ' --optimizer-config, {"class_name": ..., "config": {"name": ...}}'
            )
        bases = own
    ranked = sorted((int(found.group(2) or 0), name) for name, found in numbered if found and found.group(1) in bases)
    if wanted and len(ranked) > len(wanted):
        raise AmbiguousError(
            f"the checkpoint holds slots {', '.join(name for _, name in ranked)}, and {algorithm.name} keeps"
            f" {len(wanted)}: they are of several optimizers of one name, or not of the class in --optimizer-config"
        )
    slots: dict[str, str | None] = {name: None for name, _ in numbered}
    return slots | dict(zip((name for _, name in ranked), wanted, strict=False))


def steps(scalars: Mapping[str, LazyArray], config: Mapping[str, Any]) -> tuple[int, str] | None:
    """Steps taken by AdamOptimizer, by multiplying as it did until its stored power of beta comes out, bit for bit.

    After k steps a power is beta**(k + 1), each product rounded. None where none fits, as after 87,000 steps, when the
    float32 power of 0.999 has vanished.
    """
    for tail, key in POWERS:
        names = [n for n in scalars if re.fullmatch(rf"(?:.*/)?{tail}(?:_\d+)?", n)]
        if len({np.asarray(scalars[n].load()).tobytes() for n in names}) > 1:
            raise AmbiguousError(
                f"the checkpoint holds several Adam optimizers after different numbers of steps ({', '.join(names)});"
                ' add "iterations": N of the one meant to the config in --optimizer-config'
            )
        name = names[0] if names else None
        beta = config.get(key)
        if name is None or not isinstance(beta, (int, float)) or not 0.0 < beta < 1.0:
            continue
        stored = np.asarray(scalars[name].load()).reshape(-1)[0]
        factor = stored.dtype.type(beta)
        power, taken = factor, 0
        least = np.finfo(stored.dtype).tiny  # below it a product can be its own factor, and was flushed to 0 or not
        while power > stored and power >= least:
            power, taken = power * factor, taken + 1
        if power == stored and stored >= least:
            return taken, f"{name}, which is {key} to the power of steps + 1"
    return None
