"""Rewrite calls of optimizer classes."""

from __future__ import annotations

import re

import libcst as cst

from migrate.code import calls, names, targets
from migrate.code.calls import Outcome
from migrate.code.facts import Scope
from migrate.code.findings import BY_HAND, DIFFERS, REWRITTEN, SAME, UNSURE
from migrate.code.meanings import Value
from migrate.code.places import elsewhere, sharing, wrappers
from migrate.code.program import Reading
from migrate.code.releases import Release
from migrate.code.scopes import dotted
from migrate.code.usage import is_compile
from migrate.releases import modules

ADDONS = ("tensorflow_addons", "transformers", "official")
GRAPH_LOOP = (
    "a step of a graph: tf.compat.v1 of TensorFlow 2 still runs it unchanged; for {target}, make it"
    " {call} and make the step in a tf.function with tf.GradientTape and apply_gradients"
)


NO_TF_OPTIMIZER = "there is no TFOptimizer now: give compile an optimizer of the target instead of one of tf.train"
UNSEEN = (
    "where it makes its steps is not visible here: for gradients of a tf.GradientTape and apply_gradients, without"
    " global_step, make it {call}; a graph program can stay unchanged with tf.compat.v1"
)
SHARED = (
    "several models are compiled with this one, which accepts only variables that it was built with now: once they are"
    " compiled, call {name}.build(a.trainable_variables + b.trainable_variables); old Keras kept slots for each model,"
    " which is the same if no variable is trained by two"
)
STEPPED = (
    "it steps the variables of several models, and accepts only variables that it was built with now: call"
    " {name}.build([{variables}]) before its first step"
)


PUBLIC = re.compile(r"^(?:tensorflow\.(?:compat\.v2\.)?)?(?:keras\.)?optimizers\.[A-Za-z]+$")
"""Full names of classes at their place in Keras 3, in lower case too."""
CHECKPOINT = re.compile(r"^tensorflow\.(?:train|contrib\.eager)\.Checkpoint$")


def look(reading: Reading, node: cst.Call) -> None:
    """Look at a call of an optimizer class, of a wrapper, or of a name that may be one."""
    if wrappers.is_wrapper(reading, node.func):
        return
    canonical_names = reading.names.of(node.func)
    classes = {n for n in canonical_names if names.old_class(n) or names.is_foreign(n)}
    if not classes:
        if canonical_names and all(name.endswith(".optimizers.TFOptimizer") for name in canonical_names):
            reading.add(node, BY_HAND, NO_TF_OPTIMIZER)
        elif reading.names.partly(node.func) and _looks_like_a_class(reading, node.func):
            reading.add(node, UNSURE, "the name is imported on one path and bound differently on another")
        return
    if len(classes) < len(canonical_names):
        reading.add(node, UNSURE, f"it may be {' or '.join(sorted(canonical_names))}, of which not all are known")
        return
    answer = reading.one(node, [o for name in sorted(classes) for o in reading.outcomes(name, node)])
    if answer is None:
        return
    if answer.target is None:
        reading.add(node, BY_HAND, f"{_class_in_release(answer.name, answer.release)}: {answer.error}")
    else:
        _write(reading, node, answer.name, answer)


def _class_in_release(name: str, release: Release) -> str:
    return name if names.is_foreign(name) else f"{name} of {release}"


def _write(reading: Reading, node: cst.Call, name: str, answer: Outcome) -> None:
    target = answer.target
    assert target is not None
    use = _use_of_optimizer(reading, node)
    callee = new_callee(reading, node, target, name)
    _place_schedule(reading, target, callee)
    proposal = f"{callee}({', '.join(f'{k}={v.text}' for k, v in target.arguments.items())})"
    if name.startswith(("tensorflow.train.", "tensorflow.contrib.")) and use in ("graph", "unknown"):
        seen = use == "graph" or reading.is_graph
        reading.add(node, BY_HAND, (GRAPH_LOOP if seen else UNSEEN).format(target=target.module, call=proposal))
        return
    if use == "wrapped" and reading.target == targets.OPTIM and not wrappers.takes(reading, node):
        reading.add(
            node, BY_HAND, f"its wrapper does not accept an optimizer of optim: unwrap it, and make it {proposal}"
        )
        return
    if is_current(reading, name, answer):
        if not target.reasons:
            reading.add(node, SAME)
        else:
            reading.add(node, DIFFERS, "; ".join(target.reasons))
        return
    wrapped = None
    is_keras = "keras" in name or name.startswith(ADDONS)
    if reading.target == targets.OPTIM and (use == "compiled" or (is_keras and ".dtensor." not in name)):
        wrapped = keras_argument(reading, node.func)
    edit = calls.replacement(node, target, answer.bound, callee, wrapped)
    new = reading.text(edit(node))
    if "legacy" not in target.module:
        target.reasons += _advice_for_sharing(reading, node, use)
    message = "; ".join([*target.reasons, *target.notes])
    if new == reading.text(node):
        reading.add(node, DIFFERS if target.reasons else SAME, message)
        return
    reading.edits[node] = edit  # type: ignore[assignment]
    _import(reading, callee, node)
    reading.replaced.add(names.dotted(node.func).split(".")[0])
    reading.add(node, DIFFERS if target.reasons else REWRITTEN, message, " ".join(new.split()))


def _place_schedule(reading: Reading, target: targets.Target, callee: str) -> None:
    """Call a schedule for `decay` through the same module as the class, if the program has a name for that."""
    if not target.makes_schedule:
        return
    base = callee.rpartition(".")[0]
    if base.endswith(".optimizers"):
        rate = target.arguments["learning_rate"].text
        target.arguments["learning_rate"] = Value(base + rate.removeprefix(target.module))
    else:
        reading.imports.add(f"import {target.module.split('.')[0]}")


def is_current(reading: Reading, name: str, answer: Outcome) -> bool:
    """Whether a call is already one of the target's."""
    if reading.target == targets.TF_KERAS:
        return name.startswith("tf_keras.")
    old = names.old_class(name)
    is_newest = answer.release.generation == modules.GENERATION[modules.KERAS_3]
    current = is_newest and old is not None and old.generation is None
    return reading.target == targets.KERAS and current


def new_callee(reading: Reading, node: cst.Call, target: targets.Target, name: str) -> str:
    """The new function, through the program's name of the target's module if it has one."""
    if reading.target == targets.OPTIM:
        return f"{reading.optim}.{target.name}"
    text = names.dotted(node.func)
    sources = reading.names.sources(node.func)
    if reading.target == targets.KERAS and all(map(PUBLIC.match, sources)):
        if all(source.endswith(f".{target.name}") for source in sources):
            return text
        return f"{text.rpartition('.')[0]}.{target.name}" if "." in text else _whole(target)
    if reading.target == targets.KERAS and name.startswith("tensorflow") and text.startswith("tf."):
        return f"tf.keras.optimizers.{target.name}"
    return _whole(target)


def _whole(target: targets.Target) -> str:
    return f"{target.module}.{target.name}"


def _import(reading: Reading, callee: str, node: cst.Call) -> None:
    first = callee.split(".")[0]
    if callee == names.dotted(node.func) or (first == names.dotted(node.func).split(".")[0] and "." in callee):
        return
    import_target(reading, first)


def import_target(reading: Reading, module: str) -> None:
    """Import a module if the first part of its name is not bound."""
    first = module.split(".")[0]
    reading.imports.add(f"import optim as {first}" if first == "dtopt_optim" else f"import {first}")


def keras_argument(reading: Reading, cls: cst.CSTNode) -> list[str]:
    """Pass Keras to `optim.for_keras` if needed: `tf.keras` alone does not import the Keras that it finds."""
    text = names.dotted(cls)
    base, _, _ = text.rpartition(".optimizers.")
    return [base] if base and base.endswith("keras") and not reading.names.takes(base) and base == "tf.keras" else []


def _use_of_optimizer(reading: Reading, node: cst.Call) -> str:
    parent = reading.parent(node)
    if isinstance(parent, cst.Arg):
        call = reading.parent(parent)
        if isinstance(call, cst.Call):
            if isinstance(call.func, cst.Attribute) and call.func.attr.value == "compile":
                return "compiled"
            canonical_names = reading.names.of(call.func)
            if _makes_wrapper(reading, call) or (canonical_names and all(map(names.is_foreign, canonical_names))):
                return "wrapped"
        return "unknown"
    if isinstance(parent, cst.Attribute):
        return "graph" if parent.attr.value in ("minimize", "compute_gradients") else "unknown"
    return _use_of_name(reading, reading.assigned_name(node))


def _makes_wrapper(reading: Reading, call: cst.Call) -> bool:
    """Whether a call creates a wrapper around another optimizer, possibly of an unknown package."""
    return wrappers.is_wrapper(reading, call.func) or bool(elsewhere.unknown_class(reading, call.func))


def _use_of_name(reading: Reading, text: str) -> str:
    """The use by all uses of the name in the file: a compile, or only eager steps."""
    if not text:
        return "unknown"
    if text not in reading.uses:
        reading.uses[text] = _use_in_file(reading, text)
    return reading.uses[text]


def _use_in_file(reading: Reading, text: str) -> str:
    argument_calls = [c for c in reading.usage.arguments.get(text, []) if not _is_checkpoint(reading, c)]
    if any(_makes_wrapper(reading, call) for call in argument_calls):
        return "wrapped"
    if any(map(is_compile, argument_calls)):
        return "compiled"
    method_calls = reading.usage.methods.get(text, [])
    methods = {cst.ensure_type(call.func, cst.Attribute).attr.value for call in method_calls}
    has_escaped = bool(argument_calls) or text in reading.usage.returned
    if methods and methods <= {"apply_gradients"} and not has_escaped and reading.is_eager:
        return "eager"
    if "minimize" in methods and not has_escaped and all(map(_is_eager_minimize, method_calls)):
        return "eager"
    return "graph" if methods & {"minimize", "compute_gradients"} else "unknown"


def _is_checkpoint(reading: Reading, call: cst.Call) -> bool:
    """Whether a call saves any optimizer."""
    return any(map(CHECKPOINT.match, reading.names.of(call.func)))


def _is_eager_minimize(call: cst.Call) -> bool:
    first = call.args[0].value if call.args else None
    return cst.ensure_type(call.func, cst.Attribute).attr.value != "minimize" or isinstance(first, cst.Lambda)


def _advice_for_sharing(reading: Reading, node: cst.Call, use: str) -> list[str]:
    statement, name = reading.parent(node), reading.assigned_name(node)
    if statement is None or not name:
        return []
    if use == "compiled" and _is_shared_by_models(reading, node):
        return [SHARED.format(name=name)]
    variables = sharing.stepped(reading, name, statement)
    return [STEPPED.format(name=name, variables=", ".join(f"*{text}" for text in variables))] if variables else []


def _is_shared_by_models(reading: Reading, node: cst.Call) -> bool:
    statement, name = reading.parent(node), reading.assigned_name(node)
    home = reading.facts.bound(name, reading.scope(statement)) if statement is not None and name else None
    if home is None:
        return False
    if name not in reading.compiles:
        reading.compiles[name] = _compiles(reading, name)
    models, loops = reading.compiles[name].get(home, (set(), set()))
    return len(models) > len(reading.facts.values[home, name]) or bool(loops - {None, _loop(reading, node)})


def _compiles(reading: Reading, name: str) -> dict[Scope, tuple[set[object], set[cst.CSTNode | None]]]:
    """For each scope that binds a name: the models compiled with it, and the loops in which they change."""
    compiles: dict[Scope, tuple[set[object], set[cst.CSTNode | None]]] = {}
    for call in reading.usage.compiled_with(name):
        home = reading.facts.bound(name, reading.scope(call))
        if home is None:
            continue
        models, loops = compiles.setdefault(home, (set(), set()))
        models.add(dotted(_compiled_model(call)) or call)
        if _model_changes_in_loop(reading, call):
            loops.add(_loop(reading, call))
    return compiles


def _compiled_model(call: cst.Call) -> cst.BaseExpression:
    return cst.ensure_type(call.func, cst.Attribute).value


def _model_changes_in_loop(reading: Reading, call: cst.Call) -> bool:
    loop, model = _loop(reading, call), dotted(_compiled_model(call))
    if loop is None or not model:
        return loop is not None
    return model in reading.usage.bound_in(loop)


def _loop(reading: Reading, node: cst.CSTNode) -> cst.CSTNode | None:
    return reading.tree.enclosing(node, cst.For, cst.While)


def _looks_like_a_class(reading: Reading, node: cst.CSTNode) -> bool:
    last = names.dotted(node).rsplit(".", 1)[-1]
    return names.old_class(f"keras.optimizers.{last}") is not None
