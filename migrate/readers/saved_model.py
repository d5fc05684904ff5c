"""SavedModel folders of tf.keras, `model.save("folder")`, and of TensorFlow 1.

Their variables are a TF2 object-based checkpoint in `variables/`; the optimizer's config is JSON, in
`keras_metadata.pb` from TF 2.5 on and in `saved_model.pb` before. TensorFlow 1 writes the checkpoint of a
`tf.train.Saver` there, and its graphs into `saved_model.pb`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.message import DecodeError

from migrate.bytes import json_text
from migrate.bytes.object_graph import ObjectGraph
from migrate.errors import DamagedFileError, UnknownFormatError
from migrate.graphs import saver
from migrate.readers import tf1_saver, tf_object
from migrate.readers.keras.model import layer_name, sublayers
from migrate.readers.objects import optimizers as object_optimizers
from migrate.readers.objects.optimizers import GraphOptimizer
from migrate.releases import recognition
from migrate.releases.versions import Versions
from migrate.state import Stored, StoredModel
from optim.bytes import files, protos, urls
from optim.bytes.bundle import GRAPH_KEY, BundleReader
from optim.errors import UnsupportedError

NAME = "saved_model"
_GRAPH_FILE = "saved_model.pb"
_KERAS_FILE = "keras_metadata.pb"
OPTIMIZER = "optimizer"
"""The attribute of a model's compiled optimizer."""


def sniff(path: str) -> bool:
    """Whether `path` is a SavedModel folder, or its `saved_model.pb`."""
    return not urls.is_signed(path) and files.is_file(os.path.join(_folder(path), _GRAPH_FILE))


def _folder(path: str) -> str:
    return os.path.dirname(path) or "." if os.path.basename(path) == _GRAPH_FILE else path


def read(path: str, optimizer_path: str | None = None) -> Stored:
    """Return the content of a SavedModel, including the optimizer's config. Tensors stay in the file.

    Raises:
      UnknownFormatError: no SavedModel. DamagedFileError: truncated or altered.
      AmbiguousError: more than one optimizer and no path. HyperparameterError: no optimizer at that path.
    """
    folder = _folder(path)
    if not sniff(path):
        raise UnknownFormatError(f"{path} is no SavedModel: it has no {_GRAPH_FILE}")
    prefix = os.path.join(folder, "variables", "variables")
    if not urls.is_url(path) and not files.is_file(f"{prefix}.index"):
        raise DamagedFileError(
            f"{folder} has no file variables/variables.index, which holds the numbers of a SavedModel. Copy its whole"
            " folder; without variables there is nothing to migrate"
        )
    bundle = BundleReader(prefix)
    if GRAPH_KEY not in bundle:
        path = os.path.join(folder, _GRAPH_FILE)
        return tf1_saver.read_bundle(bundle, NAME, saver.read_saved_model(path), path, optimizer_path)
    graph = tf_object.graph_of(bundle)
    model, keras = _parse(protos.SavedModel(), os.path.join(folder, _GRAPH_FILE)), _keras_nodes(folder)
    compiled = {owner.node: owner for owner in _compiled_objects(keras, model) if owner.node < len(graph)}
    every = object_optimizers.find(graph)
    optimizer_path = optimizer_path or _of_model(graph, every, compiled)
    stored = tf_object.stored(bundle, graph, every, NAME, optimizer_path)
    _check_whole(folder, model, keras, graph, bundle)
    tensorflow = str(model.meta_graphs[0].meta_info_def.tensorflow_version) if model.meta_graphs else ""
    versions = Versions(tensorflow=tensorflow)
    owner = _owner(graph, object_optimizers.choose(every, optimizer_path, folder), compiled)
    described = (
        _stored_model(owner.text, stored, _aliases(graph))
        if owner and _has_all_variables(graph, owner.node, stored)
        else None
    )
    evidence = [f"{folder} holds {_GRAPH_FILE}", *stored.evidence]
    if owner is not None:
        evidence.append(f"the optimizer's config is in {owner.where}: class {owner.config['class_name']}")
    generation = stored.generation or (None if owner is None else recognition.of_config(owner.config))
    return replace(
        stored,
        generation=generation,
        optimizer_config=owner.config if owner is not None else None,
        versions=stored.versions | versions,
        evidence=tuple(evidence),
        model=described,
    )


@dataclass(frozen=True)
class _Compiled:
    """A compiled Keras object: its number, the file with its config, its metadata, its optimizer's config."""

    node: int
    where: str
    text: str
    config: Mapping[str, Any]


def _of_model(graph: ObjectGraph, every: Sequence[GraphOptimizer], compiled: Mapping[int, _Compiled]) -> str | None:
    """The path to the whole model's optimizer if there are others, such as that of a GAN's discriminator."""
    if len(every) < 2 or 0 not in compiled:
        return None
    return next((optimizer.name for optimizer in every if graph.children[0].get(OPTIMIZER) in optimizer.nodes), None)


def _has_all_variables(graph: ObjectGraph, node: int, stored: Stored) -> bool:
    within = {graph.keys[member] for member, _ in graph.walk(node)}
    return all(v.array is None or v.array.stored_as in within for v in stored.variables)


def _owner(graph: ObjectGraph, optimizer: GraphOptimizer | None, compiled: Mapping[int, _Compiled]) -> _Compiled | None:
    """The object compiled with an optimizer; the first compiled one if the optimizer has no variables."""
    if optimizer is None:
        return next(iter(compiled.values()), None)
    owners = (owner for node, owner in compiled.items() if graph.children[node].get(OPTIMIZER) in optimizer.nodes)
    return next(owners, None)


_DIVIDED = "_tf_distribute_sharded_variable"
"""The class of a variable that ParameterServerStrategy splits (`sharded_variable.py` 2.4 to 2.21)."""


def _check_whole(folder: str, model: Any, keras: Sequence[Any], graph: ObjectGraph, bundle: BundleReader) -> None:
    """Compare the objects in the three files, which number them in the same way (`saved_model/save.py` 2.0 to 2.21).

    Raises:
      DamagedFileError: one of them is of another model. UnsupportedError: variables are split, or no objects are
        named.
    """
    nodes = [node for meta_graph in model.meta_graphs[:1] for node in meta_graph.object_graph_def.nodes]
    if not nodes:
        raise UnsupportedError(
            f"{folder} lists no objects in {_GRAPH_FILE}, as where tf.keras.experimental.export_saved_model of"
            " TensorFlow 1 wrote it, which keeps no optimizer's config; migrate the checkpoint in it,"
            f" {os.path.join(folder, 'variables', 'variables')}, with --optimizer-config FILE"
        )
    if any(node.user_object.identifier == _DIVIDED for node in nodes):
        raise UnsupportedError(
            f"{folder} was saved under ParameterServerStrategy with variables in parts, which its files number"
            " differently; migrate a checkpoint of the same run, tf.train.Checkpoint(model=model,"
            " optimizer=optimizer), which has them whole"
        )
    for i, (key, name) in enumerate(zip(graph.keys, graph.full_names, strict=True)):
        kept = nodes[i].variable if i < len(nodes) and nodes[i].HasField("variable") else None
        if key is None or (kept is None and not name):  # other objects have values under that key too
            continue
        shape = None if kept is None else tuple(int(dim.size) for dim in kept.shape.dim)
        called = "" if kept is None else str(kept.name).removesuffix(":0")
        if shape != bundle[key].shape or (name and called and name != called):
            raise DamagedFileError(
                f"{folder}: variables/ has {name or key!r} of shape {list(bundle[key].shape)} where {_GRAPH_FILE} has"
                f" {called or 'none'!r}{'' if shape is None else f' of shape {list(shape)}'}: one is of another"
                " model; copy the whole folder again"
            )
    for entry in keras:
        is_there = entry.node_id in _at(nodes, 0, str(entry.node_path).removeprefix("root"))
        kind = nodes[entry.node_id].user_object.identifier if is_there else ""
        if not is_there or (kind or entry.identifier) != entry.identifier:
            raise DamagedFileError(
                f"{folder}: {_KERAS_FILE} has {entry.node_path!r} where {_GRAPH_FILE} has another object: one is of"
                " another model; copy the whole folder again"
            )


def _at(nodes: Sequence[Any], start: int, path: str) -> set[int]:
    """The objects reached by names from one, `.layer_with_weights-0.cell`; a name may contain dots."""
    node_ids = set() if path or not nodes else {start}
    for child in nodes[start].children if path and nodes else ():
        name = f".{child.local_name}"
        if f"{path}.".startswith(f"{name}.") and 0 <= child.node_id < len(nodes):
            node_ids |= _at(nodes, child.node_id, path.removeprefix(name))
    return node_ids


def _keras_nodes(folder: str) -> list[Any]:
    keras = os.path.join(folder, _KERAS_FILE)
    return list(_parse(protos.KerasMetadata(), keras).nodes) if files.is_file(keras) else []


def _stored_model(text: str, stored: Stored, aliases: Mapping[str, str]) -> StoredModel | None:
    metadata = json_text.parsed(text)
    config = metadata.get("model_config")
    if not isinstance(config, Mapping):
        return None
    names = tuple((_readable(v.name, config, aliases), v.name) for v in stored.variables)
    return StoredModel(config, metadata.get("training_config"), {"": names})


def _aliases(graph: ObjectGraph) -> dict[str, str]:
    """`layer_with_weights-1` -> `layer-3`: two names of one layer of the model."""
    numbered = {node: name for name, node in graph.children[0].items() if re.fullmatch(r"layer-\d+", name)}
    return {name: numbered[node] for name, node in graph.children[0].items() if node in numbered}


def _readable(name: str, config: Mapping[str, Any], aliases: Mapping[str, str]) -> str:
    """`layer_with_weights-1.kernel` -> `dense/kernel`: a distribution strategy saves variables without their names."""
    first, _, rest = name.partition(".")
    listed = sublayers(config.get("config")) or []
    if config.get("class_name") == "Sequential":
        listed = [layer for layer in listed if layer.get("class_name") != "InputLayer"]
    number = int(aliases.get(first, "layer--1").removeprefix("layer-"))
    if not rest or not 0 <= number < len(listed):
        return name
    return f"{layer_name(listed[number])}/{rest.replace('.', '/')}"


def _compiled_objects(keras: Sequence[Any], model: Any) -> Iterator[_Compiled]:
    texts = [(int(node.node_id), _KERAS_FILE, str(node.metadata)) for node in keras]
    for graph in model.meta_graphs[:1]:
        nodes = graph.object_graph_def.nodes
        texts += [(i, _GRAPH_FILE, str(node.user_object.metadata)) for i, node in enumerate(nodes)]
    for node, where, text in sorted(texts):
        config = _optimizer_config(text, where)
        if config is not None:
            yield _Compiled(node, where, text, config)


def _parse(message: Any, path: str) -> Any:
    try:
        with files.opened(path) as file:
            message.ParseFromString(file.read())
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error.strerror or error}") from error
    except DecodeError as error:
        raise DamagedFileError(f"{path} is damaged: it cannot be parsed; copy it again") from error
    return message


def _optimizer_config(text: str, where: str) -> Mapping[str, Any] | None:
    if '"training_config"' not in text:
        return None
    try:
        training = json_text.parsed(text).get("training_config") or {}
        config = training.get("optimizer_config")
        if config is None:
            return None
        return {**config, "class_name": str(config["class_name"]), "config": dict(config["config"])}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedFileError(f"{where} is damaged: its training_config cannot be read ({error!r})") from error
