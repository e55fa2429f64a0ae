"""Encodes records as bytes and back, for the store, the links and the API (only this file uses msgspec).

Dataclasses of `gridmill.domain` are encoded as JSON objects with their field names, enums as their values.
"""

import hashlib
from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from gridmill.domain.pod_protocol import MESSAGES, Message
from gridmill.errors import InputError

T = TypeVar("T")

_ENCODER = msgspec.json.Encoder()
_CANONICAL = msgspec.json.Encoder(order="sorted")


@cache
def _decoder(kind: Hashable) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(cast(Any, kind))


def encode(noun: object) -> bytes:
    """Encode a record as one line of JSON."""
    return _ENCODER.encode(noun)


def decode(data: bytes | str, kind: type[T]) -> T:
    """Decode a record of `kind` from JSON. Raises InputError with the place (`$.jobs[2].name`)."""
    try:
        noun: T = _decoder(cast(Hashable, kind)).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not a {getattr(kind, '__name__', kind)}: {error}") from error
    return noun


def to_builtins(noun: object) -> Any:  # noqa: ANN401  JSON has no better type
    """Convert a record to dicts, lists, strings and numbers in the form of JSON."""
    return msgspec.to_builtins(noun)


def from_builtins(value: object, kind: type[T]) -> T:
    """Convert dicts and lists to a record of `kind`. Raises InputError."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"not a {getattr(kind, '__name__', kind)}: {error}") from error


def fingerprint(*parts: object) -> str:
    """The SHA-256 (hex) of the canonical JSON of `parts`: equal values have equal fingerprints."""
    return hashlib.sha256(_CANONICAL.encode(parts)).hexdigest()


def encode_message(message: Message) -> bytes:
    """A protocol message as one JSON line without its newline: `["kind",{...}]`."""
    return _ENCODER.encode((type(message).__name__.lower(), message))


def decode_message(line: bytes) -> Message:
    """The message in a line. Raises InputError."""
    try:
        kind, body = msgspec.json.decode(line, type=tuple[str, msgspec.Raw])
        message: Message = _decoder(cast(Hashable, MESSAGES[kind])).decode(body)
    except (msgspec.DecodeError, KeyError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not a protocol message: {error}") from error
    return message


def encode_passed(channel: int, message: Message | None) -> bytes:
    """A relayed message to or from a farm's pod, as one JSON line without its newline: `[channel,
    ["kind",{...}]]`; null for a connection that closed."""
    return b"[%d,%s]" % (channel, b"null" if message is None else encode_message(message))


def decode_passed(line: bytes) -> tuple[int, Message | None]:
    """Decode the channel and the message of a line. Raises InputError."""
    try:
        channel, body = msgspec.json.decode(line, type=tuple[int, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not a passed message: {error}") from error
    text = bytes(body).strip()
    return channel, None if text == b"null" else decode_message(text)
