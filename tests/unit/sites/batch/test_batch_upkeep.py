"""The bucket of a site that is never idle, and jobs that a home does not know."""

from pathlib import Path

import pytest
from blake3 import blake3
from tests.kit.batch_memory import Bucket, Service

from gridmill.domain.amounts import Amounts
from gridmill.domain.command import CommandSpec
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import UnavailableError
from gridmill.ports.batch import BatchJob, BatchPhase
from gridmill.sites.attempt_inputs import InputTrees, KnownFolders
from gridmill.sites.batch.attempt_record import BatchAttemptRecord
from gridmill.sites.batch.context import SiteContext
from gridmill.sites.batch.exchange import Exchange
from gridmill.sites.batch.manifest import chunks_folder, manifest_object
from gridmill.sites.batch.settings import read
from gridmill.sites.batch.upkeep import Upkeep
from gridmill.transfer.stream import Chunk

DAY = 86_400.0
KEEP = 14 * DAY
SETTINGS = {"service": "aws", "bucket": "s3://bucket/prefix", "region": "eu-central-1", "queue": "q"}
FAR = 4e9
"""A time long after the files of the bucket were written."""


class World:
    """A site with a bucket in a folder."""

    def __init__(self, folder: Path) -> None:
        self.time, self.service, self.known = FAR, Service(), set[str]()
        self.bucket = Bucket(f"file://{folder / 'bucket'}")
        site = Site(name="batch", kind=SiteKind.BATCH, settings=SETTINGS)
        self.exchange = Exchange(self.bucket)
        self.context = SiteContext(
            site=site,
            parsed=read(site),
            root=folder,
            mark="0a1b2c3d",
            root_mark="mark",
            exchange=self.exchange,
            service=self.service,
            trees=InputTrees(folder, folder / "bundles", KnownFolders(folder / "hashes")),
            jobs=lambda _: None,
            missing_seconds=lambda _: 0.0,
            records=lambda _: None,
            now=lambda: self.time,
            monotonic=lambda: self.time,
        )
        self.upkeep = Upkeep(self.context, lambda: self.known, lambda: self.time)

    def attempt(self, number: int) -> BatchAttemptRecord:
        """An attempt that begins now, with one chunk and a manifest in the bucket."""
        order = AttemptOrder(
            attempt_id=f"a-{number}",
            token="t",
            run_id="p-1",
            pipeline="p",
            job=Job(name="one", command=CommandSpec(run="true")),
            given=Amounts(cpus=1.0, memory_bytes=1 << 30),
            root="",
            output_uri="out",
        )
        chunks = chunks_folder(self.time, KEEP)
        record = BatchAttemptRecord(
            order=order, pod_id="b-1.0", type="command", name=f"gm-a-{number}", chunks=chunks
        )
        self.exchange.at(chunks).chunks.send([chunk(number)])
        self.bucket.put(manifest_object(order.attempt_id), b"{}")
        return record

    def has(self, record: BatchAttemptRecord, number: int) -> bool:
        return not self.exchange.at(record.chunks).chunks.missing([chunk(number).hash])


def chunk(number: int) -> Chunk:
    data = b"%d" % number
    return Chunk(hash=blake3(data).hexdigest(), data=data)


def test_the_data_of_a_site_that_is_never_idle_is_bounded(tmp_path: Path) -> None:
    world = World(tmp_path)
    records: list[BatchAttemptRecord] = []
    for day in range(90):
        world.time = FAR + day * DAY
        records.append(world.attempt(day))
        world.upkeep.turn(records[-2:])  # there is always an attempt that has not ended
        assert all(world.has(one, day - 1 + at) for at, one in enumerate(records[-2:]) if day)
    folders = {name.split("/")[1] for page in world.bucket.names("data") for name in page}
    assert len(folders) <= 2
    assert sum(len(page) for page in world.bucket.names("data")) <= 2 * 14


def test_the_data_of_a_long_attempt_stays(tmp_path: Path) -> None:
    world = World(tmp_path)
    long, other = world.attempt(1), world.attempt(2)
    world.time += 3 * KEEP
    later = world.attempt(3)
    world.upkeep.sweep([long, later])
    assert world.has(long, 1)
    assert world.has(later, 3)
    assert world.bucket.has(manifest_object("a-1"))
    assert not world.bucket.has(manifest_object("a-2"))  # its attempt ended while the bucket did not answer
    assert other.chunks == long.chunks
    world.upkeep.sweep([later])
    assert not world.has(long, 1)
    assert world.has(later, 3)


def test_chunks_of_earlier_versions_are_deleted_when_no_attempt_uses_them(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.exchange.chunks.send([chunk(1)])
    old = replace(world.attempt(2), chunks="")
    world.upkeep.sweep([old])
    assert not world.exchange.chunks.missing([chunk(1).hash])
    world.upkeep.sweep([world.attempt(3)])
    assert world.exchange.chunks.missing([chunk(1).hash])


@pytest.fixture
def unknown(tmp_path: Path) -> World:
    """A site with a job that an earlier copy of the home has submitted, and one of another home."""
    world = World(tmp_path)
    for id, name in (("job-1", "gm-0a1b2c3d-p-1-one-1"), ("job-2", "gm-ffffffff-p-1-one-1")):
        world.service.jobs[id] = BatchJob(id=id, phase=BatchPhase.RUNNING, status="RUNNING")
        world.service.names[name] = id
    return world


def test_a_job_that_only_an_earlier_copy_of_the_home_knows_is_shown(unknown: World) -> None:
    unknown.upkeep.look()
    assert not unknown.upkeep.problems  # the job of an attempt that has just ended may be listed late
    unknown.upkeep.look()
    [(id, text)] = unknown.upkeep.problems.items()
    assert id == "job-1"
    assert "does not know job gm-0a1b2c3d-p-1-one-1 (RUNNING)" in text
    assert text.endswith("To end it: end job-1")
    assert not unknown.service.cancelled
    unknown.service.error = UnavailableError("no answer")
    unknown.upkeep.look()
    assert unknown.upkeep.problems
    unknown.service.error = None
    unknown.service.end("job-1")
    unknown.upkeep.look()
    assert not unknown.upkeep.problems


def test_a_job_of_an_attempt_is_not_unknown(unknown: World) -> None:
    unknown.known = {"gm-0a1b2c3d-p-1-one-1"}
    unknown.upkeep.turn([])
    unknown.time += 300.0
    unknown.upkeep.turn([])
    assert not unknown.upkeep.problems
