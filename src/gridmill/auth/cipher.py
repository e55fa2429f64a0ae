"""The ciphers of secrets: AES-256-GCM with a random nonce, and X25519 key agreement for values that are sent
to a pod. The module needs the package cryptography, so it is imported only when a secret is used."""

import base64
import binascii
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gridmill.errors import InputError

_NONCE_BYTES, _KEY_BYTES = 12, 32
_INFO = b"gridmill secrets for an attempt"


def encrypt(key: bytes, data: bytes, bound: bytes) -> str:
    """Returns the nonce and the encrypted data in base64. `bound` is authenticated but not encrypted: the
    data can be decrypted only with the same `bound`."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, data, bound)).decode()


def decrypt(key: bytes, sealed: str, bound: bytes) -> bytes | None:
    """Returns the data, or None if the text is damaged or was encrypted with another key or `bound`."""
    try:
        data = base64.b64decode(sealed, validate=True)
        return AESGCM(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], bound)
    except (InvalidTag, ValueError, binascii.Error):
        return None


class Receiver:
    """The owner of a key pair that exists only in the memory of this process."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self._public = self._private.public_key().public_bytes_raw()
        self.public_key = base64.b64encode(self._public).decode()

    def open(self, sealed: str, context: str) -> bytes:
        """Returns the data that `seal` encrypted for this receiver and this context. Raises InputError if the
        data was encrypted for another receiver or context, or was changed."""
        sender, _, rest = sealed.partition(".")
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(base64.b64decode(sender)))
        except (ValueError, binascii.Error):
            shared = b""
        key = _agreed(shared, base64.b64decode(sender), self._public) if shared else bytes(_KEY_BYTES)
        data = decrypt(key, rest, context.encode())
        if data is None:
            raise InputError("the secrets of this attempt were encrypted for another receiver")
        return data


def seal(data: bytes, public_key: str, context: str) -> str:
    """Returns the data encrypted for the owner of the public key. Only the owner can decrypt the data, and
    only with the same context. Raises InputError for an invalid public key."""
    own = X25519PrivateKey.generate()
    sender = own.public_key().public_bytes_raw()
    try:
        receiver = base64.b64decode(public_key, validate=True)
        shared = own.exchange(X25519PublicKey.from_public_bytes(receiver))
    except (ValueError, binascii.Error) as error:
        raise InputError("this is not a public key for secrets") from error
    encrypted = encrypt(_agreed(shared, sender, receiver), data, context.encode())
    return f"{base64.b64encode(sender).decode()}.{encrypted}"


def _agreed(shared: bytes, sender: bytes, receiver: bytes) -> bytes:
    """Returns the key for one message, which depends on both public keys (RFC 5869, RFC 7748)."""
    hkdf = HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=sender + receiver, info=_INFO)
    return hkdf.derive(shared)
