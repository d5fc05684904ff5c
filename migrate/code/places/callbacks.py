"""Rewrite Keras's callbacks that set the learning rate, and the key of its log.

Sources: `keras/callbacks.py` 2.2.4 and 2.3.1, `tensorflow/python/keras/callbacks.py` 2.4, Keras 3.15
`callbacks/reduce_lr_on_plateau.py` and `learning_rate_scheduler.py`.
"""

from __future__ import annotations

import re
from functools import lru_cache

import libcst as cst

from migrate.code import names, targets
from migrate.code.findings import REWRITTEN, SAME, UNSURE
from migrate.code.program import Reading

SETS_RATE = re.compile(names.CALLBACK.pattern.removesuffix(r"\w+$") + r"(ReduceLROnPlateau|LearningRateScheduler)$")
OLD_KEY, NEW_KEY = "lr", "learning_rate"


def look_at_call(reading: Reading, node: cst.Call) -> None:
    """Rewrite a callback that sets the learning rate, and `logs.get("lr")`."""
    canonical_names = reading.names.of(node.func)
    if canonical_names and all(map(SETS_RATE.match, canonical_names)):
        _callback(reading, node)
    elif isinstance(node.func, cst.Attribute) and node.func.attr.value == "get" and node.args:
        _logged(reading, node, node.func.value, node.args[0].value)


def _callback(reading: Reading, node: cst.Call) -> None:
    epsilon = next((a for a in node.args if a.keyword and a.keyword.value == "epsilon"), None)
    if epsilon is None:
        reading.add(node, SAME, "it sets learning_rate itself")
        return
    reading.edits[epsilon] = lambda updated: cst.ensure_type(updated, cst.Arg).with_changes(
        keyword=cst.Name("min_delta")
    )
    new = reading.text(epsilon).replace("epsilon", "min_delta", 1).rstrip(", \n")
    reading.add(epsilon, REWRITTEN, "current Keras accepts and ignores epsilon", new)


def look_at_subscript(reading: Reading, node: cst.Subscript) -> None:
    """Rewrite `history.history["lr"]` and `logs["lr"]`."""
    index = node.slice[0].slice if len(node.slice) == 1 else None
    if isinstance(index, cst.Index):
        _logged(reading, node, node.value, index.value)


def _logged(reading: Reading, node: cst.BaseExpression, logs: cst.BaseExpression, key: cst.BaseExpression) -> None:
    if not isinstance(key, cst.SimpleString) or key.evaluated_value != OLD_KEY or reading.target == targets.TF_KERAS:
        return
    name = names.dotted(logs).rsplit(".", 1)[-1]
    if name not in ("logs", "history") or not reading.has_framework or _writes_key(reading):
        return
    if isinstance(logs, cst.Attribute) and _is_from_a_constructor(reading, logs.value):
        return
    if not _has_rate_callback(reading):
        reading.add(node, UNSURE, f"if a callback of Keras wrote it, the key is {NEW_KEY!r} now")
        return
    new = key.value.replace(OLD_KEY, NEW_KEY)
    reading.edits[key] = lambda updated: cst.ensure_type(updated, cst.SimpleString).with_changes(value=new)
    reading.add(node, REWRITTEN, "", reading.text(node).replace(key.value, new))


def _is_from_a_constructor(reading: Reading, node: cst.BaseExpression) -> bool:
    """Whether a name is only bound to objects of classes that are not Keras's, such as a callback of the program."""
    text, scope = names.dotted(node), reading.scope(node)
    home = reading.facts.bound(text, scope) if text else None
    values = reading.facts.values[home, text] if home is not None else []
    return bool(values) and all(isinstance(v, cst.Call) and _is_own_class(reading, v.func) for v in values)


def _is_own_class(reading: Reading, function: cst.BaseExpression) -> bool:
    return names.dotted(function).rpartition(".")[2][:1].isupper() and not reading.callee(function)


@lru_cache(maxsize=1)
def _has_rate_callback(reading: Reading) -> bool:
    names_of_calls = (reading.names.of(call.func) for call in reading.tree.all(cst.Call))
    return any(canonical_names and all(map(SETS_RATE.match, canonical_names)) for canonical_names in names_of_calls)


@lru_cache(maxsize=1)
def _writes_key(reading: Reading) -> bool:
    return bool(re.search(r"logs\[[\"']lr[\"']\]\s*=[^=]|logs\.setdefault\([\"']lr[\"']", reading.program.code))
