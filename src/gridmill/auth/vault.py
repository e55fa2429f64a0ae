"""Encrypts values with the keys of the home. The name and the version of a secret are authenticated data, so
a stored value is valid only for its own secret and version."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from gridmill.auth.key_file import KeyFile, key_id
from gridmill.domain.secret import Secret
from gridmill.errors import StorageError


class FileVault:
    """The vault whose keys are in a file (ports.secrets.Vault)."""

    def __init__(self, path: Path) -> None:
        self._keys = KeyFile(path)

    def encrypt(self, name: str, version: int, value: str, *, created: float, changed: float) -> Secret:
        """See Vault."""
        key = self._keys.newest()
        return Secret(
            name=name,
            version=version,
            sealed=str(_cipher().encrypt(key, value.encode(), _bound(name, version))),
            key_id=key_id(key),
            created=created,
            changed=changed,
        )

    def decrypt(self, secret: Secret) -> str:
        """See Vault."""
        data = _cipher().decrypt(self._key_of(secret), secret.sealed, _bound(secret.name, secret.version))
        if data is None:
            raise StorageError(
                "its stored value is damaged, or was copied from another secret or version",
                hint=f"Add the value again: gridmill add secret {secret.name}",
                place=f"secret {secret.name}",
            )
        return str(data, "utf-8")

    def _key_of(self, secret: Secret) -> bytes:
        keys = self._keys.keys()
        if secret.key_id in keys:
            return keys[secret.key_id]
        again = f"or add the value again: gridmill add secret {secret.name}"
        if not keys:
            raise StorageError(
                "its value cannot be decrypted, because the key file does not exist",
                hint=f"Put the key file {self._keys.path} back (archives and copies of the store do not "
                f"contain it), {again}",
                place=f"secret {secret.name}",
            )
        raise StorageError(
            f"its value was encrypted with the key {secret.key_id}, which {self._keys.path} does not contain",
            hint=f"Add the line of this key to the end of the file, {again}",
            place=f"secret {secret.name}",
        )

    def add_key(self) -> str:
        """See Vault."""
        return self._keys.add()

    def drop_earlier_keys(self) -> None:
        """See Vault."""
        self._keys.keep_newest()

    def seal(self, values: Mapping[str, str], public_key: str, context: str) -> str:
        """See Vault."""
        return str(_cipher().seal(json.dumps(values).encode(), public_key, context))


def _bound(name: str, version: int) -> bytes:
    return f"gridmill secret\0{name}\0{version}".encode()


def _cipher() -> ModuleType:
    try:
        from gridmill.auth import cipher
    except ModuleNotFoundError as error:
        raise StorageError(
            "secrets need the package `cryptography`, which is not installed",
            hint="pip install cryptography",
        ) from error
    return cipher


def make(path: Path) -> FileVault:
    """Returns the vault of a home whose keys are in this file."""
    return FileVault(path)
