"""Rewrite uses of an optimizer class other than calls: under another name, in a table, in `functools.partial`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from migrate.code import calls, names, targets
from migrate.code.calls import Outcome
from migrate.code.findings import BY_HAND, DIFFERS, REWRITTEN, SAME
from migrate.code.places import constructors
from migrate.code.program import Reading
from migrate.code.targets import Target

SUBCLASS = "a subclass: write its rule as optim.Rule, or build and update_step of optim.Optimizer"
HANDED_ON = "the class is passed on, so its arguments are elsewhere: call the target's there"
KEPT_BASES = {"keras.optimizers.Optimizer", "tensorflow.keras.optimizers.Optimizer"}
"""The base class has this name in Keras 3 too, and `optim.for_keras` returns an instance."""
PARTIAL = "functools.partial"


def look(reading: Reading, node: cst.Name | cst.Attribute) -> None:
    """Look at a class that is not called here."""
    canonical_names = reading.names.of(node)
    if not canonical_names or not all(map(_is_class, canonical_names)):
        return
    if node in reading.edits or (
        reading.target == targets.TF_KERAS and all(n.startswith("tf_keras.") for n in canonical_names)
    ):
        return
    parent = reading.parent(node)
    if isinstance(parent, (cst.Attribute, cst.ImportAlias, cst.ImportFrom, cst.Import, cst.Annotation)):
        return
    if isinstance(parent, cst.Call) and parent.func is node:
        return
    site = _call_around(reading, parent)
    if isinstance(site, cst.ClassDef):
        reading.add(node, BY_HAND, SUBCLASS, old=f"class {site.name.value}({reading.text(node)})")
    elif isinstance(site, cst.Call) and names.dotted(site.func) in ("isinstance", "issubclass"):
        is_kept = reading.target != targets.TF_KERAS and set(reading.names.sources(node)) <= KEPT_BASES
        reading.add(node, *((SAME,) if is_kept else (BY_HAND, _of_instance(reading, site, canonical_names))))
    elif isinstance(site, cst.Call) and PARTIAL in reading.names.of(site.func) and site.args[0] is parent:
        _partial(reading, node, site)
    elif all(map(names.WRAPPERS.search, canonical_names)) and _naming_statement(reading, node) is parent:
        return  # found where it is called
    elif not _under_a_name(reading, node):
        reading.add(node, BY_HAND, HANDED_ON)


def _is_class(name: str) -> bool:
    is_wrapper = bool(names.FRAMEWORK.match(name) and names.WRAPPERS.search(name))
    return bool(names.old_class(name) or names.is_foreign(name) or names.BASES.match(name) or is_wrapper)


def _call_around(reading: Reading, parent: cst.CSTNode | None) -> cst.CSTNode | None:
    """The call or class with this argument, also in a tuple: `isinstance(o, (str, Optimizer))`."""
    if isinstance(parent, cst.Element) and isinstance(reading.parent(parent), cst.Tuple):
        above = reading.parent(reading.parent(parent) or parent)
        call = reading.parent(above) if isinstance(above, cst.Arg) else None
        is_question = isinstance(call, cst.Call) and names.dotted(call.func) in ("isinstance", "issubclass")
        return call if is_question else None
    return reading.parent(parent) if isinstance(parent, cst.Arg) else None


def _of_instance(reading: Reading, call: cst.Call, canonical_names: frozenset[str]) -> str:
    first = reading.text(call.args[0].value)
    cls = min(canonical_names).rsplit(".", 1)[-1]
    if any(map(names.BASES.match, canonical_names)):
        return "test for the target's Optimizer; TFOptimizer is gone, and for_keras returns Keras's Optimizer"
    if reading.target != targets.OPTIM:
        return f"test for the class of the target, {reading.target.replace('-', '_')}.optimizers.{cls}"
    if any(map(names.WRAPPERS.search, canonical_names)):
        return f"optim has no {cls}: what it did is an argument of its optimizers, such as loss_scale="
    return f"the result of for_keras wraps it: isinstance(getattr({first}, 'inner', {first}), optim.{cls})"


def _under_a_name(reading: Reading, node: cst.CSTNode) -> bool:
    """Handle `cls = Adam` and `table = {"adam": Adam, "sgd": SGD}`, if these are only called."""
    statement = _naming_statement(reading, node)
    if statement is None:
        return False
    name = names.dotted(statement.targets[0].target)
    scope = reading.facts.bound(name, reading.scope(statement)) if name else None
    values = reading.facts.values.get((scope, name), []) if scope is not None else []
    classes = [part for value in values for part in _classes_in(value)]
    sites = reading.usage.calls.get(name, []) if name else []
    uses = reading.usage.plain[name]
    known = [(part, reading.names.of(part)) for part in classes if part is not None]
    if None in classes or uses != len(values) + len(sites) or not sites or not all(len(f) == 1 for _, f in known):
        return False
    return _rewrite(reading, [(part, next(iter(f))) for part, f in known], sites)


def _naming_statement(reading: Reading, node: cst.CSTNode) -> cst.Assign | None:
    parent = reading.parent(node)
    at = reading.parent(parent) if isinstance(parent, cst.DictElement) else parent
    at = reading.parent(at) if isinstance(at, cst.Dict) else at
    return at if isinstance(at, cst.Assign) and len(at.targets) == 1 else None


def _classes_in(value: cst.BaseExpression | None) -> Sequence[cst.BaseExpression | None]:
    if isinstance(value, cst.Dict):
        return [element.value if isinstance(element, cst.DictElement) else None for element in value.elements]
    return [value]


def _rewrite(reading: Reading, classes: Sequence[tuple[cst.CSTNode, str]], sites: Sequence[cst.Call]) -> bool:
    """Rewrite both ends, if every call means the same for every class, and a class the same for every call."""
    rows: list[tuple[cst.Call, list[Outcome]]] = []
    for site in sites:
        site_answers = [reading.one(site, reading.outcomes(name, site)) for _, name in classes]
        if any(a is None or a.target is None or a.name.startswith("tensorflow.train.") for a in site_answers):
            return False
        rows.append((site, [a for a in site_answers if a is not None]))
    if any(len({_call_arguments(answer) for answer in answers}) > 1 for _, answers in rows):
        return False
    for index, (_, name) in enumerate(classes):
        if len({_added(answers[index]) for _, answers in rows}) > 1 or not names.old_class(name):
            return False
    for index, (node, _) in enumerate(classes):
        _replace_class(reading, node, [answers[index] for _, answers in rows])
    for site, answers in rows:
        _replace_call(reading, site, answers[0], classes[0][0])
    return True


def _split(answer: Outcome) -> tuple[dict[str, str], dict[str, str]]:
    """Split a result into the call's arguments and the class's additional ones."""
    assert answer.target is not None
    call_arguments = {
        k: v.text for k, v in answer.target.arguments.items() if answer.target.origin.get(k) in answer.bound
    }
    return call_arguments, {k: v.text for k, v in answer.target.arguments.items() if k not in call_arguments}


def _call_arguments(answer: Outcome) -> tuple[tuple[str, str], ...]:
    return tuple(_split(answer)[0].items())


def _added(answer: Outcome) -> tuple[object, ...]:
    assert answer.target is not None
    return (answer.target.name, *_split(answer)[1].items())


def _replace_class(reading: Reading, node: cst.CSTNode, answers: Sequence[Outcome]) -> None:
    first = answers[0].target
    assert first is not None
    module = reading.optim if reading.target == targets.OPTIM else first.module
    class_arguments = _split(answers[0])[1]
    text = f"{module}.{first.name}"
    if class_arguments:
        text = f"{PARTIAL}({text}, {', '.join(f'{k}={v}' for k, v in class_arguments.items())})"
        reading.imports.add("import functools")
    reading.edits[node] = lambda updated: cst.parse_expression(text)
    constructors.import_target(reading, module)
    reading.replaced.add(reading.text(node).split(".")[0])
    reasons = list(dict.fromkeys(reason for a in answers if a.target for reason in a.target.reasons))
    reading.add(node, DIFFERS if reasons else REWRITTEN, "; ".join(reasons), text)


def _replace_call(reading: Reading, site: cst.Call, answer: Outcome, cls: cst.CSTNode) -> None:
    assert answer.target is not None
    call_arguments = _split(answer)[0]
    target: Target = replace(
        answer.target, arguments={k: v for k, v in answer.target.arguments.items() if k in call_arguments}
    )
    edit = calls.replacement(site, target, answer.bound, reading.text(site.func), None)
    is_optim = reading.target == targets.OPTIM
    keras_arguments = [cst.Arg(cst.parse_expression(text)) for text in constructors.keras_argument(reading, cls)]

    def wrapped(updated: cst.CSTNode) -> cst.CSTNode:
        new = edit(cst.ensure_type(updated, cst.Call))
        if not is_optim:
            return new
        return cst.Call(cst.parse_expression(f"{reading.optim}.for_keras"), [cst.Arg(new), *keras_arguments])

    reading.edits[site] = wrapped
    reading.add(site, REWRITTEN, "", " ".join(reading.text(wrapped(site)).split()))


def _partial(reading: Reading, node: cst.Name | cst.Attribute, call: cst.Call) -> None:
    """Rewrite `functools.partial(SGD, lr=0.1)`, if it gets no other arguments later."""
    class_call = cst.Call(node, call.args[1:])
    classes = reading.names.of(node)
    answer = reading.one(call, reading.outcomes(next(iter(classes)), class_call)) if len(classes) == 1 else None
    if answer is None or answer.target is None or answer.name.startswith("tensorflow.train."):
        reading.add(call, BY_HAND, HANDED_ON if answer is None or answer.target else str(answer.error))
        return
    module = reading.optim if reading.target == targets.OPTIM else answer.target.module
    callee = f"{module}.{answer.target.name}"
    new = reading.text(calls.replacement(class_call, answer.target, answer.bound, callee, None)(class_call))
    if reading.target == targets.OPTIM:
        new = f"{reading.optim}.for_keras({', '.join([new, *constructors.keras_argument(reading, node)])})"
    text = f"lambda: {new}"
    if not _called_without_arguments(reading, call):
        reading.add(call, BY_HAND, f"its later arguments are not visible here: make it {text}, with those arguments")
        return
    reading.edits[call] = lambda updated: cst.parse_expression(text)
    constructors.import_target(reading, module)
    reading.replaced |= {reading.text(node).split(".")[0], reading.text(call.func).split(".")[0]}
    reading.add(call, DIFFERS if answer.target.reasons else REWRITTEN, "; ".join(answer.target.reasons), text)


def _called_without_arguments(reading: Reading, value: cst.CSTNode) -> bool:
    name = reading.assigned_name(value)
    sites = [call for call in reading.usage.calls.get(name, []) if not call.args]
    uses = reading.usage.plain[name]
    return bool(sites) and "." not in name and uses == len(sites) + 1
