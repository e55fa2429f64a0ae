"""A pod asks for values with its own key, and starts an attempt only with values that were meant for it."""

from gridmill.auth.cipher import seal
from gridmill.codec import encode_message
from gridmill.domain.amounts import Amounts
from gridmill.domain.command import CommandSpec
from gridmill.domain.job import Job
from gridmill.domain.pod_protocol import AttemptOrder, SecretValues, Start, secret_context
from gridmill.pod.secret_requests import SecretRequests

VALUE = "hunter2-is-a-value"


def start(attempt_id: str = "demo-1.a.1", token: str = "t1") -> Start:
    job = Job(name="a", command=CommandSpec(run="true", env={"PW": "${secret:db}"}))
    order = AttemptOrder(
        attempt_id=attempt_id,
        token=token,
        run_id="demo-1",
        pipeline="demo",
        job=job,
        given=Amounts(),
        root="/r",
        output_uri="o",
    )
    return Start(order=order)


def answer(public_key: str, attempt_id: str = "demo-1.a.1", token: str = "t1") -> SecretValues:
    data = f'{{"db": "{VALUE}"}}'.encode()
    sealed = seal(data, public_key, secret_context(attempt_id, token))
    return SecretValues(attempt_id=attempt_id, sealed=sealed)


def test_an_attempt_starts_once_with_the_values_that_it_asked_for():
    requests = SecretRequests()
    message = answer(requests.ask(start()).public_key)
    assert VALUE.encode() not in encode_message(message)
    ready = requests.receive(message)
    assert ready is not None
    assert (ready.values, ready.trouble) == ({"db": VALUE}, None)
    assert requests.receive(message) is None


def test_a_repeated_start_asks_again_with_the_same_key():
    requests = SecretRequests()
    first = requests.ask(start())
    assert requests.ask(start()) == first
    assert requests.receive(answer(first.public_key)) is not None


def test_values_for_another_attempt_pod_or_token_are_refused():
    other = SecretRequests().ask(start()).public_key
    for change in ({"token": "t2"}, {"public_key": other}):
        requests = SecretRequests()
        key = requests.ask(start()).public_key
        ready = requests.receive(answer(**{"public_key": key, **change}))
        assert ready is not None
        assert ready.trouble is not None
        assert "cannot be decrypted" in ready.trouble.message
        assert ready.values == {}


def test_missing_values_are_named():
    requests = SecretRequests()
    key = requests.ask(start()).public_key
    sealed = seal(b"{}", key, secret_context("demo-1.a.1", "t1"))
    ready = requests.receive(SecretValues(attempt_id="demo-1.a.1", sealed=sealed))
    assert ready is not None
    assert ready.trouble is not None
    assert "did not send the secrets db" in ready.trouble.message


def test_values_without_a_request_and_after_a_stop_start_nothing():
    requests = SecretRequests()
    message = answer(requests.ask(start()).public_key)
    requests.drop("demo-1.a.1")
    assert requests.receive(message) is None
    assert SecretRequests().receive(message) is None
