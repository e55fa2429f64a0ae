"""The service accounts of a simulated Google Cloud project: their keys, their tokens and their permissions.

Sources: https://developers.google.com/identity/protocols/oauth2/service-account (the request for a token, its
errors, and the claims of the JWT), https://cloud.google.com/iam/docs/keys-create-delete (the key file) and
https://cloud.google.com/resource-manager/reference/rest/v1/projects/testIamPermissions
"""

import base64
import binascii
import functools
import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from random import Random
from threading import RLock
from typing import Any
from urllib.parse import parse_qs

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gridmill.domain.frozen import dataclass, replace
from gridmill.errors import InputError
from gridmill.testing.cloud.simulation_server import Answer, json_answer

GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_PATH = "/token"
AUDIENCE = "https://oauth2.googleapis.com/token"
"""The audience of a JWT. The client library of Google uses this audience for every address in the key
file."""
_SKEW_SECONDS = 300.0
_LONGEST_SECONDS = 3600
PERMITTED_BY_ANY = ("https://www.googleapis.com/auth/cloud-platform",)


class GrantError(InputError):
    """A request for a token is refused. `oauth_code` is the error code of OAuth 2.0."""

    def __init__(self, oauth_code: str, message: str) -> None:
        super().__init__(message)
        self.oauth_code = oauth_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """A service account. `allowed` and `denied` are patterns of permissions, such as `compute.instances.*`.
    `resources` are patterns of the resources that the permissions are for, such as `*/instances/worker-1`."""

    email: str
    allowed: tuple[str, ...] = ("*",)
    denied: tuple[str, ...] = ()
    resources: tuple[str, ...] = ("*",)
    is_revoked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """An access token. `expires_at` is a time of the clock of this machine."""

    email: str
    scopes: tuple[str, ...]
    expires_at: float


@functools.cache
def _private_key(number: int) -> RSAPrivateKey:
    # The accounts with one number have one key in all simulations of a process, because making a key is slow.
    return generate_private_key(public_exponent=65_537, key_size=2048)


class Accounts:
    """The service accounts of a project, and their tokens."""

    def __init__(self, project: str, random: Random) -> None:
        self.project = project
        self._random = random
        self.principals: dict[str, Principal] = {}
        self.tokens: dict[str, Token] = {}

    def add(
        self,
        name: str,
        allowed: tuple[str, ...] = ("*",),
        denied: tuple[str, ...] = (),
        resources: tuple[str, ...] = ("*",),
    ) -> Principal:
        """Adds a service account, see Principal."""
        email = f"{name}@{self.project}.iam.gserviceaccount.com"
        principal = Principal(email=email, allowed=allowed, denied=denied, resources=resources)
        self.principals[principal.email] = principal
        return principal

    def change(self, email: str, **changes: Any) -> None:  # noqa: ANN401  fields of Principal
        """Changes fields of a service account."""
        self.principals[email] = replace(self.principals[email], **changes)

    def _key_of(self, email: str) -> RSAPrivateKey:
        return _private_key(list(self.principals).index(email))

    def key_file(self, email: str, token_uri: str) -> dict[str, str]:
        """Returns the JSON of a key file of a service account."""
        private = self._key_of(email).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return {
            "type": "service_account",
            "project_id": self.project,
            "private_key_id": sha256(email.encode()).hexdigest()[:40],
            "private_key": private.decode(),
            "client_email": email,
            "client_id": "100000000000000000001",
            "auth_uri": "https://accounts.google.com/o/oauth2/auth",
            "token_uri": token_uri,
            "universe_domain": "googleapis.com",
        }

    def exchange(
        self, body: bytes, token_uri: str, wall_time: float, permitted: Sequence[str] = ()
    ) -> Answer:
        """Answers a request for an access token. `permitted` are the scopes of which the request must have
        one; an empty sequence permits all scopes."""
        try:
            return json_answer(self._grant(body, token_uri, wall_time, permitted))
        except GrantError as error:
            return json_answer({"error": error.oauth_code, "error_description": error.message}, 400)

    def _grant(
        self, body: bytes, token_uri: str, wall_time: float, permitted: Sequence[str]
    ) -> dict[str, Any]:
        form = {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
        if form.get("grant_type") != GRANT:
            raise GrantError("unsupported_grant_type", "Invalid grant_type: " + form.get("grant_type", ""))
        claims, principal = self._verified(form.get("assertion", ""))
        _check_times(claims, wall_time)
        if claims.get("aud") not in (AUDIENCE, token_uri):
            raise GrantError("invalid_grant", "Invalid JWT: Failed audience check.")
        scopes = tuple(str(claims.get("scope", "")).split())
        if not scopes or (permitted and not set(permitted) & set(scopes)):
            raise GrantError("invalid_scope", "Invalid OAuth scope or ID token audience provided.")
        token = self.new_token()
        self.add_token(token, principal.email, wall_time, scopes)
        return {"access_token": token, "expires_in": _LONGEST_SECONDS - 1, "token_type": "Bearer"}

    def _verified(self, assertion: str) -> tuple[Mapping[str, Any], Principal]:
        """Returns the claims of a JWT, and the account that has signed it. Raises GrantError."""
        signed, _, signature = assertion.rpartition(".")
        head, _, body = signed.partition(".")
        try:
            header, claims = json.loads(_decoded(head)), json.loads(_decoded(body))
            if header.get("alg") != "RS256":
                raise GrantError("invalid_grant", "Invalid JWT: unsupported algorithm")
            principal = self.principals.get(claims.get("iss", ""))
            if principal is None or principal.is_revoked:
                raise GrantError("invalid_grant", "Invalid grant: account not found")
            key = self._key_of(principal.email).public_key()
            key.verify(_decoded(signature), signed.encode(), PKCS1v15(), SHA256())
        except InvalidSignature as error:
            raise GrantError("invalid_grant", "Invalid JWT Signature.") from error
        except (binascii.Error, ValueError, AttributeError) as error:
            raise GrantError("invalid_request", "Bad Request") from error
        return dict(claims), principal

    def new_token(self) -> str:
        """Returns the text of a new access token."""
        return f"ya29.simulated-{self._random.getrandbits(200):050x}"

    def add_token(
        self, text: str, email: str, wall_time: float, scopes: tuple[str, ...] = PERMITTED_BY_ANY
    ) -> None:
        """Stores a text as an access token of an account that is valid for one hour."""
        self.tokens[text] = Token(email=email, scopes=scopes, expires_at=wall_time + _LONGEST_SECONDS)

    def caller(self, headers: Mapping[str, str], wall_time: float) -> tuple[Principal, Token] | None:
        """Returns the account that has sent a request, and its token. The result is None if the token is
        missing, unknown or expired, or if the account is revoked."""
        scheme, _, text = headers.get("Authorization", "").partition(" ")
        token = self.tokens.get(text.strip()) if scheme.lower() == "bearer" else None
        if token is None or token.expires_at <= wall_time:
            return None
        principal = self.principals.get(token.email)
        return None if principal is None or principal.is_revoked else (principal, token)


class AccountControl:
    """The methods of a simulation that change the service accounts of its project. They can be called from
    any thread. Without an email address, they change the account `email`."""

    def __init__(self, accounts: Accounts, lock: RLock, email: str) -> None:
        self._accounts = accounts
        self._accounts_lock = lock
        self._email = email

    def deny(self, *patterns: str, email: str = "") -> None:
        """Sets the permissions or methods that an account does not have, such as `jobs.*`. Without patterns,
        the account has all its permissions again."""
        self._change_account(email, denied=patterns)

    def revoke(self, email: str = "") -> None:
        """Disables a service account: its tokens and its key are refused from now on."""
        self._change_account(email, is_revoked=True)

    def restore(self, email: str = "") -> None:
        """Enables a disabled service account."""
        self._change_account(email, is_revoked=False)

    def _change_account(self, email: str, **changes: Any) -> None:  # noqa: ANN401  fields of Principal
        with self._accounts_lock:
            self._accounts.change(email or self._email, **changes)

    def expire_tokens(self) -> None:
        """Makes all access tokens invalid, as after an hour. Keys stay valid."""
        with self._accounts_lock:
            self._accounts.tokens.clear()


def _decoded(part: str) -> bytes:
    return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)


def _check_times(claims: Mapping[str, Any], wall_time: float) -> None:
    issued, expires = claims.get("iat"), claims.get("exp")
    if not isinstance(issued, int | float) or not isinstance(expires, int | float):
        raise GrantError("invalid_grant", "Invalid JWT: iat and exp are required.")
    if expires - issued > _LONGEST_SECONDS or not issued - _SKEW_SECONDS <= wall_time <= expires:
        text = "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe."
        raise GrantError("invalid_grant", f"{text} Check your iat and exp values in the JWT claim.")


def is_permitted(principal: Principal, permission: str, resource: str) -> bool:
    """Returns whether an account has a permission for a resource."""

    def matches(value: str, patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(value, one) for one in patterns)

    if matches(permission, principal.denied) or not matches(permission, principal.allowed):
        return False
    return matches(resource, principal.resources)
