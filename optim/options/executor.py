"""Which executor runs the steps, and whether XLA compiles them: `executor` and `jit_compile`."""

from __future__ import annotations

from typing import Any, ClassVar

from optim.errors import HyperparameterError
from optim.options.base import Option, Part

EXECUTORS = ("auto", "local", "portable")


class ExecutorChoice(Part):
    """What was asked for; `optim.step.execution` finds out what can be."""

    options: ClassVar = {
        "jit_compile": Option(
            None,
            "True compiles with XLA the updates of each device's shards that dtopt's own kernel, which is faster, does"
            " not do (eagerly, or in a `tf.function` on plain variables); DTensor's own functions cannot be compiled,"
            " and asking for it there raises",
        ),
        "executor": Option(
            "auto",
            '`"auto"`: eager steps run shard by shard where they can (see `executor_report()`), steps inside'
            ' a `tf.function` by portable ops. `"local"` and `"portable"` insist',
        ),
    }

    def __init__(self, executor: Any, jit_compile: Any):
        self.change("executor", executor)
        self.change("jit_compile", jit_compile)

    def change(self, name: str, value: Any) -> None:
        if name == "executor":
            if value not in EXECUTORS:
                raise HyperparameterError(f"executor must be one of {EXECUTORS}, got {value!r}")
            self.executor = str(value)
        else:
            if value is not None and not isinstance(value, bool):
                raise HyperparameterError(f"jit_compile must be True, False or None, got {value!r}")
            self.jit_compile: bool | None = value
