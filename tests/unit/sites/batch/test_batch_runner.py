"""The runner in the container of a batch service."""

from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from tests.kit.batch_memory import Bucket

from gridmill.codec import from_builtins
from gridmill.domain.amounts import Amounts
from gridmill.domain.command import CommandSpec
from gridmill.domain.job import Job
from gridmill.domain.pod_protocol import AttemptOrder, AttemptOutcome
from gridmill.domain.states import AttemptState
from gridmill.errors import GridmillError, UnavailableError
from gridmill.sites.batch.exchange import Exchange
from gridmill.sites.batch.manifest import BatchEnd, BatchManifest, end_object, manifest_object
from gridmill.sites.batch.runner import AttemptRunner
from gridmill.transfer.errors import TransferRefusedError
from gridmill.transfer.stream import UNMETERED, ByteMeter
from gridmill.transport.server import PodLinkServer


def manifest_in(exchange: Exchange) -> None:
    given = Amounts(cpus=1.0, memory_bytes=1 << 30)
    order = AttemptOrder(
        attempt_id="a-1",
        token="t",
        run_id="p-1",
        pipeline="p",
        job=Job(name="one", command=CommandSpec(run="true")),
        given=given,
        root="",
        output_uri="out",
    )
    manifest = BatchManifest(
        order=order, type="command", capacity=given, inputs=(), checkpoints_seconds=60.0, poll_seconds=5.0
    )
    exchange.write(manifest_object("a-1"), manifest)


def broken_container(folder: Path) -> Path:
    """A container whose pod cannot start."""
    folder.mkdir()
    (folder / "pod").touch()  # so that the folder of the pod cannot be made
    return folder


def test_a_container_that_cannot_write_reports_the_file(tmp_path: Path) -> None:
    exchange = Exchange(Bucket(f"file://{tmp_path / 'bucket'}"))
    manifest_in(exchange)
    folder = broken_container(tmp_path / "container")
    links = PodLinkServer(lambda: None)
    assert AttemptRunner(exchange, "a-1", folder, links, "unix:none", Event()).run() == 1
    links.close()
    end = exchange.read(end_object("a-1"), BatchEnd)
    assert end is not None
    outcome = from_builtins(end.event.body["outcome"], AttemptOutcome)
    assert outcome.state is AttemptState.LOST
    assert f"{folder / 'pod'}: File exists" in outcome.message


class Absent(Bucket):
    """A bucket that does not answer for `away_seconds` after the attempt has begun."""

    time, away_seconds = 0.0, 0.0
    reason: GridmillError = UnavailableError("the bucket does not answer")
    on_claim: Callable[[], None] | None = None

    def create(self, name: str, content: bytes) -> bool:
        if self.on_claim is not None:
            self.on_claim()
        return super().create(name, content)

    def put(self, name: str, content: bytes, meter: ByteMeter = UNMETERED) -> None:
        if name == end_object("a-1") and self.time < self.away_seconds:
            raise self.reason
        super().put(name, content, meter)

    def wait(self, seconds: float) -> None:
        self.time += seconds


def run(bucket: Absent, tmp_path: Path) -> None:
    """Run an attempt that cannot start, in a time that passes only while the container waits."""
    exchange = Exchange(bucket)
    manifest_in(exchange)
    links = PodLinkServer(lambda: None)
    folder = broken_container(tmp_path / "container")
    try:
        AttemptRunner(
            exchange, "a-1", folder, links, "unix:none", Event(), "", lambda: bucket.time, bucket.wait
        ).run()
    finally:
        links.close()


def test_a_container_waits_for_the_bucket_to_write_its_end(tmp_path: Path) -> None:
    bucket = Absent(f"file://{tmp_path / 'bucket'}")
    bucket.away_seconds = 3000.0
    run(bucket, tmp_path)
    assert bucket.has(end_object("a-1"))
    assert 3000.0 <= bucket.time <= 3030.0


def test_a_container_waits_for_access_to_write_its_end(tmp_path: Path) -> None:
    bucket = Absent(f"file://{tmp_path / 'bucket'}")
    bucket.away_seconds, bucket.reason = 3000.0, TransferRefusedError("access is denied")
    run(bucket, tmp_path)
    assert bucket.has(end_object("a-1"))


def test_a_container_gives_up_if_the_bucket_does_not_answer_for_an_hour(tmp_path: Path) -> None:
    bucket = Absent(f"file://{tmp_path / 'bucket'}")
    bucket.away_seconds = 1e9
    with pytest.raises(UnavailableError):
        run(bucket, tmp_path)
    assert 3600.0 <= bucket.time <= 3630.0


def test_a_container_writes_no_end_after_the_home_has_deleted_the_attempt(tmp_path: Path) -> None:
    bucket = Absent(f"file://{tmp_path / 'bucket'}")
    bucket.on_claim = lambda: bucket.remove(manifest_object("a-1"))
    run(bucket, tmp_path)
    assert not bucket.has(end_object("a-1"))
