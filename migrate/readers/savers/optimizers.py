"""Find the optimizers in a tf.train.Saver checkpoint, and choose one if there are several.

Names alone do not show them: a GAN's two AdamOptimizers use the same slot names. In the graph (`PREFIX.meta`), the ops
of one optimizer are in the scope of its `apply_gradients` and read its own slots and powers of beta. A Keras
optimizer's slots are assigned from its own learning rate.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from migrate.bytes.arrays import LazyArray
from migrate.errors import AmbiguousError
from migrate.graphs import keras1, tf_train
from migrate.graphs.keras1 import Keras1Optimizer
from migrate.graphs.saver import SaverGraph
from migrate.readers.objects.optimizers import listed, several
from migrate.state import OTHER_COMPILE
from optim.errors import HyperparameterError, UnsupportedError

_POWERS = re.compile(r"(?:.*/)?beta[12]_power(?:_\d+)?")


@dataclass(frozen=True)
class Choice:
    """`names` are all optimizers, `foreign` the keys of those not chosen."""

    names: tuple[str, ...] = ()
    foreign: frozenset[str] = frozenset()
    untrained: frozenset[str] = frozenset()
    """Variables of the model that only the others train."""
    chosen: str | None = None
    warnings: tuple[str, ...] = ()
    outside: Mapping[str, str] = field(default_factory=dict)
    """By what reports call it, see `Effects`."""
    scopes: tuple[str, ...] = ()
    """The scopes of the chosen one's updates, if it is of tf.train."""
    keras1: Keras1Optimizer | None = None
    """The optimizer itself, if it is of Keras 1."""


def of_keras(
    arrays: Mapping[str, LazyArray],
    scopes: Sequence[str],
    slots: Collection[str],
    graph: SaverGraph | None,
    path: str | None,
    where: str,
) -> Choice:
    """Choose one of the Keras optimizers, by the scope of its settings.

    Args:
      scopes: of all of them. slots: keys that may be slots and are in no scope.

    Raises:
      AmbiguousError: several and no path. HyperparameterError: no optimizer has it. UnsupportedError: slots cannot be
        assigned without the graph.
    """
    names = tuple(dict.fromkeys(scopes))
    if len(names) < 2 and path is None:
        return Choice(names)
    _check(path, names, where)
    others = [scope for scope in names if scope != path]
    foreign = {key for key in arrays if key.startswith(tuple(f"{scope}/" for scope in others))}
    keys = {key for key in arrays if key.startswith(f"{path}/")} - foreign
    loose = [slot for slot in slots if slot not in foreign and slot not in keys]
    is_own = _by_updates(loose, keys, foreign, graph)
    unknown = next((slot for slot in loose if slot not in is_own), None)
    if unknown is not None:
        raise UnsupportedError(
            f"{where}: nothing shows which optimizer has the slot {unknown!r}, as its graph ({where}.meta) is missing"
            " or does not show it. Put the .meta next to it, or migrate the .h5 of model.save, which holds one"
            " optimizer"
        )
    foreign |= {slot for slot in loose if not is_own[slot]}
    return Choice(names, frozenset(foreign), _under(foreign, others, arrays) - _under(keys, [path or ""], arrays), path)


def _by_updates(
    slots: Sequence[str], keys: Collection[str], foreign: Collection[str], graph: SaverGraph | None
) -> dict[str, bool]:
    """Whether a slot belongs to the optimizer with these settings, by the settings its update reads. A slot without
    updates, such as a placeholder of vhat, belongs to the optimizer of its scope."""
    settings, reads = {*keys, *foreign}, graph.reads if graph is not None else {}
    readers = {slot: reads[slot] for slot in slots if not settings.isdisjoint(reads.get(slot, ()))}
    verdicts = {slot: not read_keys.isdisjoint(keys) for slot, read_keys in readers.items()}
    scopes = {slot: slot.rpartition("/")[0] for slot in slots}
    beside: dict[str, set[bool]] = {}
    for slot, is_own in verdicts.items():
        beside.setdefault(scopes[slot], set()).add(is_own)
    of_scope = {scope: all(flags) for scope, flags in beside.items() if len(flags) == 1 and scope}
    return {slot: of_scope[scope] for slot, scope in scopes.items() if scope in of_scope} | verdicts


def of_compiles(slots: Sequence[str], settings: str, graph: SaverGraph | None, path: str | None, where: str) -> Choice:
    """Choose the slots of one `compile`, if one Keras optimizer was compiled several times. Each has its own scope.

    If one model was compiled again, the last slots are in use. Several models all use theirs, and share the counter.

    Args:
      settings: their common scope.

    Raises:
      AmbiguousError: no path. HyperparameterError: no scope has it.
    """
    scopes = tuple(sorted({slot.rpartition("/")[0] for slot in slots}, key=_created))
    if path is None:
        raise AmbiguousError(
            f"{where} holds slots of {len(scopes)} compilations with the one optimizer {settings!r}: of a model that"
            f" was compiled again the last are in use; choose them with --optimizer: {listed(scopes)}"
        )
    _check(path, scopes, where)
    foreign = frozenset(slot for slot in slots if slot.rpartition("/")[0] != path)
    trained = _trained(frozenset(slots) - foreign, graph)
    sets = [_trained([s for s in slots if s.rpartition("/")[0] == scope], graph) for scope in scopes]
    beside = next((s for s, t in zip(scopes, sets, strict=True) if not (t <= trained or trained <= t)), None)
    doubt = ""
    if not trained:
        doubt = f"{where}.meta does not show which variables were trained with {path!r}, and which with the others"
    elif beside is not None:
        doubt = f"{settings!r} also counts the steps that {beside!r} takes with variables of another model"
    elif path != scopes[-1]:
        doubt = f"{scopes[-1]!r} is later than {path!r}, whose slots are unused if both belong to the same model"
    return Choice(scopes, foreign, chosen=path, outside={OTHER_COMPILE: doubt} if doubt else {})


def _created(scope: str) -> tuple[int, str]:
    """Order scopes as TensorFlow numbers them: `training/Adam`, `training_1/Adam`, ..., `training_10/Adam`."""
    match = re.match(r"[^/]*?_(\d+)(/|$)", scope)
    return int(match.group(1)) if match else 0, scope


def _trained(slots: Collection[str], graph: SaverGraph | None) -> frozenset[str]:
    reads = graph.reads if graph is not None else {}
    return frozenset(v for v, read in reads.items() if v not in slots and not read.isdisjoint(slots))


def _under(keys: Collection[str], scopes: Sequence[str], arrays: Collection[str]) -> frozenset[str]:
    """Variables with slots among `keys`, which OptimizerV2 names SCOPE/VARIABLE/SLOT."""
    inside = {key.removeprefix(f"{scope}/").rpartition("/")[0] for scope in scopes for key in keys}
    return frozenset(inside & set(arrays))


def of_keras1(arrays: Mapping[str, LazyArray], graph: SaverGraph | None, path: str | None, where: str) -> Choice:
    """Choose one of Keras 1's optimizers, by the key of its first setting.

    Raises:
      AmbiguousError: several and no path. HyperparameterError: no optimizer has it. UnsupportedError: the graph is
        missing or does not show them.
    """
    every, unknown = keras1.find(arrays, graph.nodes) if graph is not None and graph.nodes is not None else ([], [])
    if not every or unknown:
        nameless = next(key for key in (*unknown, *arrays) if keras1.ANONYMOUS.fullmatch(key))
        if graph is not None:
            raise UnsupportedError(
                f"{nameless!r} has no name, and {where}.meta, its graph, shows no optimizer of Keras 1 there, which"
                " gives no names: a custom optimizer, whose rule is not known, has its slots or counters there, or"
                " the graph is from another program. tf.train.load_checkpoint still reads the weights, so that you"
                " can restart the optimizer, or migrate the .h5 of model.save of the same run, if it was Keras's"
            )
        raise UnsupportedError(
            f"{nameless!r} has no name, as Keras 1 does not name settings and slots of optimizers, so only the graph"
            f" distinguishes them, and {where}.meta is missing. Put the .meta that was written with the checkpoint"
            " next to it, or migrate the .h5 of model.save of the same run"
        )
    names = tuple(optimizer.name for optimizer in every)
    if len(every) > 1 or path is not None:
        _check(path, names, where)
    chosen = next(optimizer for optimizer in every if path in (None, optimizer.name))
    others = [optimizer for optimizer in every if optimizer is not chosen]
    untrained = frozenset().union(*(other.trained for other in others)) - frozenset(chosen.trained)
    foreign = frozenset().union(*(other.state for other in others))
    return Choice(names, foreign, untrained, path, keras1=chosen)


def of_train(arrays: Mapping[str, LazyArray], graph: SaverGraph | None, path: str | None, where: str) -> Choice:
    """Choose one of the tf.train optimizers, by the scope of its updates.

    Raises:
      AmbiguousError: several that differ, and no path. HyperparameterError: no optimizer has it.
    """
    groups = _groups(arrays, graph)
    names = tuple(groups)
    updated = frozenset().union(*(group.trained for group in groups.values()))
    if path is None:
        if len(names) > 1 and graph is not None and not _are_as_one(list(groups.values()), graph):
            raise several(where, names)
        text = (
            f"the graph updates variables in {len(names)} scopes ({', '.join(names)}): assumed to be of one"
            " optimizer; if"
        )
        warnings = (f"{text} they are several, choose one with --optimizer",) if names[1:] else ()
        return Choice(names, untrained=frozenset(arrays) - updated if updated else frozenset(), warnings=warnings)
    _check(path, names, where)
    chosen = groups[path]
    foreign = frozenset().union(*(group.state for group in groups.values() if group is not chosen)) - chosen.state
    return Choice(names, foreign, frozenset(arrays) - chosen.trained, path, scopes=chosen.scopes)


def _are_as_one(groups: Sequence[_Group], graph: SaverGraph) -> bool:
    """Whether these optimizers together act like a single one: each has its own variables, no optimizer counts, and
    class and settings are the same."""
    trained = [variable for group in groups for variable in group.trained]
    counts = all(any(_POWERS.fullmatch(key) for key in group.state) for group in groups)
    if counts or len(set(trained)) < len(trained) or graph.nodes is None:
        return False
    try:
        kernels = [tf_train.describe(graph.nodes, graph.updates, group.scopes) for group in groups]
    except (LookupError, ValueError):  # as in a damaged graph
        return False
    alike = all((kernel.class_name, kernel.config) == (kernels[0].class_name, kernels[0].config) for kernel in kernels)
    return alike and not any(kernel.outside for kernel in kernels)


def _check(path: str | None, names: Sequence[str], where: str) -> None:
    if path is None:
        raise several(where, names)
    if path not in names:
        raise HyperparameterError(f"{where} holds no optimizer {path!r}; --optimizer takes: {listed(names)}")


@dataclass(frozen=True)
class _Group:
    """One tf.train optimizer: the scopes of its updates, its slots and powers, and the variables that it trains."""

    scopes: tuple[str, ...]
    state: frozenset[str]
    trained: frozenset[str]


def _parent_scopes(key: str) -> Iterator[str]:
    return accumulate(key.split("/")[:-1], "{}/{}".format)


def _groups(arrays: Mapping[str, LazyArray], graph: SaverGraph | None) -> dict[str, _Group]:
    """Each optimizer by scope; scopes that share state are one optimizer, under the first."""
    groups: dict[str, _Group] = {}
    for scope, updates in (graph.updates if graph is not None else {}).items():
        whole = graph.parts if graph is not None else {}
        variables = frozenset(whole.get(name, name) for name in updates) & frozenset(arrays)
        reads = frozenset(whole.get(name, name) for inputs in updates.values() for name in inputs) & frozenset(arrays)
        state = frozenset(k for k in reads if _POWERS.fullmatch(k) or not variables.isdisjoint(_parent_scopes(k)))
        if not variables:
            continue
        first = next((name for name, group in groups.items() if group.state & state), None)
        if first is None:
            groups[scope] = _Group((scope,), state, variables)
        else:
            group = groups[first]
            groups[first] = _Group((*group.scopes, scope), group.state | state, group.trained | variables)
    return groups
