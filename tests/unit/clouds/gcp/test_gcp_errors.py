import pytest
from tests.kit.google_api import refusal

from gridmill.clouds.gcp.errors import class_of, error_in_answer, error_of_operation
from gridmill.errors import (
    ConflictError,
    CredentialsError,
    NoMachineError,
    NotFoundError,
    QuotaError,
    RefusedError,
    UnavailableError,
)


@pytest.mark.parametrize(
    ("status", "reason", "error"),
    [
        (401, "authError", CredentialsError),
        (403, "forbidden", CredentialsError),
        (403, "accessNotConfigured", CredentialsError),
        (403, "quotaExceeded", QuotaError),
        (403, "rateLimitExceeded", UnavailableError),
        (429, "rateLimitExceeded", UnavailableError),
        (429, "unheard", UnavailableError),
        (404, "notFound", NotFoundError),
        (409, "alreadyExists", ConflictError),
        (400, "resourceInUseByAnotherResource", ConflictError),
        (400, "resourceNotReady", UnavailableError),
        (400, "invalid", RefusedError),
        (503, "backendError", UnavailableError),
        (500, "unheard", UnavailableError),
    ],
)
def test_each_refusal_has_its_class(status, reason, error):
    raised = error_in_answer(*refusal(status, reason, "why\n it failed"), "gcp instances.insert")
    assert type(raised) is error
    assert "why it failed" in raised.message
    assert raised.place == "gcp instances.insert"


def test_the_reason_of_newer_apis_is_in_the_details():
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "RATE_LIMIT_EXCEEDED"}]
    body = {"error": {"code": 403, "message": "slow down", "status": "PERMISSION_DENIED", "details": details}}
    assert type(error_in_answer(403, body, "gcp x")) is UnavailableError
    body["error"]["details"] = []
    assert type(error_in_answer(403, body, "gcp x")) is CredentialsError


@pytest.mark.parametrize("body", [None, [], {"error": "text"}, {}])
def test_an_answer_that_is_not_from_the_api_is_never_a_refusal(body):
    assert type(error_in_answer(404, body, "gcp x")) is UnavailableError


def test_a_launch_without_a_right_or_with_a_missing_image_is_refused():
    assert class_of("forbidden", 403, is_launch=True) is RefusedError
    assert class_of("notFound", 404, is_launch=True) is RefusedError
    assert class_of("authError", 401, is_launch=True) is CredentialsError


def test_a_type_that_a_zone_does_not_have_is_tried_in_another_zone():
    message = "Machine type with name 'g2-standard-4' does not exist in zone 'us-central1-f'."
    assert class_of("invalid", 400, message, is_launch=True) is NoMachineError


def test_a_machine_with_deletion_protection_is_repeated_with_a_hint():
    message = "Invalid resource usage: 'Resource cannot be deleted if it's protected against deletion. "
    message += "deletionProtection'"
    raised = error_in_answer(*refusal(400, "invalidUsage", message), "gcp instances.delete")
    assert type(raised) is UnavailableError
    assert "--no-deletion-protection" in raised.hint


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", NoMachineError),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", NoMachineError),
        ("QUOTA_EXCEEDED", QuotaError),
        ("PERMISSIONS_ERROR", RefusedError),
        ("RESOURCE_NOT_FOUND", RefusedError),
        ("INTERNAL_ERROR", UnavailableError),
        ("UNHEARD", RefusedError),
    ],
)
def test_each_failed_operation_has_its_class(code, error):
    operation = {"status": "DONE", "error": {"errors": [{"code": code, "message": "m"}]}}
    assert type(error_of_operation(operation, "gcp x")) is error


def test_an_operation_without_errors_has_not_failed():
    assert error_of_operation({"status": "DONE"}, "gcp x") is None
