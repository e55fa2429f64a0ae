"""The record of one attempt at a batch site, when the service or the bucket fails while its job exists."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from blake3 import blake3
from tests.kit.batch_memory import Bucket, Service

from gridmill.codec import encode, from_builtins, to_builtins
from gridmill.domain.amounts import Amounts
from gridmill.domain.command import CommandSpec
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job
from gridmill.domain.pod_protocol import AttemptOrder, AttemptOutcome, EventType, PodEvent, SecretRequest
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.states import AttemptState, Cause
from gridmill.errors import RefusedError, UnavailableError
from gridmill.ports.batch import BatchPhase
from gridmill.sites.attempt_inputs import InputTrees, KnownFolders
from gridmill.sites.batch.attempt import AttemptDriver
from gridmill.sites.batch.attempt_record import AttemptPhase, BatchAttemptRecord
from gridmill.sites.batch.context import SiteContext
from gridmill.sites.batch.exchange import Exchange, repeated
from gridmill.sites.batch.journal import PodJournal
from gridmill.sites.batch.manifest import BatchEnd, end_object, manifest_object, secret_request_object
from gridmill.sites.batch.settings import read
from gridmill.transfer.bucket_cache import BucketCache
from gridmill.transfer.errors import TransferRefusedError
from gridmill.transfer.stream import Chunk


class Attempt:
    """An attempt at a site whose clock stands still unless a test moves it."""

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.service, self.time, self.missing_seconds = Service(), 1000.0, 0.0
        self.bucket = Bucket(f"file://{folder / 'bucket'}")
        settings = {"service": "aws", "bucket": "s3://bucket/prefix", "region": "eu-central-1", "queue": "q"}
        site = Site(name="batch", kind=SiteKind.BATCH, settings=settings)
        root = folder / "root"
        root.mkdir()
        context = SiteContext(
            site=site,
            parsed=read(site),
            root=root,
            mark="0a1b2c3d",
            root_mark="mark",
            exchange=Exchange(self.bucket),
            service=self.service,
            trees=InputTrees(root, folder / "bundles", KnownFolders(folder / "hashes")),
            jobs=lambda job_id: self.service.jobs.get(job_id),
            missing_seconds=lambda _: self.missing_seconds,
            records=lambda _: None,
            now=lambda: self.time,
            monotonic=lambda: self.time,
        )
        order = AttemptOrder(
            attempt_id="a-1",
            token="t",
            run_id="p-1",
            pipeline="p",
            job=Job(name="one", command=CommandSpec(run="true", env=env or {})),
            given=Amounts(cpus=1.0, memory_bytes=1 << 30),
            root=str(root),
            output_uri="out",
        )
        record = BatchAttemptRecord(order=order, pod_id="b-1.0", type="command", name="gm-a-1")
        self.journal = PodJournal(folder / "journal")
        self.driver = AttemptDriver(context, record, self.journal, folder / "a-1.json")

    def steps(self, count: int = 1, seconds: float = 10.0) -> None:
        for _ in range(count):
            self.time += seconds
            self.driver.step()

    def outcome(self) -> AttemptOutcome | None:
        """The end that the control node gets."""
        ends = [one for one in self.journal.waiting() if one.type is EventType.ENDED]
        return from_builtins(ends[0].body["outcome"], AttemptOutcome) if ends else None


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    made = Attempt(tmp_path)
    made.steps()
    assert made.driver.record.phase is AttemptPhase.SUBMITTED
    return made


def test_a_job_goes_on_while_the_bucket_refuses_access(attempt: Attempt) -> None:
    attempt.bucket.error = TransferRefusedError("access is denied")
    attempt.steps(3)
    assert attempt.outcome() is None
    assert "access is denied" in attempt.driver.problem
    assert attempt.service.cancelled == []


def test_a_job_that_is_stopped_is_cancelled_while_the_bucket_does_not_answer(attempt: Attempt) -> None:
    attempt.bucket.error = UnavailableError("the bucket's server does not answer")
    attempt.driver.request_stop("stopped")
    attempt.steps()
    assert attempt.service.cancelled == ["job-1"]
    attempt.bucket.error = None
    attempt.steps(5)
    outcome = attempt.outcome()
    assert outcome is not None
    assert outcome.state is AttemptState.STOPPED


def test_an_attempt_does_not_end_before_the_service_accepts_the_end_of_its_job(attempt: Attempt) -> None:
    attempt.service.error = RefusedError("not allowed")
    attempt.driver.request_stop("stopped")
    attempt.steps(3)
    assert attempt.outcome() is None
    assert "not allowed" in attempt.driver.problem
    with pytest.raises(UnavailableError, match="not allowed"):
        attempt.driver.end_now()
    attempt.service.error = None
    attempt.steps(6)
    assert attempt.service.cancelled == ["job-1"]
    assert attempt.outcome() is not None


def test_the_job_of_an_attempt_with_a_damaged_record_is_ended_first(attempt: Attempt) -> None:
    attempt.service.stubborn = True
    attempt.bucket.put(end_object("a-1"), b"{")
    attempt.steps(2)
    assert attempt.service.cancelled == ["job-1"]
    assert attempt.outcome() is None
    attempt.service.end("job-1")
    attempt.steps()
    outcome = attempt.outcome()
    assert outcome is not None
    assert outcome.cause is Cause.INPUT


def test_of_two_jobs_after_a_late_list_the_first_one_is_followed(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.service.loses_answer = attempt.service.is_late = True
    attempt.steps(2)
    assert sorted(attempt.service.jobs) == ["job-1", "job-2"]
    attempt.service.is_late = False
    attempt.service.end("job-2")  # its container does nothing, because the first one runs the attempt
    attempt.steps(8)
    assert attempt.outcome() is None
    attempt.driver.request_stop("stopped")
    attempt.steps(8)
    assert attempt.service.cancelled == ["job-1"]
    assert attempt.outcome() is not None


def test_a_job_that_may_exist_finds_no_manifest_after_its_pod_has_ended(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.service.loses_answer = attempt.service.is_late = True
    attempt.steps()
    attempt.bucket.error = UnavailableError("the bucket's server does not answer")
    with pytest.raises(UnavailableError):
        attempt.driver.end_now()
    attempt.bucket.error = None
    assert attempt.driver.end_now()
    assert not attempt.bucket.has(manifest_object("a-1"))


def test_an_attempt_at_its_time_limit_is_not_repeated_like_a_lost_one(attempt: Attempt) -> None:
    attempt.service.end("job-1", cause=Cause.TIMEOUT, reason="Job attempt duration exceeded timeout")
    attempt.steps(8)
    outcome = attempt.outcome()
    assert outcome is not None
    assert (outcome.state, outcome.cause) == (AttemptState.FAILED, Cause.TIMEOUT)
    assert "time_limit" in outcome.hint


def test_a_request_for_secrets_is_repeated_after_a_lost_connection(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, {"TOKEN": "${secret:token}"})
    attempt.steps()
    asked = SecretRequest(attempt_id="a-1", token="t", public_key="k")
    attempt.bucket.put(secret_request_object("a-1"), encode(asked))
    attempt.steps()
    assert attempt.driver.secret_request == asked
    attempt.driver.secret_request = None  # sent, and lost with the connection
    attempt.steps()
    assert attempt.driver.secret_request is None
    attempt.driver.ask_again()
    attempt.steps()
    assert attempt.driver.secret_request == asked


def test_a_container_whose_claim_had_no_answer_runs_the_attempt(tmp_path: Path) -> None:
    class Silent(Bucket):
        def create(self, name: str, content: bytes) -> bool:
            made = super().create(name, content)
            if made:
                raise UnavailableError("the answer was lost")
            return made

    exchange = Exchange(Silent(f"file://{tmp_path}"))
    assert repeated(lambda: exchange.claim("started", "one"), lambda _: None)
    assert not repeated(lambda: exchange.claim("started", "two"), lambda _: None)


def test_chunks_that_were_deleted_are_put_again(tmp_path: Path) -> None:
    bucket = Bucket(f"file://{tmp_path}")
    cache = BucketCache(bucket)
    chunk = Chunk(hash=blake3(b"x").hexdigest(), data=b"x")
    cache.send([chunk])

    class Racing(Bucket):
        def older(self, before: datetime, folder: str | None = None) -> Iterator[str]:
            names = tuple(super().older(before, folder))
            racing.missing([chunk.hash])  # a new attempt sees the chunk just before it is deleted
            return iter(names)

    racing = BucketCache(Racing(f"file://{tmp_path}"))
    racing.clear(datetime.now(UTC) + timedelta(days=1))
    assert racing.missing([chunk.hash]) == (chunk.hash,)


def test_a_job_is_not_lost_while_the_credentials_are_for_another_account(attempt: Attempt) -> None:
    running = attempt.service.jobs.pop("job-1")
    attempt.missing_seconds, attempt.service.account_name = 200.0, "other"
    attempt.steps(3)
    assert attempt.outcome() is None
    assert "is in account memory, but the credentials of site batch are for account other" in (
        attempt.driver.problem
    )
    with pytest.raises(UnavailableError, match="is in account memory"):
        attempt.driver.end_now()  # a pod that ends does not leave the job behind
    attempt.service.jobs["job-1"], attempt.service.account_name = running, "memory"
    attempt.missing_seconds = 0.0
    attempt.steps()
    assert attempt.outcome() is None
    assert not attempt.driver.problem


def test_a_job_that_its_account_does_not_know_is_lost(attempt: Attempt) -> None:
    del attempt.service.jobs["job-1"]
    attempt.missing_seconds = 200.0
    attempt.steps()
    outcome = attempt.outcome()
    assert outcome is not None
    assert outcome.state is AttemptState.LOST


def test_a_submission_without_an_answer_is_not_repeated_in_another_account(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.service.loses_answer = True
    attempt.steps()
    attempt.service.account_name, attempt.service.is_late = "other", True
    attempt.steps(3)
    assert sorted(attempt.service.jobs) == ["job-1"]
    attempt.service.account_name, attempt.service.is_late = "memory", False
    attempt.steps()
    assert attempt.driver.record.job_id == "job-1"


def test_the_time_in_the_queue_is_measured_with_one_clock(attempt: Attempt) -> None:
    queued = replace(attempt.service.jobs["job-1"], phase=BatchPhase.QUEUED, started=None, created=-1e6)
    attempt.service.jobs["job-1"] = queued
    attempt.steps(3)
    assert attempt.driver.record.verdict is None


def test_the_job_of_an_ended_attempt_that_does_not_end_is_cancelled(attempt: Attempt) -> None:
    attempt.service.stubborn = True
    outcome = AttemptOutcome(state=AttemptState.FAILED, cause=Cause.INPUT, message="no")
    event = PodEvent(
        number=1,
        attempt_id="a-1",
        token="t",
        time=1.0,
        type=EventType.ENDED,
        body={"outcome": to_builtins(outcome)},
    )
    attempt.bucket.put(end_object("a-1"), encode(BatchEnd(event=event)))
    attempt.steps()
    assert attempt.outcome() is not None  # the control node does not wait for the end of the job
    assert not attempt.bucket.has(manifest_object("a-1"))
    assert not attempt.service.cancelled
    assert not attempt.driver.end_now()
    assert not attempt.service.cancelled  # also a pod that ends gives the job the time to end by itself
    attempt.steps(3)
    assert attempt.service.cancelled == ["job-1"]
    assert not attempt.driver.has_ended
    attempt.service.end("job-1")
    attempt.steps()
    assert attempt.driver.has_ended
