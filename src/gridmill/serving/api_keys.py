"""API keys of a service. The service stores only their SHA-256 hashes."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path

from gridmill.errors import InputError
from gridmill.serving.errors import UnauthorizedError


class ApiKeys:
    """The API keys of a file. The file has one SHA-256 hash (hex) per line, optionally followed by a space
    and a name. Empty lines and lines that start with `#` are skipped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_at = 0
        self._hashes: Sequence[bytes] = ()
        self.reload()

    def reload(self) -> None:
        """Read the file if it changed. Raises InputError if the file cannot be read."""
        try:
            changed = self._path.stat().st_mtime_ns
            if changed != self._read_at:
                self._hashes = _hashes(self._path)
                self._read_at = changed
        except OSError as error:
            raise InputError(
                f"the file of API keys cannot be read: {self._path}: {error.strerror}"
            ) from error

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise UnauthorizedError if the headers contain none of the keys."""
        key = _key(headers)
        given = hashlib.sha256(key).digest()
        # all hashes are compared, so that the time shows neither a hash nor its place
        matches = [hmac.compare_digest(given, one) for one in self._hashes]
        if not key or not any(matches):
            raise UnauthorizedError("the request has no valid API key")


def _key(headers: Mapping[bytes, bytes]) -> bytes:
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"").strip()


def _hashes(path: Path) -> tuple[bytes, ...]:
    lines = path.read_text("utf-8", errors="replace").splitlines()
    found: list[bytes] = []
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].split()
        if not text:
            continue
        try:
            digest = bytes.fromhex(text[0])
        except ValueError:
            digest = b""
        if len(digest) != hashlib.sha256().digest_size:
            raise InputError(f"{path}:{number}: not a SHA-256 hash in hex")
        found.append(digest)
    return tuple(found)
