"""Rewrite optimizers that wrap others: loss scaling, averages, and distributed training.

Sources: `keras/mixed_precision/loss_scale_optimizer.py` of TensorFlow 2.1 to 2.15, `mixed_precision.py` of 1.15's
`train/experimental`, `tensorflow_addons/optimizers/` 0.23 (lookahead.py, moving_average.py,
stochastic_weight_averaging.py), Keras 3.15 `optimizers/loss_scale_optimizer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from migrate.code import facts, names, targets
from migrate.code.findings import BY_HAND, DIFFERS, REWRITTEN, SAME
from migrate.code.meanings import Value
from migrate.code.program import Reading

SCALED = ("LossScaleOptimizer", "MixedPrecisionLossScaleOptimizer", "enable_mixed_precision_graph_rewrite")
INNER = ("inner_optimizer", "optimizer", "opt")
FIRST_SCALE = 2.0**15
POLICY = "it also put float16 into the graph: keras.mixed_precision.set_global_policy('mixed_float16') does that now"
ADVICE = {
    "Lookahead": "optim's optimizers accept lookahead={'sync_period': 6, 'slow_step_size': 0.5}; without one, set slow"
    " += slow_step_size * (fast - slow) and fast = slow after each sync_period steps",
    "MovingAverage": "leave it out, and give the inner optimizer use_ema=True, ema_momentum=average_decay; the averages"
    " start at the first step's result there, and started at the first values here",
    "SWA": "leave it out, and give the inner optimizer of optim stochastic_average={'start_averaging': 0,"
    " 'average_period': 10}; fit ends with the averages in the model there",
    "MultiOptimizer": "make optim.Groups([(pattern, optimizer), ...]) with patterns of the names of variables, and give"
    " it to for_keras, or call its apply_gradients with all of them",
    "SyncReplicasOptimizer": "leave it out: replicas of a tf.distribute.Strategy and clients of a mesh are synchronous",
    "CrossShardOptimizer": "leave it out: under tf.distribute.TPUStrategy gradients are summed over the cores",
    "DistributedOptimizer": "it creates the inner optimizer again from its class and config, which for_keras does not"
    " have: sum the gradients yourself, hvd.allreduce(g), before apply_gradients, or train under a mesh",
    "MovingAverageOptimizer": "leave it out, and give the inner optimizer use_ema=True, ema_momentum=average_decay",
}
"""What to do instead, by wrapper."""


def is_wrapper(reading: Reading, node: cst.BaseExpression) -> bool:
    """Whether a name is, on every path, a wrapper around another optimizer."""
    canonical_names = reading.callee(node)
    return bool(canonical_names) and all(names.FRAMEWORK.match(n) and names.WRAPPERS.search(n) for n in canonical_names)


def takes(reading: Reading, inner: cst.Call) -> bool:
    """Whether the wrapper around this constructor becomes arguments of it, or accepts the new optimizer unchanged."""
    wrapper = _wrapper_of(reading, inner)
    return wrapper is not None and (
        reading.target == targets.KERAS
        or (
            _inner(wrapper) is inner
            and (_loss_scale_arguments(reading, wrapper) or _lookahead_argument(reading, wrapper)) is not None
        )
    )


def _wrapper_of(reading: Reading, inner: cst.CSTNode) -> cst.Call | None:
    parent = reading.parent(inner)
    call = reading.parent(parent) if isinstance(parent, cst.Arg) else None
    return call if isinstance(call, cst.Call) and is_wrapper(reading, call.func) else None


def look(reading: Reading, node: cst.Call) -> None:
    cls = _class(reading, node)
    slow = _lookahead_argument(reading, node)
    if slow is not None and reading.target == targets.OPTIM:
        _into_constructor(reading, node, cls, slow)
        return
    if cls not in SCALED:
        reading.add(node, BY_HAND, ADVICE.get(cls, "the wrapper may not accept the new optimizer: wrap it again"))
        return
    scaling = _loss_scale_arguments(reading, node)
    if scaling is None:
        reading.add(node, BY_HAND, "its loss scale is not visible here: write it as a literal, a number or 'dynamic'")
    elif reading.target == targets.OPTIM:
        _into_constructor(reading, node, cls, scaling)
    elif reading.target == targets.KERAS and _is_of_tf_24(next(iter(reading.callee(node.func)))):
        _around_new(reading, node, scaling)
    elif reading.target == targets.TF_KERAS and _is_of_tf_24(next(iter(reading.names.of(node.func)))):
        _of_tf_keras(reading, node)
    else:
        package = reading.target.replace("-", "_")
        policy = f"; {POLICY}" if cls == "enable_mixed_precision_graph_rewrite" else ""
        reading.add(node, BY_HAND, f"make it {package}.mixed_precision.LossScaleOptimizer(optimizer){policy}")


def _of_tf_keras(reading: Reading, node: cst.Call) -> None:
    if all(name.startswith("tf_keras.") for name in reading.names.of(node.func)):
        reading.add(node, SAME)
        return
    function = cst.parse_expression("tf_keras.mixed_precision.LossScaleOptimizer")
    reading.edits[node] = lambda updated: cst.ensure_type(updated, cst.Call).with_changes(func=function)
    reading.imports.add("import tf_keras")
    reading.add(node, REWRITTEN, "", reading.text(node.with_changes(func=function)))


def _class(reading: Reading, node: cst.Call) -> str:
    return next(iter(reading.callee(node.func))).rsplit(".", 1)[-1]


def _is_of_tf_24(name: str) -> bool:
    return name.endswith(".LossScaleOptimizer") and ".experimental." not in name


def _inner(node: cst.Call) -> cst.BaseExpression | None:
    named = next((a.value for a in node.args if a.keyword and a.keyword.value in INNER), None)
    first = node.args[0] if node.args else None
    return named or (first.value if first is not None and first.keyword is None and not first.star else None)


def _loss_scale_arguments(reading: Reading, node: cst.Call) -> Mapping[str, Value] | None:
    if _class(reading, node) not in SCALED or any(a.star for a in node.args):
        return None
    name = next(iter(reading.callee(node.func)))
    is_new = _is_of_tf_24(name)
    order = ("", "dynamic", "initial_scale", "dynamic_growth_steps") if is_new else ("", "loss_scale")
    arguments: dict[str, Value] = {}
    for index, argument in enumerate(node.args):
        key = argument.keyword.value if argument.keyword else (order[index] if index < len(order) else None)
        if key is None:
            return None
        if key and key not in INNER:
            arguments[key] = facts.literal(argument.value, reading.module)
    return _of_new(arguments) if is_new else _of_old(arguments)


def _lookahead_argument(reading: Reading, node: cst.Call) -> Mapping[str, Value] | None:
    if _class(reading, node) != "Lookahead" or any(a.star for a in node.args):
        return None
    arguments = {"sync_period": "6", "slow_step_size": "0.5"}
    for index, argument in enumerate(node.args):
        key = argument.keyword.value if argument.keyword else ("optimizer", *arguments, "name")[index]
        if key in arguments:
            arguments[key] = reading.text(argument.value)
    return {"lookahead": Value(f"{{{', '.join(f'{key!r}: {text}' for key, text in arguments.items())}}}")}


def _of_new(arguments: Mapping[str, Value]) -> Mapping[str, Value] | None:
    dynamic, first = arguments.get("dynamic", Value.of(True)), arguments.get("initial_scale", Value.of(None))
    steps = arguments.get("dynamic_growth_steps", Value.of(None))
    if dynamic.literal is False and first.literal is not None:
        return {"loss_scale": first}
    if dynamic.literal is not True or first.literal not in (None, FIRST_SCALE):
        return None
    growth_steps = {"loss_scale_growth_steps": steps} if steps.literal not in (None, 2000) else {}
    return {"loss_scale": Value.of("dynamic"), **growth_steps}


def _of_old(arguments: Mapping[str, Value]) -> Mapping[str, Value] | None:
    scale = arguments.get("loss_scale", Value.of("dynamic"))
    is_number = isinstance(scale.literal, (int, float)) and scale.literal > 0
    is_supported = set(arguments) <= {"loss_scale"} and (scale.literal == "dynamic" or is_number)
    return {"loss_scale": Value.of(scale.literal)} if is_supported else None


def _into_constructor(reading: Reading, node: cst.Call, cls: str, scaling: Mapping[str, Value]) -> None:
    """Turn the wrapper into arguments of the inner optimizer, if that is created right there."""
    text = ", ".join(f"{key}={value.text}" for key, value in scaling.items())
    inner = _inner(node)
    if not isinstance(inner, cst.Call) or not reading.is_optimizer(inner):
        reading.add(node, BY_HAND, f"leave it out, and create the optimizer with {text}")
        return
    edit = reading.edits.get(inner)
    new = _merged(edit(inner), scaling) if edit is not None else None
    if new is None:
        reading.add(node, BY_HAND, f"once the optimizer in it is one of optim: leave it out, and give that {text}")
        return
    reading.entries = [(at, finding) for at, finding in reading.entries if at is not inner]  # this finding covers both
    reading.edits[node] = lambda updated: _merged(_inner(cst.ensure_type(updated, cst.Call)), scaling) or updated
    is_rewrite = cls == "enable_mixed_precision_graph_rewrite"
    note = "the optimizer does it itself" if cls == "Lookahead" else "the optimizer scales its losses itself"
    message = POLICY if is_rewrite else note
    reading.add(node, DIFFERS if is_rewrite else REWRITTEN, message, reading.text(new))


def _merged(new: object, scaling: Mapping[str, Value]) -> cst.Call | None:
    """The new optimizer, in `for_keras` or not, with the loss scale; None for other expressions."""
    if not isinstance(new, cst.Call):
        return None
    if names.dotted(new.func).endswith(".for_keras"):
        first = new.args[0]
        return new.with_changes(args=[first.with_changes(value=_with(first.value, scaling)), *new.args[1:]])
    return _with(new, scaling)


def _with(call: cst.BaseExpression, scaling: Mapping[str, Value]) -> cst.Call:
    text = ", ".join(f"{key}={value.text}" for key, value in scaling.items())
    arguments = cst.ensure_type(cst.parse_expression(f"f({text})"), cst.Call).args
    new = cst.ensure_type(call, cst.Call)
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return new.with_changes(args=[*(a.with_changes(comma=comma) for a in new.args), *arguments])


def _around_new(reading: Reading, node: cst.Call, scaling: Mapping[str, Value]) -> None:
    if scaling["loss_scale"].literal != "dynamic":
        reading.add(node, BY_HAND, "the class there is always dynamic; optim has a constant loss_scale")
    elif any(_is_dynamic(i, a) for i, a in enumerate(node.args)):
        reading.edits[node] = _kept_arguments
        reading.add(node, REWRITTEN, "it is always dynamic", reading.text(_kept_arguments(node)))
    else:
        reading.add(node, SAME, "it accepts the new optimizer")


def _is_dynamic(index: int, argument: cst.Arg) -> bool:
    return argument.keyword.value == "dynamic" if argument.keyword else index == 1


def _kept_arguments(updated: cst.CSTNode) -> cst.CSTNode:
    call = cst.ensure_type(updated, cst.Call)
    kept = [a for i, a in enumerate(call.args) if not _is_dynamic(i, a)]
    return call.with_changes(args=[*kept[:-1], kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)])
