"""A custom optimizer or rule as a peer: `--peer module:NAME`.

NAME is a Peer of `bench.peers.peer`, a subclass of `optim.Rule`, or a class or function that returns an optimizer when
it is called without arguments. The optimizer has `apply_gradients`, as those of optim and Keras do, and steps plain
variables. It need not match the reference: its row shows the difference, and it must move every tensor until the end.
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.errors import UnknownNameError
from bench.peers import tensorflow
from bench.peers.abilities import EVERY_ROW, TOUCHED_ROWS, Abilities
from bench.peers.peer import Peer, Session

if TYPE_CHECKING:
    from bench.cases.case import Case

_HAS = Abilities(
    ("tensorflow",),
    "tensorflow",
    clips=(),
    ema=False,
    accumulate=False,
    decays=lambda case: False,
    tables=lambda case: (EVERY_ROW, TOUCHED_ROWS),
    ways=("function", "eager"),
)


def peer(text: str) -> Peer:
    """Return the peer of `module:NAME`; its module is imported in the worker. Raises: UnknownNameError."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise UnknownNameError(f"cannot read --peer {text!r}; write module:NAME, such as mypackage.optimizers:make")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that no file of the folder hides an installed module
    summary = f"{name} of {module}, on plain variables"
    prepare = partial(_prepare, text=text)
    return Peer(text, summary, __name__, _HAS, prepare, note="your own, no mesh", own_algorithm=True)


def _find(text: str) -> Any:
    module, _, name = text.partition(":")
    target: Any = importlib.import_module(module)
    for part in name.split("."):
        target = getattr(target, part)
    return target


def _optimizer(text: str) -> Any:
    import optim
    from optim.rule import Rule

    target = _find(text)
    if isinstance(target, type) and issubclass(target, Rule):
        return optim.Optimizer(rule=target())
    return target() if callable(target) else target


def _prepare(case: Case, text: str) -> Session:
    tf = tensorflow.start(case)
    target = _find(text)
    if isinstance(target, Peer):
        return target.prepare(case)
    optimizer = _optimizer(text)
    variables = tensorflow.whole_variables(case)
    if hasattr(optimizer, "build"):
        optimizer.build(variables)

    def apply(gradients: list, variables: list) -> None:
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    called = apply if case.options.where == "eager" else tf.function(apply)
    return tensorflow.whole_session(case, called, variables)
