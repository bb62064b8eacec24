"""A look at a model that leaves its large tensors in the file: what is said of a model with gigabytes of weights takes
milliseconds, for nothing but the fields between them is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import onnx
from onnx import StringStringEntryProto, TensorProto

from modelc.errors import ModelError
from modelc.frontend.load.read import check_file, parse_model, read_model

LARGE = 1 << 20  # bytes of a message that is looked into, and of a tensor that stays in the file
MOST_DEPTH = 100  # of messages in messages: protobuf's own limit
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # protobuf's wire types, but for its old groups
RAW = TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number
BESIDE_RAW = {TensorProto.DESCRIPTOR.fields_by_name[x].number for x in ("dims", "data_type", "name", "doc_string")}


class _Unreadable(Exception):
    """The bytes are not the plain protobuf that is looked for."""


class _Field(NamedTuple):
    """Of a message in a file: it takes the bytes from `start` to `end`, its content those from `content`."""

    number: int
    wire: int
    start: int
    content: int
    end: int


def read_outline(path: str | Path) -> onnx.ModelProto:
    """The model, as `read_model` gives it, but what a tensor holds in more than LARGE bytes is external data, in the
    model's own file. Raises ModelError, as that does."""
    path = Path(path)
    check_file(path)
    try:
        location = path.name.encode().decode()
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < LARGE or "\\" in location:
                return read_model(path)
            content = b"".join(_outlined(file, 0, size, onnx.ModelProto.DESCRIPTOR, location, 0))
    except (_Unreadable, UnicodeError):
        return read_model(path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    return parse_model(path, content)


def _outlined(file: BinaryIO, start: int, end: int, kind: Any, location: str, depth: int) -> Iterator[bytes]:
    """The message of `kind` in these bytes of the file, without what large tensors in it hold."""
    if depth > MOST_DEPTH:
        raise _Unreadable
    fields = list(_fields(file, start, end))
    raw = [f for f in fields if f.number == RAW and f.end - f.content >= LARGE]
    if kind is TensorProto.DESCRIPTOR and len(raw) == 1 and {f.number for f in fields} <= {RAW, *BESIDE_RAW}:
        yield _bytes(file, start, raw[0].start)
        yield _bytes(file, raw[0].end, end)
        yield _external(location, raw[0].content, raw[0].end - raw[0].content)
        return
    kept = start
    for f in fields:
        inner = kind.fields_by_number.get(f.number)
        if f.wire != BYTES or f.end - f.content < LARGE or inner is None or inner.message_type is None:
            continue
        yield _bytes(file, kept, f.start)
        content = b"".join(_outlined(file, f.content, f.end, inner.message_type, location, depth + 1))
        yield _varint(f.number << 3 | BYTES) + _varint(len(content)) + content
        kept = f.end
    yield _bytes(file, kept, end)


def _external(location: str, offset: int, length: int) -> bytes:
    """The fields of a tensor that say where its data is."""
    said = {"location": location, "offset": str(offset), "length": str(length)}
    entries = [StringStringEntryProto(key=key, value=value) for key, value in said.items()]
    fields: bytes = TensorProto(data_location=TensorProto.EXTERNAL, external_data=entries).SerializeToString()
    return fields


def _fields(file: BinaryIO, start: int, end: int) -> Iterator[_Field]:
    place = start
    while place < end:
        file.seek(place)
        tag, content = _read_varint(file, place)
        wire = tag & 7
        if wire == VARINT:
            _, after = _read_varint(file, content)
        elif wire == BYTES:
            length, content = _read_varint(file, content)
            after = content + length
        elif wire in (FIXED32, FIXED64):
            after = content + (4 if wire == FIXED32 else 8)
        else:
            raise _Unreadable
        if after > end:
            raise _Unreadable
        yield _Field(tag >> 3, wire, place, content, after)
        place = after


def _read_varint(file: BinaryIO, place: int) -> tuple[int, int]:
    """The number that begins at `place`, where the file is, and the place behind it."""
    number = 0
    for k in range(10):
        byte = file.read(1)
        if not byte:
            raise _Unreadable
        number |= (byte[0] & 127) << 7 * k
        if byte[0] < 128:
            return number, place + k + 1
    raise _Unreadable


def _varint(number: int) -> bytes:
    """As protobuf writes a number."""
    groups = bytearray()
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes((*groups, number))


def _bytes(file: BinaryIO, start: int, end: int) -> bytes:
    file.seek(start)
    contents = file.read(end - start)
    if len(contents) != end - start:
        raise _Unreadable
    return contents
