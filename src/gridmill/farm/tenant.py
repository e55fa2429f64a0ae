"""A tenant, which is a home whose jobs run on this farm, and its invitation."""

import hashlib
import hmac
import re
from collections.abc import Iterable

from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError

JOIN_SECONDS = 3600.0
"""The number of seconds for which an invitation is valid."""
_NAME = re.compile(r"[a-z][a-z0-9-]{0,22}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant of the farm. `certificate` is the SHA-256 hash (hex) of the tenant's client certificate, and
    `token_hash` is the SHA-256 hash of its token. `user` is the Unix user of the tenant's jobs, or None if
    the jobs run as the user of the farm. `revoked` is true if all requests of the tenant are refused."""

    name: str
    certificate: str
    token_hash: str
    version: str
    added: float
    user: int | None = None
    revoked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LastContact:
    """The Unix time of the last request of a tenant."""

    tenant: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """An invitation to join the farm. A client that sends the secret with this hash before `expires` (Unix
    time) becomes a tenant. The secret can be used once. If the invitation has a `name`, only the tenant with
    this name can use it, and gets a new certificate and token. `key` is the fingerprint of the key for which
    the invitation was used. The same client can repeat its request, because it may not have received the
    response."""

    hash: str
    expires: float
    name: str = ""
    key: str = ""


def check_name(name: str) -> str:
    """Checks the name of a tenant and returns it. Raises InputError if the name cannot be the name of a
    folder and of a Unix user."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name[:60]!r} is not a valid tenant name",
            hint="Use 1 to 23 lower-case letters, digits and dashes. The first is a letter.",
            place="tenant",
        )
    return name


def hash_of(secret: str) -> str:
    """Returns the SHA-256 hash (hex) of a secret. Secrets have 256 random bits, so a slow hash function is
    not needed."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def invited(invitations: Iterable[Invitation], secret: str, now: float) -> Invitation | None:
    """Returns the valid invitation with this secret. Comparing takes the same time for each invitation, so
    that the time reveals nothing about the secret."""
    secret_hash, invitation = hash_of(secret), None
    for one in invitations:
        if hmac.compare_digest(one.hash, secret_hash) and now < one.expires:
            invitation = one
    return invitation


def authorised(tenants: Iterable[Tenant], certificate: str, token: str) -> Tenant | None:
    """Returns the tenant that has both this certificate and this token. A revoked tenant is never
    returned."""
    token_hash, accepted = hash_of(token), None
    for tenant in tenants:  # compare with all tenants, so that the time does not reveal which one is similar
        same = hmac.compare_digest(tenant.token_hash, token_hash) and hmac.compare_digest(
            tenant.certificate, certificate
        )
        if same and certificate and not tenant.revoked:
            accepted = tenant
    return accepted


def unknown_tenant() -> InputError:
    """Returns the error for a client that is not a tenant."""
    return InputError(
        "this farm has no tenant with that certificate and token",
        hint="`gridmill farm invite` on the farm prints a command. Run it on your machine to join the farm.",
        place="Authorization",
    )
