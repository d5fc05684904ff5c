"""Several clients (processes) of one DTensor mesh: what only the first of them does, and what it sends to the
others."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tensorflow.experimental import dtensor
from tensorflow.python.eager import context

from optim.errors import CheckpointError

_turns = itertools.count()


def first_does(task: Callable[[], str]) -> str:
    """Run `task` on the first client while the others wait; its result on all of them.

    Every client must call this, in the same order of calls. The word goes through the coordination service that
    `dtensor.initialize_accelerator_system` starts.

    Raises:
      CheckpointError: on the other clients, where `task` raised on the first.
    """
    key = f"dtopt/{next(_turns)}"
    if dtensor.client_id() != 0:
        word = context.context().get_config_key_value(key)  # blocks until there is one
        if word.startswith("failed:"):
            raise CheckpointError(f"client 0 {word}")
        return word.removeprefix("done:")
    try:
        result = task()
    except BaseException as error:
        context.context().set_config_key_value(key, f"failed: {error}")
        raise
    context.context().set_config_key_value(key, f"done:{result}")
    return result
