import pytest

from gridmill.clouds.aws.errors import TABLE, class_of, error_of
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
    ("code", "status", "kind"),
    [
        ("InsufficientInstanceCapacity", 500, NoMachineError),
        ("Unsupported", 400, NoMachineError),
        ("UnfulfillableCapacity", 500, NoMachineError),
        ("VcpuLimitExceeded", 400, QuotaError),
        ("MaxSpotInstanceCountExceeded", 400, QuotaError),
        ("InvalidAMIID.NotFound", 400, RefusedError),
        ("InvalidAMIID.Malformed", 400, RefusedError),
        ("InvalidParameterValue", 400, RefusedError),
        ("AuthFailure", 401, CredentialsError),
        ("ExpiredToken", 400, CredentialsError),
        ("RequestExpired", 400, CredentialsError),
        ("UnauthorizedOperation", 403, CredentialsError),
        ("RequestLimitExceeded", 503, UnavailableError),
        ("InternalError", 500, UnavailableError),
        ("IdempotentParameterMismatch", 400, ConflictError),
        ("DependencyViolation", 400, ConflictError),
        ("InvalidInstanceID.NotFound", 400, NotFoundError),
        ("SomethingNew", 400, RefusedError),
        ("SomethingNew", 502, UnavailableError),
        ("", 503, UnavailableError),
    ],
)
def test_a_code_has_one_class_whatever_its_status(code, status, kind):
    assert class_of(code, status) is kind


def test_a_launch_without_the_right_is_refused_but_other_calls_are_repeated():
    assert class_of("UnauthorizedOperation", 403, is_launch=True) is RefusedError
    assert issubclass(class_of("UnauthorizedOperation", 403), UnavailableError)


def test_capacity_and_quota_never_look_like_a_lost_answer():
    for code, kind in TABLE.items():
        if kind in (NoMachineError, QuotaError):
            assert not issubclass(class_of(code, 500, is_launch=True), UnavailableError)


def test_an_error_names_the_request_and_the_missing_right():
    error = error_of(
        "UnauthorizedOperation", 403, "You are not\nauthorized", "aws eu-west-1 TerminateInstances"
    )
    assert error.place == "aws eu-west-1 TerminateInstances"
    assert "TerminateInstances" in error.hint
    assert error.message == "AWS answered UnauthorizedOperation: You are not authorized"
