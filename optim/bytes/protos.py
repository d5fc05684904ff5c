"""The few protocol buffers of TensorFlow checkpoints, in a private pool, without importing TensorFlow.

Field numbers are those of TensorFlow 1.0-2.21: `tensor_bundle`, `trackable_object_graph`, `saved_model` and
`saved_object_graph` in tensorflow/core/protobuf, `tensor_shape`, `tensor_slice` and `versions` in core/framework.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "dtopt.tensorflow"
_Field = descriptor_pb2.FieldDescriptorProto


class _Spec(NamedTuple):
    number: int
    name: str
    type: str
    """A scalar type of protocol buffers, or the name of a message below."""
    repeated: bool = False
    presence: bool = False
    """Whether "not set" differs from zero (a `oneof` of one member)."""


_MESSAGES: dict[str, tuple[_Spec, ...]] = {
    "VersionDef": (
        _Spec(1, "producer", "int32"),
        _Spec(2, "min_consumer", "int32"),
        _Spec(3, "bad_consumers", "int32", repeated=True),
    ),
    "BundleHeaderProto": (
        _Spec(1, "num_shards", "int32"),
        _Spec(2, "endianness", "int32"),
        _Spec(3, "version", "VersionDef"),
    ),
    "Dim": (_Spec(1, "size", "int64"), _Spec(2, "name", "string")),
    "TensorShapeProto": (_Spec(2, "dim", "Dim", repeated=True), _Spec(3, "unknown_rank", "bool")),
    "Extent": (_Spec(1, "start", "int64"), _Spec(2, "length", "int64", presence=True)),
    "TensorSliceProto": (_Spec(1, "extent", "Extent", repeated=True),),
    "BundleEntryProto": (
        _Spec(1, "dtype", "int32"),
        _Spec(2, "shape", "TensorShapeProto"),
        _Spec(3, "shard_id", "int32"),
        _Spec(4, "offset", "int64"),
        _Spec(5, "size", "int64"),
        _Spec(6, "crc32c", "fixed32"),
        _Spec(7, "slices", "TensorSliceProto", repeated=True),
    ),
    "ObjectReference": (_Spec(1, "node_id", "int32"), _Spec(2, "local_name", "string")),
    "SerializedTensor": (
        _Spec(1, "name", "string"),
        _Spec(2, "full_name", "string"),
        _Spec(3, "checkpoint_key", "string"),
    ),
    "SlotVariableReference": (
        _Spec(1, "original_variable_node_id", "int32"),
        _Spec(2, "slot_name", "string"),
        _Spec(3, "slot_variable_node_id", "int32"),
    ),
    "BoolValue": (_Spec(1, "value", "bool"),),
    "TrackableObject": (
        _Spec(1, "children", "ObjectReference", repeated=True),
        _Spec(2, "attributes", "SerializedTensor", repeated=True),
        _Spec(3, "slot_variables", "SlotVariableReference", repeated=True),
        _Spec(5, "has_checkpoint_values", "BoolValue"),
    ),
    "TrackableObjectGraph": (_Spec(1, "nodes", "TrackableObject", repeated=True),),
    "MetaInfoDef": (_Spec(5, "tensorflow_version", "string"),),
    # A SavedModel's graphs are long; only the parts named here become objects.
    "MetaGraphDef": (
        _Spec(1, "meta_info_def", "MetaInfoDef"),
        _Spec(7, "object_graph_def", "SavedObjectGraph"),
    ),
    "SavedModel": (_Spec(2, "meta_graphs", "MetaGraphDef", repeated=True),),
    "SavedUserObject": (_Spec(1, "identifier", "string"), _Spec(3, "metadata", "string")),
    "SavedVariable": (_Spec(2, "shape", "TensorShapeProto"), _Spec(6, "name", "string")),
    "SavedObject": (
        _Spec(1, "children", "ObjectReference", repeated=True),
        _Spec(4, "user_object", "SavedUserObject"),
        _Spec(7, "variable", "SavedVariable"),
    ),
    "SavedObjectGraph": (_Spec(1, "nodes", "SavedObject", repeated=True),),
    # `PREFIX.meta` of tf.train.Saver: the parts of the graph with the inputs and outputs of updates, and constants.
    "NodeDef": (
        _Spec(1, "name", "string"),
        _Spec(2, "op", "string"),
        _Spec(3, "input", "string", repeated=True),
        _Spec(5, "attr", "AttrEntry", repeated=True),
    ),
    "AttrEntry": (_Spec(1, "key", "string"), _Spec(2, "value", "AttrValue")),
    "AttrValue": (
        _Spec(1, "list", "AttrList"),
        _Spec(3, "i", "int64"),
        _Spec(4, "f", "float"),
        _Spec(5, "b", "bool"),
        _Spec(6, "type", "int32"),
        _Spec(7, "shape", "TensorShapeProto"),
        _Spec(8, "tensor", "TensorProto"),
        _Spec(10, "func", "FunctionName"),
    ),
    "AttrList": (_Spec(9, "func", "FunctionName", repeated=True),),
    "FunctionName": (_Spec(1, "name", "string"),),
    "TensorProto": (
        _Spec(1, "dtype", "int32"),
        _Spec(2, "tensor_shape", "TensorShapeProto"),
        _Spec(4, "tensor_content", "bytes"),
        _Spec(5, "float_val", "float", repeated=True),
        _Spec(6, "double_val", "double", repeated=True),
        _Spec(7, "int_val", "int32", repeated=True),
        _Spec(8, "string_val", "bytes", repeated=True),
        _Spec(10, "int64_val", "int64", repeated=True),
        _Spec(11, "bool_val", "bool", repeated=True),
    ),
    "SaverDef": (_Spec(2, "save_tensor_name", "string"),),
    "GraphDef": (_Spec(1, "node", "NodeDef", repeated=True), _Spec(2, "library", "Library")),
    "Library": (_Spec(1, "function", "FunctionDef", repeated=True),),
    "FunctionDef": (_Spec(1, "signature", "OpDef"), _Spec(3, "node_def", "NodeDef", repeated=True)),
    "OpDef": (_Spec(1, "name", "string"), _Spec(2, "input_arg", "ArgDef", repeated=True)),
    "ArgDef": (_Spec(1, "name", "string"),),
    "VariableDef": (_Spec(1, "variable_name", "string"),),
    "BytesList": (_Spec(1, "value", "bytes", repeated=True),),
    "CollectionDef": (_Spec(2, "bytes_list", "BytesList"),),
    "Collection": (_Spec(1, "key", "string"), _Spec(2, "value", "CollectionDef")),
    "SaverMetaGraphDef": (
        _Spec(1, "meta_info_def", "MetaInfoDef"),
        _Spec(2, "graph_def", "GraphDef"),
        _Spec(3, "saver_def", "SaverDef"),
        _Spec(4, "collection_def", "Collection", repeated=True),
    ),
    "SavedGraphs": (_Spec(2, "meta_graphs", "SaverMetaGraphDef", repeated=True),),
    # tf.keras's keras_metadata.pb (keras/protobuf/saved_metadata.proto, 2.5 and later).
    "KerasNode": (
        _Spec(2, "node_id", "int32"),
        _Spec(3, "node_path", "string"),
        _Spec(4, "identifier", "string"),
        _Spec(5, "metadata", "string"),
    ),
    "KerasMetadata": (_Spec(1, "nodes", "KerasNode", repeated=True),),
}


def _add_field(message: Any, spec: _Spec) -> None:
    field = message.field.add(name=spec.name, number=spec.number)
    field.label = _Field.LABEL_REPEATED if spec.repeated else _Field.LABEL_OPTIONAL
    if spec.type in _MESSAGES:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{spec.type}"
    else:
        field.type = getattr(_Field, f"TYPE_{spec.type.upper()}")
    if spec.presence:
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"has_{spec.name}")


def _build() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="dtopt/tensorflow.proto", package=_PACKAGE, syntax="proto3")
    for name, specs in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for spec in specs:
            _add_field(message, spec)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


_POOL = _build()


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


BundleHeader = _message("BundleHeaderProto")
BundleEntry = _message("BundleEntryProto")
ObjectGraph = _message("TrackableObjectGraph")
SavedModel = _message("SavedModel")
KerasMetadata = _message("KerasMetadata")
SaverMetaGraph = _message("SaverMetaGraphDef")
SavedGraphs = _message("SavedGraphs")
"""A SavedModel of TensorFlow 1; the same parts are read as of `PREFIX.meta`."""
Variable = _message("VariableDef")
