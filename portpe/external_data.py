"""Which files an ONNX graph takes its weights from, read without the onnx package.

A runtime follows a location by itself, so it is looked at before a graph is given to one. Only what that takes of
the protobuf wire format is here: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator

from portpe.errors import SpecError

# Field numbers of onnx.proto, from a model to the place of a tensor's data.
_GRAPH = 7  # ModelProto.graph
_INITIALIZER = 5  # GraphProto.initializer
_EXTERNAL_DATA = 13  # TensorProto.external_data
_KEY, _VALUE = 1, 2  # StringStringEntryProto

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5  # wire types


def locations(model: bytes) -> set[str]:
    """The files that a serialized ModelProto's initializers lie in, as it names them.

    Raises:
        SpecError: the bytes are no protobuf message.
    """
    tensors = (tensor for graph in _fields(model, _GRAPH) for tensor in _fields(graph, _INITIALIZER))
    entries = (entry for tensor in tensors for entry in _fields(tensor, _EXTERNAL_DATA))
    return {
        value.decode("utf-8", "replace")
        for entry in entries
        if b"location" in list(_fields(entry, _KEY))
        for value in _fields(entry, _VALUE)
    }


def _fields(message: bytes, wanted: int) -> Iterator[bytes]:
    """The contents of the length-delimited fields of one number."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == _LENGTH:
            length, place = _varint(message, place)
            if tag >> 3 == wanted:
                yield message[place : place + length]
            place += length
        elif kind == _VARINT:
            _, place = _varint(message, place)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            place += 8 if kind == _EIGHT_BYTES else 4
        else:
            raise SpecError(f"graph must be an ONNX file, got wire type {kind}")
    if place > len(message):
        raise SpecError("graph must be a whole ONNX file, got a truncated one")


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """A base-128 integer and the place after it."""
    value = shift = 0
    while place < len(message):
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
    raise SpecError("graph must be a whole ONNX file, got a truncated one")
