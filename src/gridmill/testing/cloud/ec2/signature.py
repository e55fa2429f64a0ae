"""Checks the signatures of requests to the simulated services.

Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote

from gridmill.domain.frozen import dataclass
from gridmill.testing.cloud.ec2.refusal import RefusalError

_ALGORITHM = "AWS4-HMAC-SHA256"
_TIME = "%Y%m%dT%H%M%SZ"
_VALID_SECONDS = 15 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as it has arrived. `wall_time` is the Unix time in seconds of the service."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    wall_time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Who signs a request, and for which region and service."""

    access_key: str
    day: str
    region: str
    service: str
    signed_headers: tuple[str, ...]
    signature: str


def scope_of(headers: Mapping[str, str]) -> Scope:
    """Returns the scope of the signature of a request. Raises RefusalError if the request has no
    signature."""
    algorithm, _, rest = headers.get("Authorization", "").partition(" ")
    if algorithm != _ALGORITHM:
        raise RefusalError("MissingAuthenticationToken", "Request is missing Authentication Token", 403)
    fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    credential = fields.get("Credential", "").split("/")
    if len(credential) != 5 or credential[4] != "aws4_request":
        raise RefusalError("IncompleteSignature", "The credential of the signature is incomplete.", 400)
    return Scope(
        access_key=credential[0],
        day=credential[1],
        region=credential[2],
        service=credential[3],
        signed_headers=tuple(fields.get("SignedHeaders", "").split(";")),
        signature=fields.get("Signature", ""),
    )


def check(scope: Scope, secret: str, request: Request) -> None:
    """Raises RefusalError if the signature does not match the request, or if the time of the request is more
    than 15 minutes from the time of the service."""
    stamp = request.headers.get("X-Amz-Date", "")
    if "host" not in scope.signed_headers or not _is_time(stamp):
        raise RefusalError("IncompleteSignature", "The signature lacks the host or the time.", 400)
    signed_at = datetime.strptime(stamp, _TIME).replace(tzinfo=UTC).timestamp()
    if abs(signed_at - request.wall_time) > _VALID_SECONDS:
        raise RefusalError("RequestExpired", "Request has expired.", 400)
    if not hmac.compare_digest(_signature(scope, secret, stamp, request), scope.signature):
        raise failed(scope.service)


def failed(service: str) -> RefusalError:
    """Returns the error for credentials that are not valid. EC2 has a code of its own for this error."""
    if service == "ec2":
        return RefusalError(
            "AuthFailure", "AWS was not able to validate the provided access credentials", 401
        )
    return RefusalError("InvalidClientTokenId", "The security token included in the request is invalid.", 403)


def _is_time(stamp: str) -> bool:
    try:
        datetime.strptime(stamp, _TIME)
    except ValueError:
        return False
    return True


def _signature(scope: Scope, secret: str, stamp: str, request: Request) -> str:
    path, _, query = request.path.partition("?")
    headers = [(name, " ".join(request.headers.get(name, "").split())) for name in scope.signed_headers]
    canonical = "\n".join(
        [
            request.method,
            quote(path or "/", safe="/-_.~%"),
            "&".join(sorted(query.split("&"))) if query else "",
            "".join(f"{name}:{value}\n" for name, value in headers),
            ";".join(scope.signed_headers),
            hashlib.sha256(request.body).hexdigest(),
        ]
    )
    parts = (scope.day, scope.region, scope.service, "aws4_request")
    text = "\n".join([_ALGORITHM, stamp, "/".join(parts), hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{secret}".encode()
    for part in parts:
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.new(key, text.encode(), "sha256").hexdigest()
