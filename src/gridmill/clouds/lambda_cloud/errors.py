"""The table of the error codes of Lambda Cloud: for each code, the error of Gridmill.

Sources of the codes: the schemas `ApiError…` of the OpenAPI description (https://cloud.lambda.ai/api/v1/openapi.json).
`global/unknown` and `ssh-keys/key-in-use` are from earlier versions of the description.
"""

from collections.abc import Mapping

from gridmill.errors import (
    ConflictError,
    CredentialsError,
    GridmillError,
    NoMachineError,
    NotFoundError,
    QuotaError,
    RefusedError,
    UnavailableError,
)

TABLE: Mapping[str, type[GridmillError]] = {
    "instance-operations/launch/insufficient-capacity": NoMachineError,
    "global/quota-exceeded": QuotaError,
    "global/invalid-api-key": CredentialsError,
    "global/account-inactive": CredentialsError,
    "global/invalid-address": RefusedError,
    "global/invalid-parameters": RefusedError,
    "instance-operations/launch/file-system-in-wrong-region": RefusedError,
    "instance-operations/launch/file-systems-not-supported": RefusedError,
    "global/object-does-not-exist": NotFoundError,
    "global/duplicate": ConflictError,
    "ssh-keys/key-in-use": ConflictError,
    "global/internal-error": UnavailableError,
    "global/unknown": UnavailableError,
}
"""The class of the error for each code. A code that is not in the table is a RefusedError if its HTTP status
is below 500, and an UnavailableError otherwise."""
_MESSAGE_LENGTH = 500  # a server behind the API may answer with a whole page
_LONGEST_RETRY_SECONDS = 600.0


def class_of(code: str, status: int) -> type[GridmillError]:
    """Return the class of the error for an error code and an HTTP status. An answer without a code may be
    from a proxy, so that it is unknown whether Lambda Cloud has received the request."""
    if status == 429:
        return UnavailableError
    if code in TABLE:
        return TABLE[code]
    if status in (401, 403):
        return CredentialsError
    return RefusedError if code and status < 500 else UnavailableError


def error_of(status: int, body: object, place: str) -> GridmillError:
    """Return the error for an HTTP status and the JSON value of the body. `place` is the request, such as
    `lambda POST /ssh-keys`."""
    found = body.get("error") if isinstance(body, dict) else None
    error = found if isinstance(found, dict) else {}
    code, message, hint = (str(error.get(name) or "") for name in ("code", "message", "suggestion"))
    words = " ".join(message.split())[:_MESSAGE_LENGTH]
    text = f"Lambda Cloud answered {code or status}: {words}".rstrip(": ")
    return class_of(code, status)(text, hint=" ".join(hint.split())[:_MESSAGE_LENGTH], place=place)


def retry_seconds(header: str | None, usual: float) -> float:
    """Return the seconds after which a refused call may be repeated, from the header `Retry-After`, or
    `usual` if the header is missing or is a date."""
    try:
        seconds = float(header or "")
    except ValueError:
        return usual
    return min(max(seconds, usual), _LONGEST_RETRY_SECONDS) if seconds == seconds else usual
