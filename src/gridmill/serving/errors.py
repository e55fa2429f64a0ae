"""The errors that the model server answers to a client."""

from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.errors import GridmillError

SHOWN = 20
"""The largest number of wrong values that one answer lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A wrong value in a request. `row` is the number of the row in the request, from 0. `field` is the name
    of the field or tensor. Each of them is None if the whole request, or the whole row, is wrong."""

    problem: str
    row: int | None = None
    field: str | None = None


class RequestError(GridmillError):
    """A request that gets no prediction. `status` is its HTTP status, and `retry_seconds` is the time after
    which the client can try again, if this can help."""

    code = "request"
    status = 400

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        problems: tuple[Problem, ...] = (),
        retry_seconds: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.problems = problems
        self.retry_seconds = retry_seconds

    def body(self, request_id: str) -> dict[str, Any]:
        """Return the answer as JSON values."""
        body: dict[str, Any] = {"error": self.message, "code": self.code, "request_id": request_id}
        if self.hint:
            body["hint"] = self.hint
        if self.problems:
            body["problems"] = [
                {"row": one.row, "field": one.field, "problem": one.problem} for one in self.problems[:SHOWN]
            ]
        return body


class MalformedError(RequestError):
    """The body is not what its content type states."""

    code = "malformed"


class FieldsError(RequestError):
    """The body is well-formed, but its fields do not match the signature of the model."""

    code = "wrong-fields"
    status = 422

    def __init__(self, problems: tuple[Problem, ...], *, hint: str = "") -> None:
        super().__init__(_summary(problems), problems=problems, hint=hint)


def _summary(problems: tuple[Problem, ...]) -> str:
    first = problems[0]
    row = "" if first.row is None else f"row {first.row}"
    field = "" if first.field is None else f"field {first.field!r}"
    place = ", ".join(filter(None, (row, field)))
    more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
    return (f"{place}: " if place else "") + first.problem + more


class UnauthorizedError(RequestError):
    """The request has no valid API key."""

    code = "unauthorized"
    status = 401
    default_hint = "Send the header `Authorization: Bearer KEY` or `X-API-Key: KEY`."


class UnknownPathError(RequestError):
    """The server has no such path, model or version."""

    code = "not-found"
    status = 404


class MethodError(RequestError):
    """The path exists, but not for this HTTP method."""

    code = "method-not-allowed"
    status = 405

    def __init__(self, message: str, *, allowed: str) -> None:
        """`allowed` is the method of the path, for the header `Allow`."""
        super().__init__(message)
        self.allowed = allowed


class TooLargeError(RequestError):
    """The body is larger than the service accepts."""

    code = "too-large"
    status = 413


class MediaTypeError(RequestError):
    """The body has a content type or an encoding that the service does not read."""

    code = "media-type"
    status = 415


class OverloadedError(RequestError):
    """More requests wait than the replica can answer in time."""

    code = "overloaded"
    status = 429
    retryable = True


class ViewUnavailableError(RequestError):
    """The contextual features cannot be computed, because the view is missing, damaged or too old."""

    code = "view-unavailable"
    status = 503
    retryable = True


class ModelFailedError(RequestError):
    """The model failed for the rows of this request."""

    code = "model-failed"
    status = 500


class NotReadyError(RequestError):
    """The replica is not ready, or stops."""

    code = "not-ready"
    status = 503
    retryable = True


class LateError(RequestError):
    """The model did not answer within the time limit."""

    code = "timeout"
    status = 504
    retryable = True
