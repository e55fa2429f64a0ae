"""This module has the API keys of services. Only the hash of a key is stored, and the key is shown once."""

import hashlib

from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import check_name
from gridmill.errors import ConflictError, NotFoundError

MOST_KEYS = 200
"""The largest number of API keys of a service. Each request is compared with all keys."""
PREFIX = "gms_"
"""The beginning of each API key, by which programs that search files for secrets can find it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceKey:
    """An API key of a service. `sha256` is the SHA-256 hash (hex) of the key, which views leave out.
    `created` is a Unix time in seconds."""

    name: str
    created: float
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewServiceKey:
    """A new API key with its value `key`, which is shown only once. Clients send it as `Authorization: Bearer
    KEY` or as `X-API-Key: KEY`."""

    service: str
    name: str
    key: str
    created: float


def key_hash(key: str) -> str:
    """Return the hash under which a key is stored. A key has 256 random bits, so a quick hash without salt is
    enough."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_lines(keys: tuple[ServiceKey, ...]) -> tuple[str, ...]:
    """Return the lines of the file of API keys (`serving/api_keys.py`)."""
    return tuple(f"{one.sha256} {one.name}" for one in keys)


def with_key(keys: tuple[ServiceKey, ...], key: ServiceKey, service: str) -> tuple[ServiceKey, ...]:
    """Return the keys with one more. Raises InputError for a name that is not allowed, ConflictError."""
    check_name("API key", key.name)
    if any(one.name == key.name for one in keys):
        raise ConflictError(
            f"service {service!r} already has an API key {key.name!r}",
            hint=f"Choose another name, or delete the key: gridmill remove key {service}/{key.name}",
        )
    if len(keys) >= MOST_KEYS:
        raise ConflictError(
            f"service {service!r} has {len(keys)} API keys, and cannot have more",
            hint=f"Delete a key: gridmill remove key {service}/NAME",
        )
    return (*keys, key)


def without_key(keys: tuple[ServiceKey, ...], name: str, service: str) -> tuple[ServiceKey, ...]:
    """Return the keys without the key of this name. Raises NotFoundError."""
    left = tuple(one for one in keys if one.name != name)
    if len(left) == len(keys):
        known = ", ".join(one.name for one in keys) or "none"
        raise NotFoundError(
            f"service {service!r} has no API key {name!r}", hint=f"Its API keys are: {known}."
        )
    return left


def without_hashes(keys: tuple[ServiceKey, ...]) -> tuple[ServiceKey, ...]:
    """Return the keys as they are shown, without their hashes."""
    return tuple(ServiceKey(name=one.name, created=one.created) for one in keys)
