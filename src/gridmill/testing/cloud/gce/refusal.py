"""The error answers of the simulated Google services.

Source: https://cloud.google.com/compute/docs/api/how-tos/error-messages-and-handling (format and reasons) and
https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation
"""

from typing import Any

from gridmill.errors import InputError


class GoogleRefusalError(InputError):
    """A request is answered with an error. `reason` is the reason of Google, such as `notFound`, and `status`
    the HTTP status."""

    def __init__(self, reason: str, message: str, status: int, domain: str = "global") -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status
        self.domain = domain

    def as_json(self) -> dict[str, Any]:
        """Returns the body of the answer."""
        error: dict[str, Any] = {
            "code": self.status,
            "message": self.message,
            "errors": [{"message": self.message, "domain": self.domain, "reason": self.reason}],
        }
        if self.status in _STATUS_NAMES:
            error["status"] = _STATUS_NAMES[self.status]
        return {"error": error}


_STATUS_NAMES = {401: "UNAUTHENTICATED", 501: "UNIMPLEMENTED", 503: "UNAVAILABLE"}


def unauthenticated() -> GoogleRefusalError:
    """Returns the error for a missing, wrong or expired access token."""
    text = (
        "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or "
        "other valid authentication credential. "
        "See https://developers.google.com/identity/sign-in/web/devconsole-project."
    )
    return GoogleRefusalError("authError", text, 401)


def forbidden(permission: str, resource: str) -> GoogleRefusalError:
    """Returns the error for a caller without a permission."""
    return GoogleRefusalError("forbidden", f"Required '{permission}' permission for '{resource}'", 403)


def invalid(field: str, value: object, why: str) -> GoogleRefusalError:
    """Returns the error for a field with a value that is not allowed."""
    return GoogleRefusalError("invalid", f"Invalid value for field '{field}': '{value}'. {why}", 400)


def bad_request(message: str) -> GoogleRefusalError:
    """Returns the error for a request that does not fit together."""
    return GoogleRefusalError("badRequest", message, 400)


def not_found(resource: str) -> GoogleRefusalError:
    """Returns the error for a resource that does not exist, such as `projects/p/zones/z/instances/i`."""
    return GoogleRefusalError("notFound", f"The resource '{resource}' was not found", 404)


def exists(resource: str) -> GoogleRefusalError:
    """Returns the error for the name of a resource that exists already."""
    return GoogleRefusalError("alreadyExists", f"The resource '{resource}' already exists", 409)


def in_use(resource: str, user: str) -> GoogleRefusalError:
    """Returns the error for the deletion of a resource that another one uses."""
    text = f"The {resource} resource is already being used by '{user}'"
    return GoogleRefusalError("resourceInUseByAnotherResource", text, 400)


def over_project_quota(metric: str, limit: int) -> GoogleRefusalError:
    """Returns the error for a request beyond a quota of the whole project."""
    text = f"Quota '{metric}' exceeded.  Limit: {float(limit)} globally."
    return GoogleRefusalError("quotaExceeded", text, 403, "usageLimits")


def too_many_requests() -> GoogleRefusalError:
    """Returns the error for a request beyond the rate quota.

    Source: https://cloud.google.com/compute/api-quota
    """
    return GoogleRefusalError("rateLimitExceeded", "Rate Limit Exceeded", 403, "usageLimits")


def not_simulated(what: str) -> GoogleRefusalError:
    """Returns the error for a request that Google allows and the simulation does not implement. The
    simulation never ignores such a part of a request, because a test would then pass for the wrong
    reason."""
    return GoogleRefusalError(
        "notImplemented", f"The simulated Compute Engine does not implement {what}.", 501, "simulation"
    )
