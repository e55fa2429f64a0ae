"""The interfaces to secrets: `Secrets` gives the value of a secret to the code that needs it, and `Vault`
encrypts values."""

from collections.abc import Mapping
from typing import Protocol

from gridmill.domain.secret import Secret
from gridmill.errors import StorageError


class Secrets(Protocol):
    """The values of secrets, for code of the control node that needs them now, such as a cloud provider. The
    caller must not store, log or show a value."""

    def resolve(self, name: str) -> str:
        """Return the present value of a secret. Raises NotFoundError if there is no such secret, and
        StorageError if its value cannot be decrypted. The errors name the secret and what to do."""


class Vault(Protocol):
    """Encrypts and decrypts values with the key of the home. All methods are safe to call from several
    threads. No error of a method contains a value."""

    def encrypt(self, name: str, version: int, value: str, *, created: float, changed: float) -> Secret:
        """Return the record of a secret with this value. If the home has no key, one is created. Raises
        StorageError for a key file that cannot be used."""

    def decrypt(self, secret: Secret) -> str:
        """Return the value of a record. Raises StorageError if the key is missing, is another key or is
        readable by others, and if the record is damaged or was moved to another name."""

    def add_key(self) -> str:
        """Create a new key, with which all later values are encrypted, and return its id. The earlier keys
        stay in the file of the home. Raises StorageError."""

    def drop_earlier_keys(self) -> None:
        """Delete all keys except the newest from the file of the home. Raises StorageError."""

    def seal(self, values: Mapping[str, str], public_key: str, context: str) -> str:
        """Encrypt values for the owner of a public key. Only the owner can decrypt the result, and only with
        the same context. Raises InputError for an invalid public key."""


class NoVault:
    """The vault of a control node that has no key. Every call fails."""

    def encrypt(self, name: str, version: int, value: str, *, created: float, changed: float) -> Secret:
        """See Vault."""
        raise _no_vault(name)

    def decrypt(self, secret: Secret) -> str:
        """See Vault."""
        raise _no_vault(secret.name)

    def add_key(self) -> str:
        """See Vault."""
        raise _no_vault("")

    def drop_earlier_keys(self) -> None:
        """See Vault."""
        raise _no_vault("")

    def seal(self, values: Mapping[str, str], public_key: str, context: str) -> str:
        """See Vault."""
        raise _no_vault(", ".join(values))


def _no_vault(name: str) -> StorageError:
    return StorageError("this control node has no key for secrets", place=f"secret {name}")
