"""The error answers of the simulated Google Cloud Batch.

Source: https://cloud.google.com/apis/design/errors
"""

from gridmill.errors import InputError

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}


class GoogleRefusalError(InputError):
    """A request is answered with an error. `http_status` is the HTTP status, and `status` its name."""

    def __init__(self, http_status: int, message: str, status: str = "") -> None:
        super().__init__(message)
        self.http_status = http_status
        self.status = status or _STATUSES.get(http_status, "UNKNOWN")


def invalid(message: str) -> GoogleRefusalError:
    """Returns the error for a request that is not valid."""
    return GoogleRefusalError(400, message)


def not_found(name: str) -> GoogleRefusalError:
    """Returns the error for a resource that does not exist."""
    return GoogleRefusalError(404, f"resource {name} not found")


def not_simulated(what: str) -> GoogleRefusalError:
    """Returns the error for a request that Google allows and the simulation does not implement. The
    simulation never ignores such a part of a request, because a test would then pass for the wrong reason."""
    return GoogleRefusalError(501, f"The simulated Batch does not implement {what}.")
