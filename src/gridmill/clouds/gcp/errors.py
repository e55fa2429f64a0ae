"""The table of the error codes of Google Cloud: for each code, the error of Gridmill.

A request is refused with an HTTP status and a reason (`error.errors[].reason`). An operation fails with a
code (`error.errors[].code`). Sources: "Troubleshooting API errors" and "Troubleshooting resource availability
errors" in the Compute Engine documentation; "Standard error responses" of the Google APIs; ErrorInfo in
google/rpc/error_details.proto for the reasons of the newer APIs.
"""

import re
from collections.abc import Mapping
from typing import Any

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

_NO_MACHINE = (
    "ZONE_RESOURCE_POOL_EXHAUSTED",
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
    "REGION_RESOURCE_POOL_EXHAUSTED",
    "STOCKOUT",
    "stockout",
    "resourcePoolExhausted",
    "UNSUPPORTED_OPERATION",  # the zone has no machines of this kind; another zone may have them
)
_QUOTA = ("QUOTA_EXCEEDED", "quotaExceeded", "limitExceeded", "LIMIT_EXCEEDED")
_CREDENTIALS = (
    "authError",
    "required",
    "expired",
    "lockedDomainExpired",
    "UNAUTHENTICATED",
    "ACCESS_TOKEN_EXPIRED",
    "CREDENTIALS_MISSING",
)
RIGHTS = (
    "forbidden",
    "insufficientPermissions",
    "accessNotConfigured",
    "SERVICE_DISABLED",
    "IAM_PERMISSION_DENIED",
    "PERMISSIONS_ERROR",
    "PERMISSION_DENIED",
    "BILLING_DISABLED",
    "accountDisabled",
    "projectSuspended",
)
"""A right is missing. A launch without the right is refused. All other calls are repeated like calls with
invalid credentials, because somebody can restore the right."""
_UNAVAILABLE = (
    "rateLimitExceeded",
    "userRateLimitExceeded",
    "dailyLimitExceeded",
    "concurrentLimitExceeded",
    "RATE_LIMIT_EXCEEDED",
    "RESOURCE_OPERATION_RATE_EXCEEDED",
    "resourceOperationRateExceeded",
    "operationRateExceeded",
    "resourceNotReady",
    "RESOURCE_NOT_READY",
    "internalError",
    "INTERNAL_ERROR",
    "backendError",
    "serviceUnavailable",
)
_CONFLICT = (
    "alreadyExists",
    "RESOURCE_ALREADY_EXISTS",
    "conflict",
    "conditionNotMet",
    "CONDITION_NOT_MET",
    "resourceInUseByAnotherResource",
    "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
    "resourceInUse",
)
TABLE: Mapping[str, type[GridmillError]] = {
    **dict.fromkeys(_NO_MACHINE, NoMachineError),
    **dict.fromkeys(_QUOTA, QuotaError),
    **dict.fromkeys(_CREDENTIALS, CredentialsError),
    **dict.fromkeys(RIGHTS, CredentialsError),
    **dict.fromkeys(_UNAVAILABLE, UnavailableError),
    **dict.fromkeys(_CONFLICT, ConflictError),
    "notFound": NotFoundError,
    "RESOURCE_NOT_FOUND": NotFoundError,
}
"""The class of the error for each code. For a code that is not in the table, the HTTP status counts."""
_STATUSES: Mapping[int, type[GridmillError]] = {
    401: CredentialsError,
    403: CredentialsError,
    404: NotFoundError,
    408: UnavailableError,
    409: ConflictError,
    412: ConflictError,
    429: UnavailableError,
}
_HINTS: Mapping[str, str] = {
    "accessNotConfigured": "Enable the API: gcloud services enable compute.googleapis.com "
    "cloudresourcemanager.googleapis.com cloudbilling.googleapis.com",
    "SERVICE_DISABLED": "Enable the API: gcloud services enable compute.googleapis.com "
    "cloudresourcemanager.googleapis.com cloudbilling.googleapis.com",
    "BILLING_DISABLED": "Link the project to a billing account.",
}
_PROTECTED = re.compile(r"deletion.?protect", re.IGNORECASE)
_ELSEWHERE = re.compile(
    r"(machine|accelerator).?type.*(does not exist|not found|not available|unsupported)", re.IGNORECASE
)
_MESSAGE_LENGTH = 500  # a server behind the API may answer with a whole page


def class_of(code: str, status: int, message: str = "", *, is_launch: bool = False) -> type[GridmillError]:
    """Return the class of the error for a code and an HTTP status. `is_launch` means that the request starts
    a machine. An answer without a code is not from the API but, for example, from a proxy, so that it is
    unknown whether the API has received the request."""
    if not code:
        return UnavailableError
    if is_launch and code in RIGHTS:
        return RefusedError
    if is_launch and _ELSEWHERE.search(message):
        return NoMachineError  # the zone does not offer the type; another zone may offer it
    if _PROTECTED.search(message):
        return UnavailableError
    kind = TABLE.get(code) or _STATUSES.get(status) or (UnavailableError if status >= 500 else RefusedError)
    return RefusedError if is_launch and kind is NotFoundError else kind


def error_of(code: str, status: int, message: str, place: str, *, is_launch: bool = False) -> GridmillError:
    """Return the error for a code and an HTTP status, with the provider's message. `place` is the request,
    such as `gcp us-central1-a instances.insert`."""
    kind = class_of(code, status, message, is_launch=is_launch)
    hint = _HINTS.get(code, "")
    if not hint and code in RIGHTS:
        hint = "Add the permission to the role of the credentials."
    if not hint and _PROTECTED.search(message):
        hint = (
            "Permit the deletion: gcloud compute instances update NAME --zone ZONE --no-deletion-protection"
        )
    text = " ".join(message.split())[:_MESSAGE_LENGTH]
    return kind(f"Google Cloud answered {code or status}: {text}", hint=hint, place=place)


def error_in_answer(status: int, body: object, place: str, *, is_launch: bool = False) -> GridmillError:
    """Return the error for an answer with an HTTP status of 400 or more. `body` is the parsed JSON, or None
    if the answer is not JSON."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return error_of("", status, "the answer does not come from the API", place, is_launch=is_launch)
    code = _reason(error)
    return error_of(code or str(status), status, str(error.get("message", "")), place, is_launch=is_launch)


def _reason(error: Mapping[str, Any]) -> str:
    """Return the most specific known reason in the body of an error."""
    named = [str(one.get("reason", "")) for one in error.get("errors") or () if isinstance(one, dict)]
    named += [str(one.get("reason", "")) for one in error.get("details") or () if isinstance(one, dict)]
    named.append(str(error.get("status", "")))
    return next((one for one in named if one in TABLE), next((one for one in named if one), ""))


def error_of_operation(operation: Mapping[str, Any], place: str) -> GridmillError | None:
    """Return the error with which an operation of a launch has failed, or None if it has not failed."""
    errors = (operation.get("error") or {}).get("errors") or ()
    if not errors:
        return None
    known = next((one for one in errors if one.get("code") in TABLE), errors[0])
    status = int(operation.get("httpErrorStatusCode") or 400)
    code, message = str(known.get("code") or status), str(known.get("message") or "")
    return error_of(code, status, message, place, is_launch=True)
