"""Encodes records as bytes and decodes them, for the record store, the links and the API. Only this module
uses msgspec.

Dataclasses of `gridmill.domain` are encoded as JSON objects with their field names, and enums are encoded as
their values.
"""

import hashlib
import threading
from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from gridmill.domain.pod_protocol import MESSAGES, Message
from gridmill.errors import InputError

T = TypeVar("T")

_ENCODER = msgspec.json.Encoder()
_CANONICAL = msgspec.json.Encoder(order="sorted")


_INSPECTING = threading.Lock()
"""Held while msgspec inspects a class. It stores what it knows of a dataclass before it knows all of it, and
another thread that uses this ends the process with a segmentation fault (msgspec 0.22.0)."""


@cache
def _decoder(kind: Hashable) -> msgspec.json.Decoder[Any]:
    with _INSPECTING:
        return msgspec.json.Decoder(cast(Any, kind))


def encode(noun: object) -> bytes:
    """Encodes a record as one line of JSON."""
    return _ENCODER.encode(noun)


def decode(data: bytes | str, kind: type[T]) -> T:
    """Decodes a record of the class `kind` from JSON. Raises InputError, which contains the place of the
    error (such as `$.jobs[2].name`)."""
    try:
        noun: T = _decoder(cast(Hashable, kind)).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not a {getattr(kind, '__name__', kind)}: {error}") from error
    return noun


def to_builtins(noun: object) -> Any:  # noqa: ANN401  JSON has no better type
    """Converts a record to dictionaries, lists, strings and numbers, as in JSON."""
    return msgspec.to_builtins(noun)


def from_builtins(value: object, kind: type[T]) -> T:
    """Converts dictionaries and lists to a record of the class `kind`. Raises InputError."""
    _decoder(cast(Hashable, kind))  # all classes in `kind` are inspected
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"not a {getattr(kind, '__name__', kind)}: {error}") from error


def fingerprint(*parts: object) -> str:
    """Returns the SHA-256 hash (hex) of the canonical JSON of `parts`. Equal values have equal
    fingerprints."""
    return hashlib.sha256(_CANONICAL.encode(parts)).hexdigest()


def encode_message(message: Message) -> bytes:
    """Returns a protocol message as one line of JSON without its newline, in the form `["kind",{...}]`."""
    return _ENCODER.encode((type(message).__name__.lower(), message))


def decode_message(line: bytes) -> Message:
    """Returns the protocol message that a line of JSON contains. Raises InputError."""
    try:
        kind, body = msgspec.json.decode(line, type=tuple[str, msgspec.Raw])
        message: Message = _decoder(cast(Hashable, MESSAGES[kind])).decode(body)
    except (msgspec.DecodeError, KeyError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not a protocol message: {error}") from error
    return message


def encode_passed(channel: int, message: Message | None) -> bytes:
    """Returns a relayed message to or from a pod of a farm, as one line of JSON without its newline, in the
    form `[channel, ["kind",{...}]]`. If the connection was closed, the message is null."""
    return b"[%d,%s]" % (channel, b"null" if message is None else encode_message(message))


def decode_passed(line: bytes) -> tuple[int, Message | None]:
    """Returns the channel and the relayed message that a line of JSON contains. Raises InputError."""
    try:
        channel, body = msgspec.json.decode(line, type=tuple[int, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not a passed message: {error}") from error
    text = bytes(body).strip()
    return channel, None if text == b"null" else decode_message(text)
