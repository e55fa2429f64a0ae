"""Checks the messages of an Arrow stream before the stream is decoded, so that a small body cannot take much
memory: a stream can declare buffers that expand, and the parts of its schema can share bytes.

Source: the columnar format of Apache Arrow (Message.fbs and Schema.fbs), and the encoding of FlatBuffers.
"""

import struct
from collections.abc import Iterator

import pyarrow as pa

from gridmill.serving.errors import MalformedError
from gridmill.serving.request import too_large

MOST_BATCHES = 128
"""The largest number of record batches in a stream. Each of them takes time in the event loop."""
MOST_MESSAGES = 1_024
MOST_COLUMNS = 10_000
MOST_SCHEMA_BYTES = 1 << 20
"""The names and the metadata of all columns have at most this number of bytes."""
_ENDS = (b"\xff\xff\xff\xff\0\0\0\0", b"\0\0\0\0")
_NESTED = {12, 13, 14, 16, 17, 21, 22, 25, 26}
"""The numbers of the types list, struct, union, fixed-size list, map, large list, run-end encoded, list view
and large list view."""
_TIMESTAMP = 10
_NOT_COMPRESSED = -1
_BROKEN = (pa.ArrowException, OSError, struct.error, ValueError, OverflowError)


def check_messages(body: bytes, most_bytes: int) -> None:
    """Check that a stream is whole, has no nested columns, and has at most `most_bytes` bytes after its
    decompression. Raises MalformedError, TooLargeError."""
    try:
        _Stream(most_bytes).check(body)
    except _BROKEN as error:
        raise not_arrow(error) from error


def not_arrow(error: Exception) -> MalformedError:
    """Return the error for a body that pyarrow cannot read."""
    return MalformedError(f"the body is not a valid Arrow stream: {str(error).splitlines()[0][:300]}")


class _Stream:
    """The parts of a stream so far."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = self._text_bytes = self._batches = 0

    def check(self, body: bytes) -> None:
        if not body:
            raise MalformedError("the body is empty, not an Arrow stream")
        source = pa.BufferReader(body)
        end = 0
        for number, message in enumerate(pa.ipc.MessageReader.open_stream(source)):
            if number >= MOST_MESSAGES:
                raise _too_many(f"{MOST_MESSAGES} messages")
            self._check_message(number, message)
            end = source.tell()
        rest = body[end:]
        if not rest.startswith(_ENDS):
            raise MalformedError("the Arrow stream is not complete: it has no end", hint="Close the writer.")
        if rest not in _ENDS:
            raise MalformedError("further bytes follow the end of the Arrow stream")
        if not end:
            raise MalformedError("the Arrow stream has no schema")

    def _check_message(self, number: int, message: pa.ipc.Message) -> None:
        content = _Table.root(message.metadata)
        self._count_pairs(content, 4)
        header = content.table(2)
        if (message.type == "schema") != (number == 0):
            raise MalformedError("the Arrow stream does not have one schema, at its begin")
        if message.type == "schema":
            self._check_schema(header)
        elif message.type == "dictionary":
            if header.flag(2):
                raise MalformedError(
                    "the Arrow stream changes a dictionary by a delta", hint="Write complete dictionaries."
                )
            self._count_buffers(header.table(1), message.body)
        elif message.type == "record batch":
            self._batches += 1
            if self._batches > MOST_BATCHES:
                raise _too_many(f"{MOST_BATCHES} record batches")
            self._count_buffers(header, message.body)
        else:
            raise MalformedError(f"the Arrow stream has a message of the type {message.type!r}")

    def _check_schema(self, schema: "_Table") -> None:
        self._count_pairs(schema, 2)
        fields = schema.vector(1)
        if len(fields) > MOST_COLUMNS:
            raise _too_many(f"{MOST_COLUMNS} columns")
        for field in fields:
            name = field.text(0)
            self._count_text(len(name))
            self._count_pairs(field, 6)
            kind = field.number(2)
            if kind in _NESTED or field.vector(5):
                text = name.decode("utf-8", "replace")[:200]
                raise MalformedError(
                    f"the column {text!r} of the Arrow stream is nested",
                    hint="Send columns of numbers, booleans and texts only.",
                )
            if kind == _TIMESTAMP:
                self._count_text(len(field.table(3).text(1)))

    def _count_pairs(self, table: "_Table", slot: int) -> None:
        for pair in table.vector(slot):
            self._count_text(len(pair.text(0)) + len(pair.text(1)))

    def _count_text(self, size: int) -> None:
        self._text_bytes += size + 1
        if self._text_bytes > MOST_SCHEMA_BYTES:
            raise _too_many(f"{MOST_SCHEMA_BYTES} bytes of names and metadata")

    def _count_buffers(self, batch: "_Table", body: pa.Buffer) -> None:
        """Add the size of compressed buffers. The size of others is that of their bytes in the body, or
        of the values that are decoded from them, which is limited later."""
        if not batch.has(3):
            return
        for offset, length in batch.pairs(2):
            if length < 8:
                continue
            (declared,) = struct.unpack("<q", body[offset : offset + 8])
            size = length - 8 if declared == _NOT_COMPRESSED else declared
            if size < 0:
                raise MalformedError("the Arrow stream has a compressed buffer of negative size")
            self._bytes += size
            if self._bytes > self._most_bytes:
                raise too_large(self._most_bytes)


def _too_many(what: str) -> MalformedError:
    return MalformedError(f"the Arrow stream has more than {what}", hint="Write fewer and larger batches.")


class _Table:
    """A table of a FlatBuffer, whose fields are read by their number. pyarrow has verified the buffer."""

    def __init__(self, content: bytes, at: int) -> None:
        self._content, self._at = content, at
        self._fields = at - self._int("<i", at) if at else 0

    @classmethod
    def root(cls, content: pa.Buffer) -> "_Table":
        """Return the first table of a buffer."""
        data = content.to_pybytes()
        return cls(data, struct.unpack_from("<I", data)[0])

    def _int(self, form: str, at: int) -> int:
        number: int = struct.unpack_from(form, self._content, at)[0]
        return number

    def _place(self, slot: int) -> int:
        """Return the place of a field; 0 if the table does not have it."""
        entry = 4 + 2 * slot
        if not self._at or entry >= self._int("<H", self._fields):
            return 0
        offset = self._int("<H", self._fields + entry)
        return self._at + offset if offset else 0

    def _target(self, slot: int) -> int:
        place = self._place(slot)
        return place + self._int("<I", place) if place else 0

    def has(self, slot: int) -> bool:
        """Return whether the table has a field."""
        return self._place(slot) > 0

    def number(self, slot: int) -> int:
        """Return a field of one byte; 0 if the table does not have it."""
        place = self._place(slot)
        return self._int("<B", place) if place else 0

    def flag(self, slot: int) -> bool:
        """Return a boolean field."""
        return bool(self.number(slot))

    def table(self, slot: int) -> "_Table":
        """Return a field that is a table. If there is none, the result has no fields."""
        return _Table(self._content, self._target(slot))

    def text(self, slot: int) -> bytes:
        """Return a field that is a text."""
        at = self._target(slot)
        return self._content[at + 4 : at + 4 + self._int("<I", at)] if at else b""

    def vector(self, slot: int) -> "_Vector":
        """Return a field that is a vector of tables."""
        return _Vector(self._content, self._target(slot))

    def pairs(self, slot: int) -> list[tuple[int, int]]:
        """Return a field that is a vector of structs with two long numbers."""
        at = self._target(slot)
        count = self._int("<I", at) if at else 0
        return list(struct.iter_unpack("<qq", self._content[at + 4 : at + 4 + 16 * count]))


class _Vector:
    """A vector of tables. The tables are read one by one, because many of them may share bytes."""

    def __init__(self, content: bytes, at: int) -> None:
        self._content, self._at = content, at

    def __len__(self) -> int:
        length: int = struct.unpack_from("<I", self._content, self._at)[0] if self._at else 0
        return length

    def __iter__(self) -> Iterator[_Table]:
        for number in range(len(self)):
            place = self._at + 4 + 4 * number
            yield _Table(self._content, place + struct.unpack_from("<I", self._content, place)[0])
