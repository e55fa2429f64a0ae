"""A tenant: a grid whose jobs run on this farm; and its invitation."""

import hashlib
import hmac
import re
from collections.abc import Iterable

from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError

JOIN_SECONDS = 3600.0
"""How long an invitation is valid."""
_NAME = re.compile(r"[a-z][a-z0-9-]{0,22}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant. `certificate` is the SHA-256 (hex) of its client certificate, `token_hash` that of its
    token. `user` is the Unix user of its jobs; None: the user of the farm. `revoked`: all its requests are
    refused."""

    name: str
    certificate: str
    token_hash: str
    version: str
    added: float
    user: int | None = None
    revoked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LastContact:
    """When a tenant sent its last request (Unix time)."""

    tenant: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """An invitation. A client that sends the secret with this hash before `expires` (Unix time) becomes a
    tenant, once. With `name`, only the tenant of that name can use it, and gets a new certificate and token.
    `key`: the fingerprint of the key for which it was used; the same client can repeat its request, because
    it may not have received the answer."""

    hash: str
    expires: float
    name: str = ""
    key: str = ""


def check_name(name: str) -> str:
    """The name, if it is valid. Raises InputError if it cannot be the name of a folder and of a Unix user."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name[:60]!r} is not a valid tenant name",
            hint="Use 1 to 23 lower-case letters, digits and dashes. The first is a letter.",
            place="tenant",
        )
    return name


def hash_of(secret: str) -> str:
    """The SHA-256 (hex) of a secret. A slow hash is not needed for secrets of 256 random bits."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def invited(invitations: Iterable[Invitation], secret: str, now: float) -> Invitation | None:
    """The valid invitation with this secret. Takes the same time for each invitation, so that the time
    reveals nothing."""
    secret_hash, invitation = hash_of(secret), None
    for one in invitations:
        if hmac.compare_digest(one.hash, secret_hash) and now < one.expires:
            invitation = one
    return invitation


def authorised(tenants: Iterable[Tenant], certificate: str, token: str) -> Tenant | None:
    """The tenant that has both this certificate and this token; never a revoked one."""
    token_hash, accepted = hash_of(token), None
    for tenant in tenants:  # compare with all tenants, so that the time does not reveal which one is similar
        same = hmac.compare_digest(tenant.token_hash, token_hash) and hmac.compare_digest(
            tenant.certificate, certificate
        )
        if same and certificate and not tenant.revoked:
            accepted = tenant
    return accepted


def unknown_tenant() -> InputError:
    """The error for a client that is not a tenant."""
    return InputError(
        "this farm knows no tenant with that certificate and token",
        hint="`gridmill farm invite` on the farm prints a command. Run it on your machine to join the farm.",
        place="Authorization",
    )
