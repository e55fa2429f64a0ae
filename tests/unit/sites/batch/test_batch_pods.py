"""The pods of a batch site and the jobs of several attempts."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread

import pytest
from tests.kit.batch_memory import Bucket, Service

from gridmill import plugins
from gridmill.codec import encode
from gridmill.domain.amounts import Amounts
from gridmill.domain.command import CommandSpec
from gridmill.domain.job import Job
from gridmill.domain.pod_protocol import (
    AttemptOrder,
    FromPod,
    Goodbye,
    Hello,
    PodOrder,
    Start,
    ToPod,
    Welcome,
)
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import StorageError, UnavailableError
from gridmill.ports.batch import BatchJob, BatchPhase
from gridmill.ports.site import PodStatus
from gridmill.settings import read_settings
from gridmill.sites.batch.attempt_record import AttemptPhase, BatchAttemptRecord
from gridmill.sites.batch.exchange import Exchange
from gridmill.sites.batch.journal import PodJournal
from gridmill.sites.batch.pods import BatchPod, write_order
from gridmill.sites.batch.settings import read
from gridmill.sites.batch.site import BatchSite, JobReports


class Link:
    """A connection whose other end is the test."""

    def __init__(self) -> None:
        self.sent: list[FromPod] = []
        self.next: list[ToPod] | None = []
        self.closed = False

    def connect(self) -> bool:
        return True

    def fileno(self) -> int | None:
        return None

    def receive(self) -> Sequence[ToPod] | None:
        received, self.next = self.next, []
        return received

    def send(self, messages: Sequence[FromPod]) -> bool:
        self.sent.extend(messages)
        return True

    def pending(self) -> bool:
        return False

    def flush(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


def order(number: int) -> AttemptOrder:
    job = Job(name="one", command=CommandSpec(run="true"))
    return AttemptOrder(
        attempt_id=f"p-1.one.{number}",
        token="t",
        run_id="p-1",
        pipeline="p",
        job=job,
        given=Amounts(cpus=1.0, memory_bytes=1 << 30),
        root="",
        output_uri=f"out-{number}",
    )


def dial_goodbye(address: str) -> Link:
    """A control node that does not know any pod."""
    link = Link()
    link.next = [Goodbye(reason="the deployment does not exist any more")]
    return link


POD = PodOrder(
    pod_id="b-1.0",
    deployment_id="b-1",
    type="command",
    secret="s",
    home="",
    link="",
    capacity=Amounts(cpus=1.0, memory_bytes=1 << 30),
    keep_seconds=60.0,
)


def test_a_message_that_could_not_be_processed_is_sent_again(tmp_path: Path) -> None:
    links: list[Link] = []
    started: list[str] = []

    def start(_: BatchPod, order: AttemptOrder) -> None:
        if len(links) == 1:
            raise StorageError("no space left on device")
        started.append(order.attempt_id)

    def dial() -> Link:
        links.append(Link())
        return links[-1]

    pod = BatchPod(POD, tmp_path, dial, start)
    pod.turn()
    links[0].next = [Welcome(acknowledged=0), Start(order=order(1)), Start(order=order(2))]
    with pytest.raises(StorageError):
        pod.turn()
    assert links[0].closed  # so that the control node repeats what was not processed
    while len(links) == 1:
        pod.turn()
    assert isinstance(links[1].sent[0], Hello)
    links[1].next = [Welcome(acknowledged=0), Start(order=order(1)), Start(order=order(2))]
    pod.turn()
    assert started == ["p-1.one.1", "p-1.one.2"]


class World:
    """A home with `count` attempts of one pod at a batch site, whose jobs run."""

    def __init__(self, folder: Path, count: int) -> None:
        self.home, self.service = folder / "home", Service()
        self.bucket = Bucket(f"file://{folder / 'bucket'}")
        values = {
            "service": "aws",
            "bucket": "s3://bucket/prefix",
            "region": "eu-central-1",
            "queue": "q",
            "poll": "50ms",
        }
        self.declared = Site(name="batch", kind=SiteKind.BATCH, settings=values)
        self.folder = self.home / "batch" / "batch"
        write_order(self.folder / "pods" / POD.pod_id, POD)
        (self.folder / "attempts").mkdir()
        for number in range(1, count + 1):
            self.write(number)

    def open(self, monotonic: Callable[[], float] = time.monotonic) -> BatchSite:
        settings = read_settings({"GRIDMILL_HOME": str(self.home)})
        exchange = Exchange(self.bucket)
        return BatchSite(settings, self.declared, read(self.declared), self.service, exchange, monotonic)

    def write(self, number: int) -> None:
        job_id = f"job-{number}"
        self.service.jobs[job_id] = BatchJob(
            id=job_id, phase=BatchPhase.RUNNING, status="RUNNING", started=1.0
        )
        record = BatchAttemptRecord(
            order=order(number),
            pod_id=POD.pod_id,
            type="command",
            name=f"gm-{number}",
            phase=AttemptPhase.SUBMITTED,
            asked=True,
            job_id=job_id,
        )
        self.path(number).write_bytes(encode(record))

    def path(self, number: int) -> Path:
        return self.folder / "attempts" / f"p-1.one.{number}.json"


def test_all_jobs_of_a_pod_are_asked_to_end_before_one_is_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path, 3)
    world.service.stubborn = True
    world.bucket.error = UnavailableError("the bucket's server does not answer")
    site = world.open()
    site.start()
    while site.observe([POD.pod_id])[POD.pod_id].status is PodStatus.UNKNOWN:
        pass
    ending = Thread(target=site.tear_down, args=([POD.pod_id],))
    ending.start()
    until = time.monotonic() + 30.0
    while len(world.service.cancelled) < 3:
        assert time.monotonic() < until
    assert sorted(world.service.cancelled) == ["job-1", "job-2", "job-3"]
    for job_id in world.service.cancelled:
        world.service.end(job_id)
    ending.join(30.0)
    assert not ending.is_alive()
    assert not any(world.path(number).exists() for number in (1, 2, 3))
    site.close()


def test_the_jobs_of_a_pod_that_nobody_knows_are_ended_also_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plugins.LINKS, "unix", f"{__name__}:dial_goodbye")
    world, now = World(tmp_path, 1), [1000.0]
    world.service.error = UnavailableError("the service does not answer")
    site = world.open(lambda: now[0])
    site.start()
    try:
        until = time.monotonic() + 30.0
        while not world.service.refused:
            assert time.monotonic() < until
        world.service.error = None
        now[0] += 100.0
        while world.path(1).exists():
            assert time.monotonic() < until
        assert world.service.cancelled == ["job-1"]
    finally:
        site.close()


def test_of_two_objects_for_a_site_only_one_continues_its_attempts(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    world.bucket.error = UnavailableError("the bucket's server does not answer")
    old, new = world.open(), world.open()
    old.start()
    while old.observe([POD.pod_id])[POD.pod_id].status is PodStatus.UNKNOWN:
        pass
    new.start()
    assert new.observe([POD.pod_id])[POD.pod_id].status is PodStatus.UNKNOWN
    with pytest.raises(UnavailableError, match="not open yet"):
        new.tear_down([POD.pod_id])
    old.close()
    while new.observe([POD.pod_id])[POD.pod_id].status is PodStatus.UNKNOWN:
        pass
    assert new.observe([POD.pod_id])[POD.pod_id].status is PodStatus.RUNNING
    new.close()


def test_the_job_of_a_pod_whose_order_is_damaged_is_ended(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    (world.folder / "pods" / POD.pod_id / "order.json").write_bytes(b"{")
    site = world.open()
    site.start()
    try:
        until = time.monotonic() + 30.0
        while world.path(1).exists():
            assert time.monotonic() < until
        assert world.service.cancelled == ["job-1"]
    finally:
        site.close()


def test_an_attempt_that_has_ended_uses_no_memory_and_no_file(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    world.service.end("job-1", started=None)
    site = world.open()
    site.start()
    try:
        until = time.monotonic() + 30.0
        while world.path(1).exists():
            assert time.monotonic() < until
        journal = PodJournal(world.folder / "pods" / POD.pod_id / "journal.jsonl")
        assert journal.has_ended("p-1.one.1")
    finally:
        site.close()


def test_a_service_that_does_not_answer_does_not_make_a_job_missing() -> None:
    service, now = Service(), [0.0]
    reports = JobReports(service, lambda: now[0])
    reports.refresh(["job-1"])  # submitted just now, and not listed yet
    service.error = UnavailableError("no answer")
    for now[0] in (100.0, 200.0):
        reports.refresh(["job-1"])
    assert reports.missing_seconds("job-1") == 0.0
    service.error = None
    for now[0] in (210.0, 330.0):
        reports.refresh(["job-1"])
    assert reports.missing_seconds("job-1") == 330.0
    reports.refresh([])
    assert reports.missing_seconds("job-1") == 0.0
