"""Read constructor calls: their arguments, their meaning, and the call that replaces them."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import libcst as cst

from migrate.code import addons, differences, facts, meanings, names, signatures, targets
from migrate.code.differences import Source
from migrate.code.meanings import Old, Value
from migrate.code.releases import KERAS, TENSORFLOW, TF_KERAS, Release
from migrate.code.releases import release as release_of
from migrate.code.schedules import Schedule
from migrate.code.signatures import Signature
from migrate.code.targets import Target
from migrate.releases import modules
from optim.errors import DtoptError, UnsupportedError

MESH_ARGUMENTS = ("mesh", "gradients_clip_option", "ema_option")
"""Arguments of `tf.keras.dtensor.experimental.optimizers` that are those of `optim`."""
Bound = dict[str, int]
"""Old argument name -> its place in the call."""


class DoesNotFitError(UnsupportedError):
    """A call that this release would have refused."""


@dataclass(frozen=True)
class Place:
    """The context of a call that affects its translation. `by_name`: it is a string in `compile`."""

    target: str
    rate_is_set: bool = False
    has_embeddings: bool = False
    schedule: Schedule | None = None
    by_name: bool = False


@dataclass
class Outcome:
    """The result for a call under one release: its `target`, or the `error` that prevents it."""

    name: str
    release: Release
    target: Target | None = None
    bound: Bound = field(default_factory=dict)
    error: DtoptError | None = None

    @property
    def text(self) -> str:
        """A text that is equal for equal outcomes."""
        if self.target is None:
            return f"! {self.error}"
        arguments = sorted((k, v.literal if v.known else v.text) for k, v in self.target.arguments.items())
        return f"{self.target.module}.{self.target.name}({arguments})"


def signature(name: str, old: Old | None, release: Release) -> Signature | None:
    """The constructor of a class, `name` canonical, in a release."""
    module, _, cls = name.rpartition(".")
    if module == signatures.ADDONS:
        return next(iter(signatures.of_addons(cls, release.version)), None)
    if old is None:
        return signatures.of(
            module, cls, None, modules.ALONE[addons.KERAS_CONTRIB if module == addons.KERAS_CONTRIB else addons.ADDONS]
        )
    generation = old.generation or release.generation
    module, version = old.module, release.version
    if generation == modules.GENERATION[modules.KERAS_3]:
        module, version = modules.MODULE[modules.KERAS_3], "3.15.1"
    elif old.package == TF_KERAS:
        version = "2.21.0"
    elif module.startswith("keras.") and release.name == TENSORFLOW:
        module = f"tensorflow.{module}"
    elif module == "tensorflow.train" and release.name != TENSORFLOW:
        version = "1.15.5"
    return signatures.of(module, old.name, version, generation)


def bind(arguments: Sequence[cst.Arg], constructor: Signature) -> Bound:
    """The arguments by name. Raises DoesNotFitError."""
    bound: Bound = {}
    for index, argument in enumerate(arguments):
        if argument.star:
            raise UnsupportedError(
                f"its arguments are in {argument.star}...: write them out, so that each can get its new name"
            )
        if argument.keyword is not None:
            name = argument.keyword.value
        elif index < constructor.positional:
            name = constructor.names[index]
        else:
            raise DoesNotFitError(f"it takes {constructor.positional} positional arguments, and {index + 1} are given")
        if not constructor.takes(name):
            raise DoesNotFitError(f"it had no argument {name}")
        bound[name] = index
    return bound


def outcome(
    name: str, call: cst.Call, release: Release, constructor: Signature | None, place: Place, module: cst.Module
) -> Outcome:
    """The result for a call if the program is for this release. `constructor`: of its class there."""
    old = names.old_class(name)
    result = Outcome(name, replace(release, addons=constructor.since) if constructor is not None else release)
    try:
        if constructor is None:
            raise DoesNotFitError(f"{release} has no {name}")
        result.bound = bind(call.args, constructor)
        arguments = {key: facts.literal(call.args[index].value, module) for key, index in result.bound.items()}
        _required(constructor, arguments)
        arguments = {**_old_defaults(name, constructor), **arguments}
        result.target = target_call(name, old, arguments, release, place)
    except DtoptError as error:
        result.error = error
    return result


def outcomes(
    name: str, call: cst.Call, by_package: Mapping[str, Sequence[Release]], place: Place, module: cst.Module
) -> list[Outcome]:
    """The results for a call under each release that fits it. Releases that refuse it count only if all do."""
    fitting = releases_of(name, by_package)
    if name.startswith(f"{signatures.ADDONS}."):
        fitting = [r for r in fitting if signatures.has_addons(r.version)] or fitting
    every = [
        outcome(name, call, r, constructor, place, module) for r in fitting for constructor in _constructors(name, r)
    ]
    if all(isinstance(o.error, DoesNotFitError) for o in every) and name.startswith(f"{signatures.ADDONS}."):
        # Addons only warns of a TensorFlow that it does not know
        constructors = signatures.of_addons(name.rpartition(".")[2], None)
        every += [outcome(name, call, fitting[-1], constructor, place, module) for constructor in constructors]
    return [o for o in every if not isinstance(o.error, DoesNotFitError)] or every


def _constructors(name: str, release: Release) -> Sequence[Signature | None]:
    module, _, cls = name.rpartition(".")
    if module == signatures.ADDONS:
        return signatures.of_addons(cls, release.version)
    return [signature(name, names.old_class(name), release)]


def _old_defaults(name: str, constructor: Signature) -> dict[str, Value]:
    module, _, cls = name.rpartition(".")
    if module != signatures.ADDONS:
        return {}
    last = signatures.of_addons(cls, None)[0]
    changed = {k: v for k, v in constructor.parameters if k in last.names and v != last.default(k)}
    return {key: Value.of(value) for key, value in changed.items() if value is not signatures.NOTHING}


def _required(constructor: Signature, arguments: Mapping[str, Value]) -> None:
    missing = [n for n, default in constructor.parameters if default is signatures.NOTHING and n not in arguments]
    if missing:
        raise DoesNotFitError(f"it needs {', '.join(missing)}")


def target_call(name: str, old: Old | None, arguments: Mapping[str, Value], release: Release, place: Place) -> Target:
    """The target's call. Raises DtoptError if the target cannot have one."""
    mesh_arguments = {key: arguments[key] for key in MESH_ARGUMENTS if key in arguments}
    arguments = {key: value for key, value in arguments.items() if key not in mesh_arguments}
    meaning = meanings.of(old, arguments, release) if old is not None else addons.meaning(name, arguments, release)
    generation = (old.generation if old else modules.ALONE[addons.ADDONS]) or release.generation
    rendered = targets.render(
        meaning, place.target, rate_is_set=place.rate_is_set, generation=generation, by_name=place.by_name
    )
    source = Source(meaning, generation, release.versions, place.schedule, place.has_embeddings)
    for candidate in rendered:
        candidate.reasons += differences.reasons(source, candidate.module)
        if candidate.module == targets.OPTIM:
            candidate.arguments.update(differences.keywords(source))
    target = min(rendered, key=lambda candidate: len(candidate.reasons))
    if mesh_arguments and place.target != targets.OPTIM:
        raise UnsupportedError(
            f"{', '.join(mesh_arguments)} is of DTensor's optimizers, which optim has and Keras has no longer"
        )
    target.arguments.update(mesh_arguments)
    target.origin = {**target.origin, **{key: key for key in mesh_arguments}}
    return target


def package_of(name: str) -> str:
    """The package whose release defines a class."""
    old = names.old_class(name)
    if old:
        return old.package
    return KERAS if name.startswith(addons.KERAS_CONTRIB) else TENSORFLOW


def _takes(name: str, old: Old, node: cst.Call, release: Release) -> bool:
    constructor = signature(name, old, release)
    try:
        if constructor is not None:
            bind(node.args, constructor)
    except DoesNotFitError:
        return False
    except UnsupportedError:
        return True
    return constructor is not None


def narrowed(
    calls: Sequence[cst.Call], module_names: names.Names, releases: Mapping[str, Sequence[Release]]
) -> dict[str, list[Release]]:
    """The releases that accept all calls in a program. One unknown argument excludes a release for the whole file."""
    left = {package: list(fitting) for package, fitting in releases.items()}
    for node in calls:
        canonical_names = module_names.of(node.func)
        name = next(iter(canonical_names)) if len(canonical_names) == 1 else ""
        old = names.old_class(name)
        if old is None or old.generation is not None or old.package not in left:
            continue
        fitting = [r for r in left[old.package] if _takes(name, old, node, r)]
        left[old.package] = fitting or left[old.package]
    return left


def releases_of(name: str, by_package: Mapping[str, Sequence[Release]]) -> Sequence[Release]:
    package = package_of(name)
    if package == TF_KERAS:
        return (release_of(KERAS, "2.21.0", modules.GENERATION[modules.TF_KERAS]),)
    return by_package[package]


def replacement(
    call: cst.Call, target: Target, bound: Bound, callee: str, wrapped: Sequence[str] | None
) -> Callable[[cst.Call], cst.Call | cst.BaseExpression]:
    """Return a function from the call, after its inner parts are rewritten, to its replacement.

    Args:
      callee: the new function's text. wrapped: None, or the arguments after the optimizer of `optim.for_keras`.
    """
    old_of_index = {index: name for name, index in bound.items()}
    new_of_old = {old: new for new, old in target.origin.items() if new in target.arguments}

    def edit(updated: cst.Call) -> cst.BaseExpression:
        kept: list[cst.Arg] = []
        written: set[str] = set()
        for index, argument in enumerate(updated.args):
            new = new_of_old.get(old_of_index[index])
            if new is None:
                continue
            value = target.arguments[new]
            changed = value.text != _text(call.args[index].value)
            node = expression(value.text) if changed else argument.value
            positional = argument.keyword is None and new == "learning_rate" and not kept
            kept.append(_argument(argument, None if positional else new, node))
            written.add(new)
        for new, value in target.arguments.items():
            if new not in written:
                kept.append(_added(new, value.text, kept))
        result = updated.with_changes(func=expression(callee), args=_closed(kept, updated.args))
        if wrapped is None:
            return result
        keras_arguments = [cst.Arg(cst.parse_expression(text)) for text in wrapped]
        return cst.Call(
            expression(FOR_KERAS.get(callee.split(".")[0], "optim.for_keras")), [cst.Arg(result), *keras_arguments]
        )

    return edit


FOR_KERAS: dict[str, str] = {"dtopt_optim": "dtopt_optim.for_keras"}
_EMPTY = cst.Module([])
_NO_SPACES = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def expression(text: str) -> cst.BaseExpression:
    """Parse an expression. Dotted names are built directly, which is much faster."""
    parts = text.split(".")
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        return cst.parse_expression(text)
    node: cst.BaseExpression = cst.Name(parts[0])
    for part in parts[1:]:
        node = cst.Attribute(node, cst.Name(part))
    return node


def _text(node: cst.CSTNode) -> str:
    return _EMPTY.code_for_node(node)


def _argument(old: cst.Arg, name: str | None, value: cst.BaseExpression) -> cst.Arg:
    if name is None:
        return old.with_changes(value=value, keyword=None, equal=cst.MaybeSentinel.DEFAULT)
    equal = old.equal if isinstance(old.equal, cst.AssignEqual) else _NO_SPACES
    return old.with_changes(value=value, keyword=cst.Name(name), equal=equal)


def _added(name: str, text: str, before: Sequence[cst.Arg]) -> cst.Arg:
    return cst.Arg(expression(text), cst.Name(name), equal=_NO_SPACES)


def _closed(new: list[cst.Arg], old: Sequence[cst.Arg]) -> list[cst.Arg]:
    """Separate all by commas, and end as before."""
    if not new:
        return []
    between = next(
        (a.comma for a in old[:-1] if isinstance(a.comma, cst.Comma)),
        cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")),
    )
    result = [
        a if isinstance(a.comma, cst.Comma) and a is not old[-1] else a.with_changes(comma=between) for a in new[:-1]
    ]
    last = old[-1].comma if old else cst.MaybeSentinel.DEFAULT
    space = old[-1].whitespace_after_arg if old else cst.SimpleWhitespace("")
    result.append(new[-1].with_changes(comma=last, whitespace_after_arg=space))
    return [
        a.with_changes(comma=between) if i < len(result) - 1 and not isinstance(a.comma, cst.Comma) else a
        for i, a in enumerate(result)
    ]
