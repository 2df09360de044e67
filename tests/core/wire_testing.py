"""Request messages made byte by byte, and packed requests taken apart, for the tests of the wire parser."""

import struct

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from tests.core.test_packer import numpy_dtype, packer, part  # noqa: F401  (the descriptions are the same)

VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)


def varint(value: int, length: int = 0) -> bytes:
    """``value`` as a varint; with ``length``, padded to that many bytes."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80 or len(out) + 1 < length:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    return bytes([*out, value])


def tag(field: int, kind: int) -> bytes:
    return varint(field << 3 | kind)


def of_bytes(field: int, value: bytes) -> bytes:
    return tag(field, BYTES) + varint(len(value)) + value


def of_varint(field: int, value: int) -> bytes:
    return tag(field, VARINT) + varint(value)


def shape_proto(dims) -> bytes:
    return b"".join(of_bytes(2, of_varint(1, d)) for d in dims)


def tensor_proto(dtype: str, dims, values: bytes = b"") -> bytes:
    """A TensorProto; ``values`` are whole fields."""
    return of_varint(1, tf.as_dtype(dtype).as_datatype_enum) + of_bytes(2, shape_proto(dims)) + values


def predict_request(inputs: dict[str, bytes], model: str = "m") -> bytes:
    body = of_bytes(1, of_bytes(1, model.encode()))
    for name, tensor in inputs.items():
        body += of_bytes(2, of_bytes(1, name.encode()) + of_bytes(2, tensor))
    return body


def infer_input(name: str, datatype: str, dims, contents: bytes = b"") -> bytes:
    packed = b"".join(varint(d) for d in dims)
    message = of_bytes(1, name.encode()) + of_bytes(2, datatype.encode()) + of_bytes(3, packed)
    return of_bytes(5, message + (of_bytes(5, contents) if contents else b""))


def infer_request(inputs, raw=()) -> bytes:
    return of_bytes(1, b"m") + b"".join(inputs) + b"".join(of_bytes(7, one) for one in raw)


def byte_strings(values) -> bytes:
    """KServe's BYTES: four bytes of length before each."""
    return b"".join(struct.pack("<I", len(v)) + v for v in values)


def arrays_of(packed, dtypes) -> list[np.ndarray]:
    """The inputs of a PackedRequest, in order."""
    arena, shapes, strings = packed.arena.tobytes(), list(packed.shapes), list(packed.strings)
    found = []
    at = 0
    for dtype in dtypes:
        rank = shapes.pop(0)
        dims = [shapes.pop(0) for _ in range(rank)]
        count = int(np.prod(dims, dtype=np.int64))
        if dtype == "string":
            array = np.empty(count, object)
            array[:] = strings[:count]
            del strings[:count]
        else:
            size = count * numpy_dtype(dtype).itemsize
            array = np.frombuffer(arena[at : at + size], numpy_dtype(dtype))
            at += -(-size // 64) * 64
        found.append(array.reshape(dims))
    assert not shapes and not strings
    return found


def ndarray_of(message: bytes) -> np.ndarray:
    """What TensorFlow's own Python makes of a TensorProto. Raises whatever it raises."""
    proto = tensor_pb2.TensorProto.FromString(message)
    return tf.make_ndarray(proto)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal to the bit, shape and all."""
    if a.shape != b.shape:
        return False
    if a.dtype == object or b.dtype == object:
        # tf.make_ndarray fills up with "" where a list has no value at all.
        return [x or b"" for x in a.ravel()] == [x or b"" for x in b.ravel()]
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()
