"""Read a tree of `vars` groups into `Stored`, for `.keras` and `.weights.h5`.

The optimizer is `optimizer/vars/0`, `1`, ... in the order of `optimizer.variables`, which differs by generation and
has no names (`saving_lib.py`, `save_own_variables` of tf_keras 2.12 - 2.21 and Keras 3.0 - 3.15).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from migrate.bytes.arrays import LazyArray
from migrate.bytes.messages import some
from migrate.errors import DamagedFileError
from migrate.generations import traits
from migrate.readers.keras.layers import arrange
from migrate.readers.keras.tree import Node
from migrate.releases.versions import JAX_OR_PYTORCH, UNKNOWN, Versions
from migrate.state import Stored
from optim.errors import UnsupportedError

OPTIMIZER = "optimizer"
WRAPPED = ("inner_optimizer", "_optimizer")
NOT_MODEL = ("metrics", "_metrics", "_compile_metrics", "_loss_tracker", "compiled_metrics", "compiled_loss")
"""Members of a model with measurements of training, which are not trained."""


def stored(
    format_name: str,
    root: Node,
    where: str,
    *,
    config: Mapping[str, Any] | None,
    optimizer_config: Mapping[str, Any] | None,
    generation: str | None,
    evidence: tuple[str, ...],
    versions: Versions = UNKNOWN,
    warnings: tuple[str, ...] = (),
) -> Stored:
    """Return everything in a tree.

    Args:
      root: the whole file. config: `config.json` of the model, or None.
      generation: `optimizer` or `keras3`, None if the source does not show it.

    Raises:
      UnsupportedError: it has more than the compiled optimizer. DamagedFileError: it contradicts itself.
    """
    optimizer = root.children.pop(OPTIMIZER, None) or Node(OPTIMIZER)
    _check_alone(root, where)
    no_state = "" if _all_variables(optimizer) else _no_state(where, optimizer_config)
    weights, rest, called = _weights(optimizer, where)
    rest.update(_remove_members(root, NOT_MODEL))
    for node in root.walk():
        if OPTIMIZER in node.children and _has_counter(node.children[OPTIMIZER]):  # a nested model with its own compile
            rest.update(_remove_members(node, (OPTIMIZER, *NOT_MODEL)))
    variables, layers, twins = arrange(
        root, config, None if generation is None else traits(generation).has_keras3_layers
    )
    return Stored(
        format_name,
        generation,
        evidence,
        optimizer_config,
        variables,
        weights=weights,
        versions=Versions(backend=_backend(weights) if traits(generation).has_keras3_layers else "") | versions,
        warnings=warnings,
        unmapped=rest,
        layers=None if layers.ordered() else layers,
        twins=twins,
        optimizer_name=called,
        no_state=no_state,
    )


def _check_alone(root: Node, where: str) -> None:
    """Refuse a model with further optimizers, such as a GAN's `d_optimizer` and `g_optimizer`. The one of `compile` has
    then made no step."""
    others = [name for name in root.children if name not in NOT_MODEL and _is_optimizer_or_list(root, name)]
    if others:
        arguments = ", ".join(f"{name}=model.{name}" for name in others)
        raise UnsupportedError(
            f"{where} holds {some(others)} as well as the optimizer of compile(), and dtopt does not read other"
            " optimizers from .keras and .weights.h5. In the program that has the model, save"
            f" tf.train.Checkpoint(model=model, {arguments}).save('PREFIX'), and choose one of them with --optimizer"
        )


def _remove_members(node: Node, names: Sequence[str]) -> dict[str, LazyArray]:
    members = (node.children.pop(name, None) for name in names)
    return {path: array for member in members if member is not None for path, array in _all_variables(member).items()}


def _has_counter(node: Node) -> bool:
    first = next(iter(node.arrays.values()), None)
    return first is not None and first.dtype.startswith("int") and not first.shape


def _is_optimizer_or_list(root: Node, name: str) -> bool:
    within = (child for key, child in root.children[name].children.items() if key not in (OPTIMIZER, *WRAPPED))
    return any(_is_optimizer(node, root) for node in (root.children[name], *within))


def _is_optimizer(node: Node, root: Node) -> bool:
    """Whether a member has a step counter, then perhaps a rate, then arrays with shapes of other members."""
    arrays = list(node.arrays.values())
    if node.children or not _has_counter(node):
        return False
    slots = arrays[2 if len(arrays) > 1 and not arrays[1].shape else 1 :]
    rest = {array.shape for other in root.walk() if other is not node for array in other.arrays.values()}
    return len(arrays) > 1 and all(array.shape in rest for array in slots)


def _all_variables(node: Node) -> dict[str, LazyArray]:
    return {f"{group.path}/vars/{key}": array for group in node.walk() for key, array in group.arrays.items()}


def _weights(optimizer: Node, where: str) -> tuple[tuple[tuple[str, LazyArray], ...], dict[str, LazyArray], str | None]:
    """The flat list of the optimizer (inside a LossScaleOptimizer, if there is one), the remaining arrays, and its name
    if the file has it."""
    rest = _all_variables(optimizer)
    inner = optimizer
    while True:
        below = next((inner.children[n] for n in WRAPPED if n in inner.children and inner.children[n].arrays), None)
        if below is None:
            break
        # The wrapper lists its own variables, then all of the inner optimizer's again.
        wrapper_count = len(inner.arrays) - len(below.arrays)
        if wrapper_count < 0:
            raise DamagedFileError(f"{where}: {inner.path} has fewer variables than {below.path}; it is incomplete")
        for key in list(inner.arrays)[wrapper_count:]:
            del rest[f"{inner.path}/vars/{key}"]
        inner = below
    weights = tuple((f"{inner.path}/vars/{key}", array) for key, array in inner.arrays.items())
    for name, _ in weights:
        rest.pop(name, None)
    return weights, rest, inner.name


def _backend(weights: Sequence[tuple[str, LazyArray]]) -> str:
    """The backend of Keras 3, by the step counter's dtype: `"int"` is int64 on TensorFlow alone (common/dtypes.py)."""
    kinds = {"int64": "tensorflow", "int32": JAX_OR_PYTORCH}
    return kinds.get(weights[0][1].dtype, "") if weights and weights[0][1].shape == () else ""


def _no_state(where: str, optimizer_config: Mapping[str, Any] | None) -> str:
    if optimizer_config is None:
        return (
            f"{where} holds no optimizer state: the model was not compiled, or saved without its optimizer; migrate a"
            " checkpoint that the training run wrote"
        )
    name = optimizer_config.get("class_name")
    return (
        f"{where} holds no optimizer state, only the config of its optimizer {name}: optimizers.legacy and optimizers"
        " that never took a step do not save theirs in this format. The state is lost to this file: migrate an .h5 or a"
        " TensorFlow checkpoint of the same run"
    )


def is_keras3(root: Node) -> tuple[bool | None, str]:
    """Whether Keras 3 wrote a file without a version, None if unknown; and why."""
    if any(node.name is not None for node in root.walk()):
        return True, "its groups have an attribute 'name', which only Keras 3 writes"
    if "metrics" in root.children:
        return False, "it has a group 'metrics', which only tf.keras and tf_keras write"
    arrays = list(root.children[OPTIMIZER].arrays.values()) if OPTIMIZER in root.children else []
    if len(arrays) > 1 and arrays[0].shape == () and arrays[1].shape == () and arrays[1].dtype.startswith("float"):
        return True, "its optimizer keeps a learning rate next to the step counter, as Keras 3 does"
    return None, "nothing in it distinguishes Keras 3 from tf_keras"
