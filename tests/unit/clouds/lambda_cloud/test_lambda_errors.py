import pytest

from gridmill.clouds.lambda_cloud.errors import TABLE, class_of, error_of, retry_seconds
from gridmill.errors import (
    CredentialsError,
    NoMachineError,
    NotFoundError,
    QuotaError,
    RefusedError,
    UnavailableError,
)


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("instance-operations/launch/insufficient-capacity", 400, NoMachineError),
        ("global/quota-exceeded", 400, QuotaError),
        ("global/invalid-api-key", 401, CredentialsError),
        ("global/account-inactive", 403, CredentialsError),
        ("global/invalid-parameters", 400, RefusedError),
        ("global/object-does-not-exist", 404, NotFoundError),
        ("global/unknown", 400, UnavailableError),
        ("global/internal-error", 500, UnavailableError),
        ("global/rate-limited", 429, UnavailableError),
        ("some/new-code", 400, RefusedError),
        ("some/new-code", 500, UnavailableError),
        ("some/new-code", 403, CredentialsError),
        ("", 400, UnavailableError),
        ("", 502, UnavailableError),
    ],
)
def test_each_code_is_one_error(code, status, error):
    assert class_of(code, status) is error


def test_the_message_and_the_suggestion_are_shown():
    body = {
        "error": {"code": "global/quota-exceeded", "message": "Quota  exceeded.", "suggestion": "Ask us."}
    }
    error = error_of(400, body, "lambda POST /x")
    assert (error.message, error.hint) == (
        "Lambda Cloud answered global/quota-exceeded: Quota exceeded.",
        "Ask us.",
    )
    assert error.place == "lambda POST /x"


@pytest.mark.parametrize("body", [None, [], "x", {}, {"error": "x"}, {"error": {"message": None}}])
def test_an_answer_of_something_else_counts_as_no_answer(body):
    assert type(error_of(404, body, "x")) is UnavailableError


def test_codes_have_the_form_of_the_description():
    assert all("/" in code for code in TABLE)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, 12.5), ("30", 30.0), ("1", 12.5), ("soon", 12.5), ("1e9", 600.0), ("nan", 12.5), ("-3", 12.5)],
)
def test_the_time_of_the_next_call(header, seconds):
    assert retry_seconds(header, 12.5) == seconds
