"""Read Saver checkpoints of Keras 2, and of tf.keras before 1.14: slots are numbered in the order of their creation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from migrate.bytes.arrays import LazyArray
from migrate.errors import AmbiguousError
from migrate.graphs.saver import SaverGraph
from migrate.graphs.writers import writers
from migrate.readers.keras.model import MOVING, RENORM
from migrate.readers.savers.parts import Parts, in_order, stored_variable, variables_of
from migrate.releases.recognition import of_native_names
from migrate.state import GLOBAL_STEP, Layers, LayerVariable, StoredVariable

KINDS = ("m", "v", "vhat", "u", "moment", "accumulator", "delta_accumulator")
"""Slots of Keras 2.3, in the order of its lists."""
SETTINGS = ("iterations", "lr", "momentum", "rho", "beta_1", "beta_2", "decay", "schedule_decay", "m_schedule")
"""Variables of an optimizer of Keras 2.0.0 to 2.0.6 that are in no scope (`keras/optimizers.py` 2.0.4)."""
_NUMBERED = re.compile(rf"(?:.*/)?({'|'.join(KINDS)})_(\d+)(?:_\d+)?")
_ANONYMOUS = re.compile(r"(?:(.*)/)?Variable(?:_(\d+))?")
ROLES = (
    "kernel",
    "depthwise_kernel",
    "pointwise_kernel",
    "recurrent_kernel",
    "gamma",
    "beta",
    "embeddings",
    "alpha",
    "bias",
    *MOVING,
    *RENORM,
)
"""Names of stock layers' weights, in the order in which a layer creates them."""


def stored(arrays: Mapping[str, LazyArray], counter: str, graph: SaverGraph | None, prefix: str) -> Parts:
    """Return slots in the order of the optimizer's list, and what is known of the order of the variables."""
    scope = counter.removesuffix("iterations")
    settings = [key for key in (arrays if scope else SETTINGS) if key in arrays and key.startswith(scope)]
    scalars = {key.removeprefix(scope): arrays[key] for key in settings if arrays[key].shape == ()}
    rest = [key for key in arrays if key.removeprefix(scope) not in scalars or not key.startswith(scope)]
    numbered = [key for key in rest if _is_numbered(key)]
    anonymous = [key for key in rest if _ANONYMOUS.fullmatch(key)]
    slots, generation, why = _slot_list(numbered, anonymous, graph)
    if len({key.rpartition("/")[0] for key in slots}) > 1:
        shown = ", ".join(sorted({key.rpartition("/")[0] or "no scope" for key in slots}))
        raise AmbiguousError(f"{prefix} holds slots in several scopes ({shown}), so of several optimizers; save one")
    names = [key for key in rest if key not in slots]
    variables, layers, how = _ordered_variables(names, slots, arrays, graph)
    return Parts(
        generation,
        f"{why}; {how}",
        variables,
        {},
        scalars,
        tuple((key, arrays[key]) for key in slots),
        layers=layers,
    )


def counted_globally(
    arrays: dict[str, LazyArray], counter: str | None, graph: SaverGraph | None
) -> dict[str, LazyArray]:
    """Make the global step the counter if `model_to_estimator` did so. Keras's own counter stays in the graph unused
    (`optimizer.iterations = global_step`, TF 1.4 to 1.13)."""
    if counter is None or graph is None or graph.nodes is None or GLOBAL_STEP not in arrays:
        return arrays
    changed = {variable for _, variable in writers(graph.nodes)}
    if counter in changed or GLOBAL_STEP not in changed:
        return arrays
    return {**{key: array for key, array in arrays.items() if key != GLOBAL_STEP}, counter: arrays[GLOBAL_STEP]}


def _slot_list(
    numbered: Sequence[str], anonymous: Sequence[str], graph: SaverGraph | None
) -> tuple[list[str], str | None, str]:
    """Return keys of slots in the order of the optimizer's list, the generation, and the evidence."""

    def place(key: str) -> tuple[int, int]:
        match = _NUMBERED.fullmatch(key)
        return (KINDS.index(match.group(1)), int(match.group(2))) if match else (0, 0)

    def number(key: str) -> int:
        match = _ANONYMOUS.fullmatch(key)
        return int(match.group(2) or 0) if match else 0

    if numbered:
        return (
            sorted(numbered, key=place),
            of_native_names(True, False),
            f"slots are called {numbered[0]!r}, as in Keras 2.3",
        )
    if not anonymous:
        return [], None, "it holds no slots"
    slots = sorted(anonymous, key=number)
    why = f"slots are called {slots[0]!r}, as in Keras before 2.3"
    if graph is None:
        return (
            slots,
            None,
            (f"{why} and tf.keras before 1.14; the graph (.meta), which would distinguish them, is missing"),
        )
    if slots[0] in graph.resources:
        return (
            slots,
            of_native_names(False, True),
            f"{why} and tf.keras before 1.14; variables are resources, as in the latter",
        )
    return slots, of_native_names(False, False), f"{why}; variables are no resources, so it is not tf.keras"


def _ordered_variables(
    names: Sequence[str], slots: Sequence[str], arrays: Mapping[str, LazyArray], graph: SaverGraph | None
) -> tuple[tuple[StoredVariable, ...], Layers | None, str]:
    """Return variables in the order of their slots if the graph shows it, else the orders that layers allow."""
    owners = graph.owners(slots, names) if graph is not None else None
    trained = list(dict.fromkeys(owners[slot] for slot in slots if slot in owners)) if owners else []
    if owners and _repeat_one_order(owners, slots, trained, arrays):
        others = in_order([name for name in names if name not in trained], graph)
        variables = [stored_variable(name, arrays[name], True) for name in trained]
        variables += [stored_variable(name, arrays[name], False) for name in others]
        return tuple(variables), None, "slots were assigned to variables by the updates in the graph"
    layers = _weights_by_layer(variables_of(arrays, names, graph))
    by_name = {name: arrays[name] for name in names}
    variables = [stored_variable(v.name, by_name[v.name], v.trainable) for v in layers.variables()]
    return tuple(variables), layers, "slots can only be assigned to variables by shape"


def _repeat_one_order(
    owners: Mapping[str, str], slots: Sequence[str], trained: Sequence[str], arrays: Mapping[str, LazyArray]
) -> bool:
    owned = [slot for slot in slots if slot in owners]
    runs = [[owners[slot] for slot in owned[i : i + len(trained)]] for i in range(0, len(owned), len(trained))]
    shapes = all(arrays[slot].shape == arrays[owners[slot]].shape for slot in owned)
    untold = [slot for slot in slots if slot not in owners]
    return shapes and all(run == list(trained) for run in runs) and all(arrays[s].shape == (1,) for s in untold)


def _weights_by_layer(variables: Sequence[StoredVariable]) -> Layers:
    groups: dict[str, list[StoredVariable]] = {}
    for variable in variables:
        groups.setdefault(variable.name.rpartition("/")[0], []).append(variable)
    chains: list[tuple[Layers, ...]] = []
    for group in groups.values():
        roles = [v.name.rpartition("/")[2] for v in group]
        members = [LayerVariable(v.name, v.shape, v.trainable) for v in group]
        if all(role in ROLES for role in roles) and len(set(roles)) == len(roles):
            ordered = [m for _, m in sorted(zip(map(ROLES.index, roles), members, strict=True), key=lambda p: p[0])]
            chains.append((Layers(tuple(ordered)),))
        else:
            chains += [(Layers((member,)),) for member in members]
    return Layers((), tuple(chains))


def _is_numbered(key: str) -> bool:
    return key.startswith("training") and _NUMBERED.fullmatch(key) is not None


def is_slot(key: str) -> bool:
    return _ANONYMOUS.fullmatch(key) is not None or _is_numbered(key)
