"""OAuth 2.0 for service accounts, and permissions.

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
from typing import Any
from urllib.parse import parse_qs

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError
from gridmill.testing.cloud.gce.records import Principal
from gridmill.testing.cloud.gce.refusal import unauthenticated

GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_PATH = "/token"
AUDIENCE = "https://oauth2.googleapis.com/token"
"""The audience of a JWT. The client library of Google uses this audience for every address in the key
file."""
_SKEW_SECONDS = 300.0
_LONGEST_SECONDS = 3600
PERMITTED_BY_ANY = ("https://www.googleapis.com/auth/cloud-platform",)
_COMPUTE = "https://www.googleapis.com/auth/compute"
_READ_ONLY = ("https://www.googleapis.com/auth/compute.readonly",)


class GrantError(InputError):
    """A request for a token is refused. `oauth_code` is the error code of OAuth 2.0."""

    def __init__(self, oauth_code: str, message: str) -> None:
        super().__init__(message)
        self.oauth_code = oauth_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """An access token. `expires_at` is a time of the clock of this machine."""

    email: str
    scopes: tuple[str, ...]
    expires_at: float


@functools.cache
def _private_key() -> RSAPrivateKey:
    # One key serves all accounts of all simulations of a process, because making a key is slow.
    return generate_private_key(public_exponent=65_537, key_size=2048)


class Accounts:
    """The service accounts of a project, and their tokens."""

    def __init__(self, project: str) -> None:
        self.project = project
        self.principals: dict[str, Principal] = {}
        self.tokens: dict[str, Token] = {}

    def key_file(self, email: str, key_id: str, token_uri: str) -> dict[str, str]:
        """Returns the JSON of a key file of a service account."""
        private = _private_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return {
            "type": "service_account",
            "project_id": self.project,
            "private_key_id": key_id,
            "private_key": private.decode(),
            "client_email": email,
            "client_id": "100000000000000000001",
            "auth_uri": "https://accounts.google.com/o/oauth2/auth",
            "token_uri": token_uri,
            "universe_domain": "googleapis.com",
        }

    def grant(self, body: bytes, token_uri: str, new_token: str, wall_time: float) -> dict[str, Any]:
        """Returns an access token for a signed JWT. Raises GrantError."""
        form = {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
        if form.get("grant_type") != GRANT:
            raise GrantError("unsupported_grant_type", "Invalid grant_type: " + form.get("grant_type", ""))
        claims = _claims(form.get("assertion", ""))
        email = str(claims.get("iss", ""))
        _check_times(claims, wall_time)
        if claims.get("aud") not in (AUDIENCE, token_uri):
            raise GrantError("invalid_grant", "Invalid JWT: Failed audience check.")
        principal = self.principals.get(email)
        if principal is None or principal.is_revoked:
            raise GrantError("invalid_grant", "Invalid grant: account not found")
        scopes = tuple(str(claims.get("scope", "")).split())
        if not scopes:
            raise GrantError("invalid_scope", "Invalid OAuth scope or ID token audience provided.")
        self.add_token(new_token, email, wall_time, scopes)
        return {"access_token": new_token, "expires_in": _LONGEST_SECONDS - 1, "token_type": "Bearer"}

    def add_token(
        self, text: str, email: str, wall_time: float, scopes: tuple[str, ...] = PERMITTED_BY_ANY
    ) -> None:
        """Stores a text as an access token of an account that is valid for one hour."""
        self.tokens[text] = Token(email=email, scopes=scopes, expires_at=wall_time + _LONGEST_SECONDS)

    def caller(self, headers: Mapping[str, str], wall_time: float) -> tuple[Principal, Token]:
        """Returns the account that has sent a request. Raises GoogleRefusalError."""
        scheme, _, text = headers.get("Authorization", "").partition(" ")
        token = self.tokens.get(text.strip()) if scheme.lower() == "bearer" else None
        if token is None or token.expires_at <= wall_time:
            raise unauthenticated()
        principal = self.principals.get(token.email)
        if principal is None or principal.is_revoked:
            raise unauthenticated()
        return principal, token


def _decoded(part: str) -> bytes:
    return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)


def _claims(assertion: str) -> Mapping[str, Any]:
    head, _, rest = assertion.partition(".")
    body, _, signature = rest.partition(".")
    try:
        header, claims = json.loads(_decoded(head)), json.loads(_decoded(body))
        if header.get("alg") != "RS256":
            raise GrantError("invalid_grant", "Invalid JWT: unsupported algorithm")
        _private_key().public_key().verify(
            _decoded(signature), f"{head}.{body}".encode(), PKCS1v15(), SHA256()
        )
    except InvalidSignature as error:
        raise GrantError("invalid_grant", "Invalid JWT Signature.") from error
    except (binascii.Error, ValueError, AttributeError) as error:
        raise GrantError("invalid_request", "Bad Request") from error
    return dict(claims)


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


def has_scope(token: Token, permission: str) -> bool:
    """Returns whether a token may be used for a permission of Compute Engine.

    Source: https://developers.google.com/identity/protocols/oauth2/scopes#compute
    """
    reads = permission.rpartition(".")[2] in ("get", "list")
    enough = (*PERMITTED_BY_ANY, _COMPUTE, *(_READ_ONLY if reads else ()))
    return any(one in enough for one in token.scopes)
