"""TensorBundles against TensorFlow's own, in both directions, and damaged in every way."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from migrate.errors import DamagedFileError
from optim.bytes import protos, snappy, sstable
from optim.bytes.bundle import BundleReader, numpy_dtype, shard_name
from optim.bytes.bundle_writer import BundleWriter
from optim.errors import CheckpointError
from tests.helpers.examples import drawn
from tests.places import OBJECTS

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
PLAIN = [*INTEGERS, "float16", "float32", "float64", "bool", "complex64", "complex128"]
_tensors = st.sampled_from(PLAIN).flatmap(
    lambda dtype: hnp.arrays(np.dtype(dtype), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)
_names = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=1, max_size=40)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@drawn(60)
@given(st.dictionaries(_names, _tensors, min_size=1, max_size=20), st.binary(max_size=300))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, np.ndarray], text: bytes
) -> None:
    prefix = str(tmp_path_factory.mktemp("bundle") / "b")
    with BundleWriter(prefix) as writer:
        for key, array in tensors.items():
            writer.add("t/" + key, array)
        writer.add_string("text", text)
    reader = BundleReader(prefix)
    reader.check_sizes()
    assert set(reader) == {"t/" + key for key in tensors} | {"text"}
    for key, array in tensors.items():
        assert reader["t/" + key].shape == array.shape
        assert _same(reader.load("t/" + key), array)
    assert reader.load_bytes("text") == text


def test_compressed_blocks_are_read_as_tensorflow_reads_them() -> None:
    """The variables of saved_model_half_plus_two_cpu in the test data of TensorFlow Serving."""
    import tensorflow as tf

    prefix = str(OBJECTS / "serving_compressed" / "variables")
    theirs, ours = tf.train.load_checkpoint(prefix), BundleReader(prefix)
    assert set(ours) == set(theirs.get_variable_to_shape_map())
    for name in ours:
        assert _same(ours.load(name), np.asarray(theirs.get_tensor(name)))


@pytest.mark.parametrize(
    ("packed", "plain"),
    [
        (b"\x00", b""),
        (b"\x03\x08abc", b"abc"),
        (b"\x3d\xf0\x3c" + bytes(61), bytes(61)),  # a literal's length in one more byte
        (b"\x08\x04ab\x09\x02", b"abababab"[:2] + b"ababab"),  # a copy that reads what it writes: 6 from 2 before
        (b"\x06\x08abc\x0a\x03\x00", b"abcabc"),  # an offset of two bytes
        (b"\x06\x08abc\x0b\x03\x00\x00\x00", b"abcabc"),  # of four
    ],
)
def test_snappy_elements(packed: bytes, plain: bytes) -> None:
    """Each written by hand after google/snappy's format_description.txt."""
    assert snappy.decompress(packed, "it") == plain


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xff",
        b"\x03\x08ab",
        b"\x02\x08abc",
        b"\x04\x08abc",
        b"\x06\x08abc\x0a\x00\x00",
        b"\x06\x08abc\x0a\x04\x00",
        b"\x06\x08abc\x0a\x03",
        b"\xff\xff\xff\xff\x0f\x08abc",
    ],
    ids=lambda packed: packed.hex() or "empty",
)
def test_damaged_snappy_blocks_are_refused(packed: bytes) -> None:
    with pytest.raises(DamagedFileError, match="copy the file again"):
        snappy.decompress(packed, "it")


def test_tensorflow_reads_what_is_written(tmp_path: Path) -> None:
    import tensorflow as tf

    rng = np.random.default_rng(0)
    tensors = {f"{dtype}/{i}": (rng.normal(size=(i, 3)) * 5).astype(dtype) for dtype in PLAIN for i in range(3)}
    tensors |= {f"many/{i}": np.array(i) for i in range(12_000)}  # several index blocks
    prefix = str(tmp_path / "bundle")
    with BundleWriter(prefix) as writer:
        for key, array in tensors.items():
            writer.add(key, array)
        writer.add("bfloat16", np.array([0x3F80, 0xC000], np.uint16), "bfloat16")
        writer.add_string("text", b"x" * 300)
        writer.add("transposed", rng.normal(size=(4, 5)).T)
    loaded = tf.train.load_checkpoint(prefix)
    assert set(loaded.get_variable_to_shape_map()) == {*tensors, "bfloat16", "text", "transposed"}
    for key, array in tensors.items():
        if not key.startswith("many/") or key.endswith("99"):
            assert _same(loaded.get_tensor(key), array), key
    assert loaded.get_tensor("bfloat16").astype(np.float32).tolist() == [1.0, -2.0]
    assert loaded.get_tensor("text") == b"x" * 300
    assert loaded.get_tensor("transposed").shape == (5, 4)


def test_what_tensorflow_writes_is_read(tmp_path: Path) -> None:
    import tensorflow as tf

    prefix = str(tmp_path / "bundle")
    rng = np.random.default_rng(1)
    tensors = {dtype: tf.constant((rng.normal(size=(2, 3)) * 5).astype(dtype)) for dtype in PLAIN}
    tensors |= {"strings": tf.constant([[b"a", b""], [b"ccc" * 100, b"\0\xff"]]), "empty": tf.zeros((0, 7))}
    names, values = list(tensors), list(tensors.values())
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=[*names, "brain16"],
        shape_and_slices=[""] * (len(names) + 1),
        tensors=[*values, tf.constant([1.0, -2.0], tf.bfloat16)],
    )
    reader = BundleReader(prefix)
    for dtype in PLAIN:
        assert _same(reader.load(dtype), tensors[dtype].numpy()), dtype
    assert reader.load("strings").tolist() == [[b"a", b""], [b"ccc" * 100, b"\0\xff"]]
    assert reader.load("empty").shape == (0, 7)
    assert reader["brain16"].dtype == "bfloat16"
    assert reader.load("brain16").tolist() == [0x3F80, 0xC000]


@pytest.mark.parametrize("name", ["p", "scope/p\xff", "n" * 200])
def test_partitioned_variables_are_put_together(tmp_path: Path, name: str) -> None:
    import tensorflow as tf

    prefix = str(tmp_path / "bundle")
    whole = np.arange(40_000 * 3, dtype=np.float32).reshape(40_000, 3)
    pieces = [whole[:5], whole[5:20_000], whole[20_000:]]
    where = ["40000 3 0,5:-", "40000 3 5,19995:0,3", "40000 3 20000,20000:-"]
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=[name] * 3, shape_and_slices=where, tensors=pieces)
    reader = BundleReader(prefix)
    assert list(reader) == [name]
    assert reader[name].shape == (40_000, 3)
    assert _same(reader.load(name), whole)


def test_pieces_that_leave_a_hole_are_refused(tmp_path: Path) -> None:
    import tensorflow as tf

    prefix = str(tmp_path / "bundle")
    where = ["9 2 0,3:-", "9 2 6,3:-"]
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=["p"] * 2,
        shape_and_slices=where,
        tensors=[tf.ones((3, 2)), tf.ones((3, 2))],
    )
    with pytest.raises(DamagedFileError, match="pieces of 'p'"):
        BundleReader(prefix).load("p")


@pytest.fixture
def small(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    prefix = str(tmp_path / "small")
    with BundleWriter(prefix) as writer:
        for i in range(12):
            writer.add(f"layer/{i}/kernel", rng.normal(size=(3, i)))
        writer.add_string("text", b"some text")
    return prefix


def _load_all(prefix: str) -> None:
    reader = BundleReader(prefix)
    reader.check_sizes()
    for key in reader:
        reader.load(key)


def test_every_truncation_of_the_index_is_found(small: str) -> None:
    _load_all(small)
    data = Path(small + ".index").read_bytes()
    for length in range(len(data)):
        Path(small + ".index").write_bytes(data[:length])
        with pytest.raises(DamagedFileError):
            _load_all(small)


def test_every_flipped_byte_of_the_index_is_found(small: str) -> None:
    data = Path(small + ".index").read_bytes()
    for at in range(len(data)):
        Path(small + ".index").write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        with pytest.raises(DamagedFileError):
            _load_all(small)


def test_every_truncation_and_flipped_byte_of_the_data_is_found(small: str) -> None:
    shard = Path(shard_name(small, 0, 1))
    data = shard.read_bytes()
    for at in range(0, len(data), 7):
        shard.write_bytes(data[:at])
        with pytest.raises(DamagedFileError, match="truncated"):
            BundleReader(small).check_sizes()
        shard.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        with pytest.raises(DamagedFileError, match="damaged"):
            _load_all(small)


def test_a_missing_shard_is_named(small: str) -> None:
    os.unlink(shard_name(small, 0, 1))
    with pytest.raises(DamagedFileError, match=r"small\.data-00000-of-00001 is missing"):
        BundleReader(small).check_sizes()


def test_a_missing_index_is_named(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match=r"absent\.index cannot be read"):
        BundleReader(str(tmp_path / "absent"))


def _forge(prefix: str, **entry: object) -> None:
    """An index with good checksums and one entry that lies."""
    header = protos.BundleHeader(num_shards=1)
    fields = {"dtype": 1, "offset": 0, "size": 16, "crc32c": 0} | entry
    dims = fields.pop("dims", [4])
    proto = protos.BundleEntry(**fields)
    for n in dims:  # type: ignore[attr-defined]
        proto.shape.dim.add(size=n)
    table = sstable.build_table([(b"", header.SerializeToString()), (b"x", proto.SerializeToString())])
    Path(prefix + ".index").write_bytes(table)


@pytest.mark.parametrize(
    "lie",
    [
        {"dims": [1 << 40]},
        {"dims": [1 << 60, 1 << 60]},
        {"dims": [0, 1 << 62]},
        {"dims": [-4]},
        {"dtype": 0},
        {"dtype": 20},
        {"dtype": 101},
        {"dims": [1] * 100},
        {"size": 1 << 50, "dims": [1 << 48]},
        {"offset": 1 << 62},
        {"offset": -1},
        {"size": -1},
        {"shard_id": 3},
        {"dtype": 7, "size": 16, "dims": [1 << 50]},
        {"dtype": 7, "size": 1 << 40, "dims": []},
    ],
)
def test_lying_entries_allocate_nothing(small: str, lie: dict[str, object]) -> None:
    import tracemalloc

    _forge(small, **lie)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedFileError):
            BundleReader(small).load("x")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_keys_that_grow_without_end_are_refused(tmp_path: Path) -> None:
    """Prefix compression lets a small block spell out very long keys; their sum is bounded."""
    long, entries = b"k" * 60_000, bytearray()
    entries += sstable.write_varint(0) + sstable.write_varint(len(long)) + b"\0" + long
    shared = sstable.write_varint(len(long))
    for i in range(20_000):
        key = struct.pack(">I", i)
        entries += shared + b"\4\0" + key
    block = bytes(entries) + struct.pack("<II", 0, 1) + b"\0"
    body = block + struct.pack("<I", sstable.mask_crc(google_crc32c.value(block)))
    meta = sstable.build_table([])[:13]
    index = sstable._BlockBuilder()
    index.add(b"z", sstable.write_varint(0) + sstable.write_varint(len(block) - 1))
    tail = index.finish()
    handles = sstable.write_varint(len(body)) + sstable.write_varint(8)
    handles += sstable.write_varint(len(body) + len(meta)) + sstable.write_varint(len(tail) - 5)
    path = tmp_path / "bomb.index"
    path.write_bytes(body + meta + tail + handles.ljust(40, b"\0") + struct.pack("<Q", sstable.MAGIC))
    with pytest.raises(DamagedFileError, match="keys"):
        sstable.read_table(str(path))


def test_compressed_and_foreign_indexes_are_refused_clearly(small: str) -> None:
    block = b"\0" * 8 + b"\1"
    body = block + struct.pack("<I", sstable.mask_crc(google_crc32c.value(block)))
    handles = (sstable.write_varint(0) + sstable.write_varint(8)) * 2
    Path(small + ".index").write_bytes(body + handles.ljust(40, b"\0") + struct.pack("<Q", sstable.MAGIC))
    with pytest.raises(CheckpointError, match="compressed"):
        BundleReader(small)
    for header, text in (
        (protos.BundleHeader(num_shards=1, endianness=1), "big-endian"),
        (protos.BundleHeader(num_shards=1, version={"min_consumer": 9}), "version 9"),
        (protos.BundleHeader(), "no header"),
    ):
        Path(small + ".index").write_bytes(sstable.build_table([(b"", header.SerializeToString() or b"\x08\x00")]))
        with pytest.raises(CheckpointError, match=text):
            BundleReader(small)


def test_writing_refuses_what_it_cannot_say(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="float32"), BundleWriter(str(tmp_path / "a")) as writer:
        writer.add("x", np.zeros(3), "float32")
    with BundleWriter(str(tmp_path / "b")) as writer:
        writer.add("x", np.zeros(3))
        with pytest.raises(CheckpointError, match="twice"):
            writer.add("x", np.zeros(3))
    assert not os.path.exists(tmp_path / "a.index")
    with pytest.raises(CheckpointError, match="object"):
        numpy_dtype("object")


def test_field_numbers_are_tensorflows() -> None:
    from tensorflow.core.framework import types_pb2
    from tensorflow.core.protobuf import saved_model_pb2, tensor_bundle_pb2, trackable_object_graph_pb2

    from optim.bytes.bundle import _NUMBER_TO_NAME

    def fields(descriptor: object, seen: frozenset[str] = frozenset()) -> dict[str, object]:
        return {
            f.name: (
                f.number,
                f.message_type and f.name not in seen and fields(f.message_type, seen | {f.name}),
            )
            for f in descriptor.fields  # type: ignore[attr-defined]
        }

    def within(ours: dict[str, object], theirs: dict[str, object]) -> None:
        for name, (number, inner) in ours.items():  # type: ignore[misc]
            assert theirs[name][0] == number, name  # type: ignore[index]
            if inner:
                within(inner, theirs[name][1])  # type: ignore[index]

    for ours, theirs in (
        (protos.BundleHeader, tensor_bundle_pb2.BundleHeaderProto),
        (protos.BundleEntry, tensor_bundle_pb2.BundleEntryProto),
        (protos.ObjectGraph, trackable_object_graph_pb2.TrackableObjectGraph),
        (protos.SavedModel, saved_model_pb2.SavedModel),
    ):
        within(fields(ours.DESCRIPTOR), fields(theirs.DESCRIPTOR))
    for number, name in _NUMBER_TO_NAME.items():
        plain = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "HALF"}.get(name, name.upper())
        assert types_pb2.DataType.Name(number) == f"DT_{plain}"


def test_several_shards(tmp_path: Path) -> None:
    """TF 1.15, DTensor and every save from more than one device leave one shard per device."""
    import tensorflow as tf

    parts = [str(tmp_path / name) for name in ("a", "b")]
    for part, value in zip(parts, (1.0, 2.0), strict=True):
        tf.raw_ops.SaveV2(prefix=part, tensor_names=[part[-1]], shape_and_slices=[""], tensors=[tf.fill((3,), value)])
    prefix = str(tmp_path / "both")
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=prefix)
    reader = BundleReader(prefix)
    assert reader.shards == 2
    assert [reader.load(key).tolist() for key in "ab"] == [[1.0] * 3, [2.0] * 3]
    os.unlink(prefix + ".data-00001-of-00002")
    with pytest.raises(DamagedFileError, match="00001-of-00002 is missing"):
        BundleReader(prefix).check_sizes()
