"""The file with the keys that encrypt secrets. The file has one key in each line. The first key encrypts, and
all keys decrypt.

The file is outside of the record store, so a copy of the store does not contain the keys.
"""

import hashlib
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from gridmill.errors import StorageError
from gridmill.private_files import write_private

KEY_BYTES = 32


def key_id(key: bytes) -> str:
    """Returns the id of a key. The key cannot be computed from its id."""
    return hashlib.sha256(b"gridmill secret key\0" + key).hexdigest()[:16]


class KeyFile:
    """The key file of a home. The file is read again for each call, so a key file that was put back works at
    once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def keys(self) -> Mapping[str, bytes]:
        """Returns the keys by id, the newest key first; empty if the file does not exist. Raises StorageError
        if the file is readable by others, belongs to another user or is damaged."""
        try:
            found = self.path.stat()
            self._check_owner(found)
            lines = self.path.read_text("ascii").split()
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise self._damaged(str(error)) from error
        if not lines:
            raise self._damaged("it is empty")
        return {key_id(key): key for key in map(self._key, lines)}

    def newest(self) -> bytes:
        """Returns the key that encrypts. Creates the file if it does not exist. Raises StorageError."""
        keys = self.keys()
        if not keys:
            self._write([secrets.token_bytes(KEY_BYTES)])
            keys = self.keys()
        return next(iter(keys.values()))

    def add(self) -> str:
        """Adds a new key in front of the other keys, and returns its id. Raises StorageError."""
        key = secrets.token_bytes(KEY_BYTES)
        self._write([key, *self.keys().values()])
        return key_id(key)

    def keep_newest(self) -> None:
        """Deletes all keys except the newest. Raises StorageError."""
        self._write([self.newest()])

    def _key(self, line: str) -> bytes:
        try:
            key = bytes.fromhex(line)
        except ValueError:
            raise self._damaged("a line is not a hexadecimal number") from None
        if len(key) != KEY_BYTES:
            raise self._damaged(f"a key has {len(key)} bytes instead of {KEY_BYTES}")
        return key

    def _write(self, keys: Sequence[bytes]) -> None:
        try:
            write_private(self.path, b"".join(key.hex().encode() + b"\n" for key in keys))
        except OSError as error:
            raise StorageError(
                f"the key file for secrets cannot be written: {error.strerror}", place=str(self.path)
            ) from error

    def _check_owner(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise self._damaged("it is not a regular file")
        if found.st_uid not in (os.geteuid(), 0):
            raise StorageError(
                f"the key file for secrets belongs to another user (uid {found.st_uid})",
                hint=f"chown {os.geteuid()} {self.path}",
                place=str(self.path),
            )
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise StorageError(
                "other users can read the key file for secrets (its mode is "
                f"{stat.S_IMODE(found.st_mode):04o})",
                hint=f"Run `chmod 600 {self.path}`. If others may have read the file, change the "
                "values where they are valid, and run `gridmill configure secret-key new`.",
                place=str(self.path),
            )

    def _damaged(self, why: str) -> StorageError:
        return StorageError(
            f"the key file for secrets is damaged: {why}",
            hint="Put a copy of the file back. Without a copy, move the file away and add each secret again: "
            "gridmill add secret NAME",
            place=str(self.path),
        )
