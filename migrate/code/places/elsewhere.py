"""Report optimizers that are not recognisable: of other packages, by strings, through their module, from factories."""

from __future__ import annotations

import re

import libcst as cst

from migrate.code import names
from migrate.code.calls import Place
from migrate.code.findings import BY_HAND, UNSURE
from migrate.code.program import Reading
from migrate.code.scopes import dotted
from migrate.code.usage import is_compile
from optim.errors import DtoptError

ADD_ONS = re.compile(
    r"^(?:keras_(?:adamw|radam|adabound|lookahead|lamb|lr_multiplier|gradient_accumulation|swa|optimizers?)|adabelief_tf"
    r"|lookahead|radam|swa|gradient_accumulator|tf2?_?(?:adamw|radam|lion|optimizers?))\b"
)
"""Packages of optimizers for Keras."""
OTHER_FRAMEWORKS = re.compile(
    r"^(?:torch|pytorch\w*|jax|flax|optax|mxnet|gluon|paddle|chainer|sklearn|scipy|skopt|bayes_opt|optuna|hyperopt"
    r"|keras_?tuner|ray|nevergrad|ortools|onnxruntime|tvm|optim)\b"
)
"""Packages whose optimizers are for something else, and `optim` itself."""
LOOKS_LIKE_ONE = re.compile(
    r"^(?:[A-Z]\w*)?(?:Adam|AdamW|SGD|SGDW|RMSprop|Adagrad|Adadelta|Nadam|Adamax|Ftrl|LAMB|Lamb|LARS|Lion|NovoGrad|Yogi"
    r"|AdaBelief|AdaBound|RAdam|Lookahead|SWA|Muon|Adafactor)(?:W|V\d|Optimizer)?$|^[A-Z]\w*Optimizer(?:V\d)?$"
)
COUNTERPARTS = {"RAdam": "RectifiedAdam", "LAMB": "Lamb", "Lookahead": "lookahead=", "SWA": "stochastic_average="}
EXTENDS = "tensorflow_addons.optimizers.extend_with_decoupled_weight_decay"
BY_KEYWORD = re.compile(r"(?:^|_)optimizer$")
BY_NAME = "a name means the installed release's class and defaults: pass an optimizer that the code creates"
MODULE = "the class of this module is chosen elsewhere: its arguments have new names, so call the target's class"


def look_at_call(reading: Reading, node: cst.Call) -> None:
    """Look at a call whose optimizer comes from a string, a factory or another package."""
    canonical_names = reading.names.of(node.func)
    if dotted(node.func) in ("eval", "exec") and "optimizers" in reading.text(node):
        reading.add(node, BY_HAND, MODULE)
    elif EXTENDS in canonical_names:
        reading.add(node, BY_HAND, "its classes follow optim's with weight_decay=: use those in its calls")
    elif (factory := _factory(reading, node)) is not None:
        _extended(reading, node, factory)
    elif not canonical_names or not (is_compile(node) or any(map(names.LOOKUPS.match, canonical_names))):
        _by_keyword(reading, node, bool(canonical_names) and all(map(names.FRAMEWORK.match, canonical_names)))
        _of_another_package(reading, node)


def _by_keyword(reading: Reading, node: cst.Call, is_framework: bool) -> None:
    if is_compile(node) or not reading.has_framework:
        return
    for argument in node.args:
        text = argument.value.evaluated_value if isinstance(argument.value, cst.SimpleString) else None
        is_named = argument.keyword is not None and BY_KEYWORD.search(argument.keyword.value)
        if is_named and isinstance(text, str) and text.lower() in names.STRINGS:
            message = BY_NAME if is_framework else f"if it is the name of a Keras optimizer: {BY_NAME}"
            reading.add(argument.value, BY_HAND if is_framework else UNSURE, message)


def _of_another_package(reading: Reading, node: cst.Call) -> None:
    source = unknown_class(reading, node.func)
    if not source:
        return
    plain = source.rpartition(".")[2].removesuffix("Optimizer")
    near = COUNTERPARTS.get(plain, plain if plain.lower() in names.STRINGS else "")
    rule = f"optim has {near} to compare its rule with" if near else "write its rule as an optim.Rule"
    question = "" if ADD_ONS.match(source) else "is it an optimizer of Keras? then: "
    reading.add(node, UNSURE if question else BY_HAND, f"{question}{source} is not known here: {rule}")


def unknown_class(reading: Reading, function: cst.BaseExpression) -> str:
    """The full name of another package's class with an optimizer's name, else empty.

    The program's own classes are reported at their definition.
    """
    if reading.callee(function):
        return ""
    value = reading.facts.only_value(function, reading.scope(function)) if isinstance(function, cst.Name) else None
    for source in (reading.names.sources(value) if value is not None else []) or reading.names.sources(function):
        is_own = source.startswith(".") or reading.has_beside(source.partition(".")[0])
        is_other = names.FRAMEWORK.match(source) or OTHER_FRAMEWORKS.match(source)
        if LOOKS_LIKE_ONE.match(source.rpartition(".")[2]) and not is_own and not is_other:
            return source if ADD_ONS.match(source) or reading.has_framework else ""
    return ""


def _factory(reading: Reading, node: cst.Call) -> cst.Call | None:
    factory = node.func
    if isinstance(factory, cst.Name):
        factory = reading.facts.only_value(factory, reading.scope(node)) or factory
    return factory if isinstance(factory, cst.Call) and EXTENDS in reading.names.of(factory.func) else None


def _extended(reading: Reading, node: cst.Call, factory: cst.Call) -> None:
    """Report a class with decoupled weight decay; for Adam and SGD it is AdamW and SGDW of Addons."""
    bases = reading.names.of(factory.args[0].value) if factory.args else frozenset()
    last = next(iter(bases)).rpartition(".")[2] if len(bases) == 1 else ""
    if last not in ("Adam", "SGD"):
        reading.add(node, BY_HAND, "make it optim's class with weight_decay= and learning_rate_in_weight_decay=False")
        return
    same = f"tensorflow_addons.optimizers.{last}W"
    answers = reading.outcomes(same, node, Place("optim"))
    target = next((answer.target for answer in answers if answer.target is not None), None)
    error: DtoptError | None = answers[0].error
    text = f"{target.name}({', '.join(f'{k}={v.text}' for k, v in target.arguments.items())})" if target else ""
    reading.add(node, BY_HAND, f"it is {same}: make it optim.{text}" if target else f"it is {same}: {error}")


def look_at_module(reading: Reading, node: cst.Name | cst.Attribute) -> None:
    """Report a module of optimizers that is passed on: `getattr(keras.optimizers, name)`, `opts = keras.optimizers`."""
    canonical_names = reading.names.of(node)
    if not canonical_names or not all(map(names.is_module, canonical_names)):
        return
    parent = reading.parent(node)
    if isinstance(parent, cst.Attribute) and (parent.attr is node or parent.attr.value != "__dict__"):
        return
    call = reading.parent(parent) if isinstance(parent, cst.Arg) else None
    if isinstance(call, cst.Call) and reading.names.of(call):
        return  # getattr(keras.optimizers, "Adam")
    if isinstance(parent, (cst.ImportAlias, cst.ImportFrom, cst.Import, cst.AsName)) or _is_in_import(reading, node):
        return
    if isinstance(parent, cst.AssignTarget) or (isinstance(parent, cst.Assign) and _is_followed(reading, parent)):
        return
    reading.add(call or node, BY_HAND, MODULE)


def _is_followed(reading: Reading, statement: cst.Assign) -> bool:
    """Whether `opts = keras.optimizers` gives the module another name, which is followed."""
    return len(statement.targets) == 1 and bool(reading.names.of(statement.targets[0].target))


def _is_in_import(reading: Reading, node: cst.CSTNode) -> bool:
    at = reading.parent(node)
    while isinstance(at, cst.Attribute):
        at = reading.parent(at)
    return isinstance(at, (cst.ImportAlias, cst.ImportFrom))
