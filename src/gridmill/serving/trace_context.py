"""The header `traceparent` of a request, as the W3C recommendation Trace Context defines it."""

import re
import secrets

_FORM = re.compile(
    rb"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
    rb"(?P<rest>-[^\r\n]*)?"
)
_KNOWN, _FORBIDDEN = b"00", b"ff"
_NO_TRACE, _NO_PARENT = b"0" * 32, b"0" * 16
_KNOWN_FLAGS = 0b11
"""The flags *sampled* and *random trace id*. The recommendation sets unknown flags to zero."""


def traceparent_of(given: bytes) -> bytes:
    """Return the `traceparent` of version 00 with the trace of a given header. If the header is not valid, it
    is ignored, and the result begins a new trace that is not sampled."""
    return _read(given.strip(b" \t")) or _new()


def _read(given: bytes) -> bytes | None:
    """Return the header in version 00; None if it is not valid. A later version may have further fields,
    which are left out."""
    found = _FORM.fullmatch(given)
    if found is None or found["version"] == _FORBIDDEN:
        return None
    if found["trace"] == _NO_TRACE or found["parent"] == _NO_PARENT:
        return None
    if found["version"] == _KNOWN and found["rest"] is not None:
        return None
    flags = int(found["flags"], 16) & _KNOWN_FLAGS
    return b"%s-%s-%s-%02x" % (_KNOWN, found["trace"], found["parent"], flags)


def _new() -> bytes:
    trace, parent = _random(16), _random(8)
    return f"00-{trace}-{parent}-00".encode()


def _random(size: int) -> str:
    """Return random bytes in hexadecimal digits, which are not all zero."""
    while not any(found := secrets.token_bytes(size)):
        pass
    return found.hex()
