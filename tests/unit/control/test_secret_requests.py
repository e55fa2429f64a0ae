"""The control node sends the values of an attempt only to the pod of this attempt, and only encrypted."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from gridmill.auth.cipher import Receiver
from gridmill.auth.vault import make
from gridmill.codec import encode
from gridmill.control.state import Channels
from gridmill.control.steps.orders import start_attempt
from gridmill.control.steps.secrets import answer_request, check_secret_settings, check_secrets_exist
from gridmill.control.usecases.service import Identity, Service
from gridmill.domain.amounts import Amounts
from gridmill.domain.command import CommandSpec
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import SecretRequest, SecretValues, Stop, ToPod, secret_context
from gridmill.domain.run import Attempt, JobRun
from gridmill.domain.secret import Secret
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.states import AttemptState, JobState
from gridmill.errors import InputError
from gridmill.stores import memory
from gridmill.testing.simulation import Behaviour, Simulation

VALUE = "hunter2-is-a-value"
JOB = Job(name="a", command=CommandSpec(run="true", env={"PW": "${secret:db}"}))


class Links:
    """Records the messages to pods."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, ToPod]] = []

    def send(self, channel: int, messages: Sequence[ToPod]) -> None:
        self.sent += [(channel, message) for message in messages]


@pytest.fixture
def grid(tmp_path: Path) -> SimpleNamespace:
    """A control node with a secret and a placed attempt, whose pod has the channel 7."""
    simulation = Simulation(store=memory.make(), behave=lambda order: Behaviour())
    simulation.declare_site()
    control = simulation.node.control
    control.ledger.load()
    control.vault = make(tmp_path / "key")
    cases = Service(
        simulation.node, Identity(version="", home="", address="", embedded=True), render=str, end=str
    )
    cases.add_secret("db", VALUE)
    run = cases.start_run(Pipeline(name="p", jobs=(JOB,))).run
    links = Links()
    control.channels = Channels(links=links, secret=b"", by_pod={"pod": 7}, by_channel={7: "pod", 8: "other"})
    attempt = Attempt(
        id=f"{run.id}.a.1",
        run_id=run.id,
        job_run_id=f"{run.id}/a",
        token="t1",
        deployment_id="d",
        pod_id="pod",
        state=AttemptState.PLACED,
        given=Amounts(),
        placed=1.0,
    )
    job_run = control.ledger.snapshot.job_runs[attempt.job_run_id]
    running = replace(job_run, state=JobState.RUNNING, attempts=1, attempt_id=attempt.id)
    receiver = Receiver()
    request = SecretRequest(attempt_id=attempt.id, token="t1", public_key=receiver.public_key)
    return SimpleNamespace(
        control=control,
        links=links,
        attempt=attempt,
        running=running,
        receiver=receiver,
        request=request,
        cases=cases,
    )


def ask(grid: SimpleNamespace, request: SecretRequest, channel: int = 7) -> list[tuple[int, ToPod]]:
    transaction = grid.control.begin()
    transaction.put(grid.attempt, grid.running)
    answer_request(grid.control.starting, transaction, channel, request)
    assert grid.links.sent == [], "nothing is sent before the commit"
    for act in transaction.after:
        act()
    grid.ended = transaction.get(Attempt, grid.attempt.id)
    grid.job_run = transaction.get(JobRun, grid.attempt.job_run_id)
    return grid.links.sent


def test_the_values_are_sent_encrypted_to_the_pod_of_the_attempt(grid: SimpleNamespace):
    ((channel, message),) = ask(grid, grid.request)
    assert channel == 7
    assert isinstance(message, SecretValues)
    assert VALUE.encode() not in encode(message)
    opened = grid.receiver.open(message.sealed, secret_context(grid.attempt.id, "t1"))
    assert json.loads(opened) == {"db": VALUE}


@pytest.mark.parametrize("change", [{"token": "t2"}, {"attempt_id": "p-9.a.1"}])
def test_a_request_for_another_attempt_is_ignored(grid: SimpleNamespace, change: dict[str, str]):
    assert ask(grid, replace(grid.request, **change)) == []


def test_a_request_of_another_pod_is_ignored(grid: SimpleNamespace):
    assert ask(grid, grid.request, channel=8) == []
    assert ask(grid, grid.request, channel=99) == []


def test_an_attempt_that_shall_stop_gets_no_values(grid: SimpleNamespace):
    grid.attempt = replace(grid.attempt, stop_requested=True)
    assert ask(grid, grid.request) == []


def test_without_the_key_the_attempt_fails_and_says_what_to_do(grid: SimpleNamespace, tmp_path: Path):
    (tmp_path / "key").unlink()
    messages = ask(grid, grid.request)
    assert [type(message) for _, message in messages] == [Stop]
    assert grid.ended.state == AttemptState.FAILED
    assert "secret db: its value cannot be decrypted" in grid.job_run.message
    assert "gridmill add secret db" in grid.ended.hint


def test_a_removed_secret_fails_the_attempt(grid: SimpleNamespace):
    grid.cases.remove_secret("db", force=True)
    ask(grid, grid.request)
    assert "there is no secret 'db'" in grid.job_run.message


def test_a_pod_of_an_earlier_version_gets_no_order_with_secrets(grid: SimpleNamespace):
    grid.control.channels.protocols["pod"] = 2
    transaction = grid.control.begin()
    transaction.put(grid.attempt, grid.running)
    start_attempt(grid.control.starting, transaction, grid.attempt)
    ended = transaction.get(Attempt, grid.attempt.id)
    job_run = transaction.get(JobRun, grid.attempt.job_run_id)
    assert ended is not None
    assert job_run is not None
    assert ended.state == AttemptState.FAILED
    assert "older Gridmill" in job_run.message


def test_an_unknown_secret_of_a_job_or_a_site_is_an_error_with_its_place(grid: SimpleNamespace):
    ledger = grid.control.ledger
    grid.cases.add_secret("password", VALUE)
    job = replace(JOB, command=CommandSpec(run="true", env={"PW": "a ${secret:pasword}"}))
    with pytest.raises(InputError, match=r"jobs\.a\.command\.env\.PW: there is no secret") as caught:
        check_secrets_exist(ledger, (job,))
    assert "Did you mean `password`?" in caught.value.hint
    farm = Site(name="far", kind=SiteKind.CLUSTER, settings={"secret_access_key": "${secret:dp}"})
    with pytest.raises(InputError, match=r"site far: settings\.secret_access_key: there is no secret"):
        check_secret_settings(ledger, farm)
    slurm = Site(name="hpc", kind=SiteKind.SLURM, settings={"setup": "export PW=${secret:db}"})
    with pytest.raises(InputError, match="slurm site cannot refer to secrets"):
        check_secret_settings(ledger, slurm)
    check_secret_settings(ledger, replace(farm, settings={"secret_access_key": "${secret:db}"}))


def test_a_cloud_site_uses_the_secret_that_it_names(grid: SimpleNamespace):
    site = Site(name="burst", kind=SiteKind.CLOUD, settings={"secret_access_key": "db", "region": "db"})
    with grid.cases._node.changing() as transaction:
        transaction.put(site)
    assert "site burst" in grid.cases.secret("db").used_by
    assert grid.control.ledger.store.get(Secret, "db") is not None
