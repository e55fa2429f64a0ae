"""Lets a tenant join the farm. The tenant sends the one-time secret of an invitation, and gets a certificate
and a token."""

import hmac
import logging
import secrets
from collections import OrderedDict, deque
from dataclasses import replace

from gridmill.domain.farm_protocol import JoinRequest, JoinResponse, check_versions
from gridmill.errors import ConflictError, InputError, NotFoundError
from gridmill.farm.certificates import fingerprint_of_key
from gridmill.farm.state import Farm
from gridmill.farm.store import RecordStore
from gridmill.farm.tenant import JOIN_SECONDS, Invitation, Tenant, check_name, hash_of, invited
from gridmill.farm.unix_users import UserCounter, leaving, next_number, refuse_second

_LOG = logging.getLogger(__name__)
_SECRET_BYTES = 32
_TRIES = 10
_TRY_SECONDS = 60.0
_CALLERS = 10_000


class JoinRateLimiter:
    """Allows at most ten wrong secrets per minute from one address. The limiter stores the newest addresses,
    up to a limit."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def allows(self, caller: str, now: float) -> bool:
        """Returns whether this address may send another secret."""
        wrong = self._failures.get(caller, deque())
        while wrong and wrong[0] + _TRY_SECONDS <= now:
            wrong.popleft()
        return len(wrong) < _TRIES

    def failed(self, caller: str, now: float) -> None:
        """Records a wrong secret from this address."""
        self._failures.setdefault(caller, deque(maxlen=_TRIES)).append(now)
        self._failures.move_to_end(caller)
        while len(self._failures) > _CALLERS:
            self._failures.popitem(last=False)


def invite(records: RecordStore, now: float, name: str = "") -> str:
    """Returns the secret of a new invitation. The invitation is for a new tenant, or for the existing tenant
    with this name, whose certificate and token are then replaced. Raises NotFoundError, ConflictError."""
    if name:
        tenant = find_tenant(records, name)
        if tenant.revoked:
            raise ConflictError(f"tenant {name} is revoked", hint="Run `gridmill farm invite`.")
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    over = [invitation for invitation in records.all(Invitation) if invitation.expires <= now]
    records.remove(*over)
    records.put(Invitation(hash=hash_of(secret), expires=now + JOIN_SECONDS, name=name))
    return secret


def find_tenant(records: RecordStore, name: str) -> Tenant:
    """Returns the tenant with this name. Raises NotFoundError."""
    tenant = records.find(Tenant, name)
    if tenant is None:
        names = ", ".join(one.name for one in records.all(Tenant)) or "none"
        raise NotFoundError(f"there is no tenant {name!r}", hint=f"There are: {names}.")
    return tenant


def revoke(records: RecordStore, name: str) -> Tenant:
    """Refuses all later requests of the tenant. The next tick ends the pods of the tenant and deletes its
    files. Raises NotFoundError."""
    with records.change():
        tenant = replace(find_tenant(records, name), revoked=True)
        records.put(tenant)
        records.remove(*(invitation for invitation in records.all(Invitation) if invitation.name == name))
    return tenant


def join(farm: Farm, request: JoinRequest) -> JoinResponse:
    """Executes a request to join with the secret of an invitation. Raises InputError for a wrong secret or
    an incompatible version, and ConflictError for a name that is already used."""
    now, name = farm.now(), check_name(request.tenant)
    check_versions(tenant=request.version, farm=farm.version, protocol=request.protocol)
    key = fingerprint_of_key(request.request)
    token = secrets.token_urlsafe(_SECRET_BYTES)
    with farm.records.change():
        invitation = _invitation(farm.records, request.secret, key, now)
        known = farm.records.find(Tenant, name)
        _check_free(known, invitation, name)
        certificate, fingerprint = farm.authority.sign(name, request.request, now)
        user = known.user if known else _new_user(farm, name)
        tenant = Tenant(
            name=name,
            certificate=fingerprint,
            token_hash=hash_of(token),
            version=request.version,
            added=known.added if known else now,
            user=user,
        )
        used = (
            invitation
            for invitation in farm.records.all(Invitation)
            if invitation.key and invitation.name == name
        )
        farm.records.remove(*used)
        farm.records.put(tenant, replace(invitation, name=name, key=key))
    farm.last_contacts[name] = now
    _LOG.info("tenant_joined tenant=%s version=%s", name, request.version)
    return JoinResponse(certificate=certificate, token=token, version=farm.version)


def _new_user(farm: Farm, name: str) -> int | None:
    """Returns the Unix user of a new tenant, or None if its jobs run as the user of this process. Raises
    InputError."""
    records, tenants = farm.records, farm.records.all(Tenant)
    refuse_second(farm.one_user, tenants, name, farm.one_tenant)
    if farm.one_user:
        return None
    given = next_number(next(iter(records.all(UserCounter)), None), tenants).next
    records.put(UserCounter(next=given + 1))
    return given


class WrongSecretError(InputError):
    """The secret of a join line is wrong, was already used, or has expired."""


def _invitation(records: RecordStore, secret: str, key: str, now: float) -> Invitation:
    result = invited(records.all(Invitation), secret, now)
    if result is None or (result.key and not hmac.compare_digest(result.key, key)):
        raise WrongSecretError(
            "the secret of this join line is wrong, was used already, or has expired",
            hint="`gridmill farm invite` on the farm prints a new line.",
            place="secret",
        )
    return result


def _check_free(tenant: Tenant | None, invitation: Invitation, name: str) -> None:
    if invitation.name and invitation.name != name:
        raise InputError(
            f"this join line is for the tenant {invitation.name}, not for {name}", place="tenant"
        )
    if tenant is not None and tenant.revoked:
        raise leaving(name)
    if tenant is not None and invitation.name != name:
        raise ConflictError(
            f"this farm already has a tenant {name}",
            hint=f"If that tenant is this machine, `gridmill farm rotate {name}` on the farm prints a line "
            "that replaces its certificate and token. If not, set another GRIDMILL_HOME here.",
            place="tenant",
        )
