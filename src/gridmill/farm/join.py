"""Lets a tenant join: with the one-time secret of an invitation it gets a certificate and a token."""

import hmac
import logging
import secrets
from collections import OrderedDict, deque
from dataclasses import replace

from gridmill.domain.farm_protocol import Joined, JoinRequest, check_versions
from gridmill.errors import ConflictError, InputError, NotFoundError
from gridmill.farm.certificates import fingerprint_of_key
from gridmill.farm.farm import Farm
from gridmill.farm.store import Records
from gridmill.farm.tenant import JOIN_SECONDS, Invitation, Source, check_name, hash_of, invited
from gridmill.farm.unix_users import Numbered, leaving, next_number, refuse_second

_LOG = logging.getLogger(__name__)
_SECRET_BYTES = 32
_TRIES = 10
_TRY_SECONDS = 60.0
_CALLERS = 10_000


class Tries:
    """At most ten wrong secrets a minute from one address; of so many addresses the newest are remembered."""

    def __init__(self) -> None:
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()

    def allows(self, caller: str, now: float) -> bool:
        """Whether that address may try again."""
        wrong = self._wrong.get(caller, deque())
        while wrong and wrong[0] + _TRY_SECONDS <= now:
            wrong.popleft()
        return len(wrong) < _TRIES

    def failed(self, caller: str, now: float) -> None:
        """It said a wrong secret."""
        self._wrong.setdefault(caller, deque(maxlen=_TRIES)).append(now)
        self._wrong.move_to_end(caller)
        while len(self._wrong) > _CALLERS:
            self._wrong.popitem(last=False)


def invite(records: Records, now: float, name: str = "") -> str:
    """The secret of a new invitation: for anybody, or for the source of that name, to change what it has.
    Raises NotFoundError, ConflictError."""
    if name:
        source = find_source(records, name)
        if source.revoked:
            raise ConflictError(f"source {name} is revoked", hint="`gridmill farm invite` lets it join anew.")
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    over = [one for one in records.all(Invitation) if one.expires <= now]
    records.remove(*over)
    records.put(Invitation(hash=hash_of(secret), expires=now + JOIN_SECONDS, name=name))
    return secret


def find_source(records: Records, name: str) -> Source:
    """Raises NotFoundError."""
    source = records.find(Source, name)
    if source is None:
        known = ", ".join(one.name for one in records.all(Source)) or "none"
        raise NotFoundError(f"there is no source {name!r}", hint=f"There are: {known}.")
    return source


def revoke(records: Records, name: str) -> Source:
    """Nothing more is taken from it from now on; the controller ends its pods. Raises NotFoundError."""
    with records.change():
        source = replace(find_source(records, name), revoked=True)
        records.put(source)
        records.remove(*(one for one in records.all(Invitation) if one.name == name))
    return source


def join(farm: Farm, request: JoinRequest) -> Joined:
    """Use the secret. Raises InputError for a wrong one and for another version, ConflictError for a name
    that is taken."""
    now, name = farm.now(), check_name(request.source)
    check_versions(source=request.version, farm=farm.version, protocol=request.protocol)
    key = fingerprint_of_key(request.request)
    token = secrets.token_urlsafe(_SECRET_BYTES)
    with farm.records.change():
        invitation = _invitation(farm.records, request.secret, key, now)
        known = farm.records.find(Source, name)
        _check_free(known, invitation, name)
        certificate, fingerprint = farm.authority.sign(name, request.request, now)
        user = known.user if known else _new_user(farm, name)
        source = Source(
            name=name,
            certificate=fingerprint,
            token_hash=hash_of(token),
            version=request.version,
            added=known.added if known else now,
            user=user,
        )
        used = (one for one in farm.records.all(Invitation) if one.key and one.name == name)
        farm.records.remove(*used)
        farm.records.put(source, replace(invitation, name=name, key=key))
    farm.heard[name] = now
    _LOG.info("source_joined source=%s version=%s", name, request.version)
    return Joined(certificate=certificate, token=token, version=farm.version)


def _new_user(farm: Farm, name: str) -> int | None:
    """None: this process's. Raises InputError."""
    records, sources = farm.records, farm.records.all(Source)
    refuse_second(farm.one_user, sources, name)
    if farm.one_user:
        return None
    given = next_number(next(iter(records.all(Numbered)), None), sources).next
    records.put(Numbered(next=given + 1))
    return given


class WrongSecretError(InputError):
    """The secret of a join line is wrong, was used, or has expired."""


def _invitation(records: Records, secret: str, key: str, now: float) -> Invitation:
    found = invited(records.all(Invitation), secret, now)
    if found is None or (found.key and not hmac.compare_digest(found.key, key)):
        raise WrongSecretError(
            "the secret of this join line is wrong, was used already, or has expired",
            hint="`gridmill farm invite` on the farm prints a new line.",
            place="secret",
        )
    return found


def _check_free(known: Source | None, invitation: Invitation, name: str) -> None:
    if invitation.name and invitation.name != name:
        raise InputError(f"this join line is for the source {invitation.name}", place="source")
    if known is not None and known.revoked:
        raise leaving(name)
    if known is not None and invitation.name != name:
        raise ConflictError(
            f"another source is called {name}",
            hint=f"If it is you, `gridmill farm rotate {name}` on the farm prints a line that replaces what "
            "you have. If it is another machine of that name, give it another GRIDMILL_HOME.",
            place="source",
        )
