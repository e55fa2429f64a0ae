"""The exchange of the key of a service account for access tokens.

Source: https://developers.google.com/identity/protocols/oauth2/service-account#authorizingrequests
"""

import base64
import binascii
import json
from functools import lru_cache
from random import Random
from typing import Any
from urllib.parse import parse_qs

from gridmill.domain.frozen import dataclass, replace
from gridmill.testing.cloud.gcp_batch.catalogue import PROJECT
from gridmill.testing.cloud.gcp_batch.refusal import GoogleRefusalError
from gridmill.testing.cloud.simulation_server import Answer, json_answer

PATH = "/token"
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_AUDIENCE = "https://oauth2.googleapis.com/token"
"""The audience in the documentation. Libraries of Google use this audience with every token endpoint."""
_VALID_SECONDS = 3600
_SKEW_SECONDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccount:
    """A service account. `denied` are patterns of the methods that it may not call, such as `jobs.create`."""

    email: str
    private_key: str
    key_id: str
    denied: tuple[str, ...] = ()
    is_revoked: bool = False


class Tokens:
    """The service accounts of a project, and their access tokens. Times are Unix times of this machine, whose
    clock clients use, even if the time of the simulation is another one."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.accounts: dict[str, ServiceAccount] = {}
        self._issued: dict[str, tuple[str, float]] = {}

    def add(self, name: str) -> ServiceAccount:
        """Adds a service account with a new key."""
        account = ServiceAccount(
            email=f"{name}@{PROJECT}.iam.gserviceaccount.com",
            private_key=_private_key(len(self.accounts)),
            key_id=f"{self._random.getrandbits(160):040x}",
        )
        self.accounts[account.email] = account
        return account

    def change(self, email: str, **changes: Any) -> None:  # noqa: ANN401  fields of ServiceAccount
        """Changes fields of a service account."""
        self.accounts[email] = replace(self.accounts[email], **changes)

    def expire(self) -> None:
        """Makes all access tokens invalid."""
        self._issued.clear()

    def account_of(self, header: str, wall_time: float) -> ServiceAccount:
        """Returns the account of a header `Authorization`. Raises GoogleRefusalError."""
        kind, _, token = header.partition(" ")
        email, until = self._issued.get(token, ("", 0.0))
        account = self.accounts.get(email)
        if kind != "Bearer" or account is None or account.is_revoked or wall_time >= until:
            raise GoogleRefusalError(
                401,
                "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie "
                "or other valid authentication credential.",
            )
        return account

    def exchange(self, body: bytes, audience: str, wall_time: float) -> Answer:
        """Answers a request for an access token."""
        form = {name: values[0] for name, values in parse_qs(body.decode(errors="replace")).items()}
        if form.get("grant_type") != _GRANT:
            return _bad("unsupported_grant_type", "Invalid grant_type")
        claims, account = self._verified(form.get("assertion", ""))
        if claims is None or account is None or account.is_revoked:
            return _bad("invalid_grant", "Invalid JWT Signature.")
        issued, until = claims.get("iat", 0), claims.get("exp", 0)
        is_timely = issued - _SKEW_SECONDS <= wall_time <= until + _SKEW_SECONDS
        if not is_timely or until - issued > _VALID_SECONDS:
            text = "Token must be a short-lived token (60 minutes) and in a reasonable timeframe."
            return _bad("invalid_grant", f"Invalid JWT: {text}")
        if claims.get("aud") not in (audience, _AUDIENCE):
            return _bad("invalid_grant", "Invalid JWT: Failed audience check.")
        if _SCOPE not in str(claims.get("scope", "")).split():
            return _bad("invalid_scope", "Invalid OAuth scope or ID token audience provided.")
        token = f"ya29.{self._random.getrandbits(256):064x}"
        self._issued[token] = (account.email, wall_time + _VALID_SECONDS)
        return json_answer({"access_token": token, "expires_in": _VALID_SECONDS, "token_type": "Bearer"})

    def _verified(self, assertion: str) -> tuple[dict[str, Any] | None, ServiceAccount | None]:
        """Returns the claims of a signed JWT and its account, or None if it is not valid."""
        try:
            signed, _, signature = assertion.rpartition(".")
            header, claims = (json.loads(_decoded(part)) for part in signed.split("."))
            account = self.accounts.get(claims.get("iss", ""))
            if account is None or header.get("alg") != "RS256":
                return None, None
            return (claims if _is_signed(account, signed, signature) else None), account
        except (ValueError, binascii.Error, AttributeError):
            return None, None


@lru_cache
def _private_key(number: int) -> str:
    """Returns the private key of the account with a number, as PEM text. All simulations of a process have
    the same keys, because a key takes up to two seconds to make."""
    # imported here, because cryptography belongs to an extra
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _is_signed(account: ServiceAccount, signed: str, signature: str) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding, rsa

    key = serialization.load_pem_private_key(account.private_key.encode(), None)
    assert isinstance(key, rsa.RSAPrivateKey)
    try:
        key.public_key().verify(_decoded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature:
        return False
    return True


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _bad(error: str, description: str) -> Answer:
    return json_answer({"error": error, "error_description": description}, 400)


def key_file(account: ServiceAccount, token_uri: str) -> dict[str, str]:
    """Returns the content of the key file of a service account, as Google makes it."""
    return {
        "type": "service_account",
        "project_id": PROJECT,
        "private_key_id": account.key_id,
        "private_key": account.private_key,
        "client_email": account.email,
        "client_id": "100000000000000000000",
        "auth_uri": "https://accounts.google.com/o/oauth2/auth",
        "token_uri": token_uri,
    }
