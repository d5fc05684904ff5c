"""The environment variable DTOPT_KERNELS: whether steps use dtopt's kernel, and whether they wait for its compiler.

`auto` (the default) uses a build that exists; without one, another process compiles it while steps run without
it. `build` waits for the compiler. `off` never uses it.
"""

from __future__ import annotations

import os

from optim.errors import HyperparameterError

VARIABLE = "DTOPT_KERNELS"
MODES = ("auto", "build", "off")


def mode() -> str:
    """Return the value of DTOPT_KERNELS. Raises HyperparameterError for another value."""
    setting = os.environ.get(VARIABLE) or "auto"
    if setting not in MODES:
        raise HyperparameterError(f"{VARIABLE} must be one of {', '.join(MODES)}, got {setting!r}")
    return setting
