"""The error answers of the simulated Lambda Cloud.

Source: https://docs-api.lambda.ai/api/cloud (version 1.8.3 of the OpenAPI description: the schemas
`ApiError…`, which fix the codes, and the statuses of each operation).
"""

from gridmill.errors import InputError


class LambdaRefusalError(InputError):
    """A request is answered with an error. `lambda_code` is the error code of Lambda and `status` the HTTP
    status."""

    def __init__(self, lambda_code: str, message: str, status: int, suggestion: str = "") -> None:
        super().__init__(message)
        self.lambda_code = lambda_code
        self.status = status
        self.suggestion = suggestion


def unauthorized() -> LambdaRefusalError:
    """Returns the error for a missing, wrong or deleted API key."""
    return LambdaRefusalError(
        "global/invalid-api-key",
        "API key was invalid, expired, or deleted.",
        401,
        "Check your API key or create a new one, then try again.",
    )


def inactive() -> LambdaRefusalError:
    """Returns the error for an account that may not use the API."""
    return LambdaRefusalError(
        "global/account-inactive",
        "Your account is inactive.",
        403,
        "Make sure you have verified your email address and have a valid payment method. "
        "Contact Support if problems continue.",
    )


def invalid(message: str) -> LambdaRefusalError:
    """Returns the error for a request with a wrong field."""
    return LambdaRefusalError("global/invalid-parameters", f"Invalid request data. {message}", 400)


def not_found(message: str, suggestion: str = "") -> LambdaRefusalError:
    """Returns the error for a resource that does not exist."""
    return LambdaRefusalError("global/object-does-not-exist", message, 404, suggestion)


def no_capacity() -> LambdaRefusalError:
    """Returns the error for a launch without a free machine."""
    return LambdaRefusalError(
        "instance-operations/launch/insufficient-capacity",
        "Not enough capacity to fulfill launch request.",
        400,
        "Choose an instance type with more availability, or try again later.",
    )


def over_quota() -> LambdaRefusalError:
    """Returns the error for a launch beyond the quota of the account."""
    return LambdaRefusalError(
        "global/quota-exceeded", "Quota exceeded.", 400, "Contact Support to increase your quota."
    )


def unknown() -> LambdaRefusalError:
    """Returns the error for a launch with the name of two SSH keys.

    Source: https://github.com/skypilot-org/skypilot/issues/8221
    """
    return LambdaRefusalError("global/unknown", "An unknown error occurred.", 500)


def in_use() -> LambdaRefusalError:
    """Returns the error for a firewall ruleset that an instance uses."""
    return LambdaRefusalError(
        "firewall-rulesets/firewall-ruleset-in-use",
        "Firewall ruleset is in use by one or more instances.",
        400,
        "Terminate all instances that are using the ruleset before deleting it.",
    )


def unavailable() -> LambdaRefusalError:
    """Returns the error for a region that does not answer.

    Source: https://docs-api.lambda.ai/api/cloud#provider-errors
    """
    return LambdaRefusalError(
        "provider/internal-unavailable", "Provider unavailable", 503, "Try again shortly"
    )


def not_simulated(what: str) -> LambdaRefusalError:
    """Returns the error for a request that Lambda allows and the simulation does not implement. The
    simulation never ignores such a part of a request, because a test would then pass for the wrong
    reason."""
    return LambdaRefusalError(
        "simulation/not-implemented", f"The simulated Lambda Cloud does not implement {what}.", 501
    )
