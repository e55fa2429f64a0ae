"""The result of an attempt whose machine ended while the home was away. The bucket is on a real S3 server,
and the farm of the machine is a real controller."""

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from gridmill.domain.gang import Gang, GangMember
from gridmill.domain.pod_protocol import Events, EventType, PodEvent
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.states import AttemptState
from gridmill.domain.version_manifest import contents_uri
from gridmill.errors import DataError, UnavailableError
from gridmill.farm import result_export
from gridmill.farm.files import TenantFiles
from gridmill.farm.join import invite
from gridmill.farm.main import RunningFarm
from gridmill.farm.result_export import ENDING, EXPORTABLE, EXPORTING, ResultExporter, packed
from gridmill.sites.attempt_inputs import farm_checkpoint_uri
from gridmill.sites.farm.client import member
from gridmill.sites.farm.credentials import keeping
from gridmill.sites.farm.join import become_tenant
from gridmill.sites.farm.reaped_results import open_results
from gridmill.sites.farm.result_export import ExportTerms, MachineExports, ResultExports, open_bucket
from gridmill.sites.farm.staging import HomeAttemptData
from gridmill.transfer.bucket import BucketClient
from gridmill.transfer.chunk_manifest import scan
from gridmill.transfer.contents import read_contents
from gridmill.transfer.errors import TransferRefusedError
from tests.e2e.test_staging_bucket import credentials, server
from tests.kit.farms import farm, open_folder
from tests.kit.objectstore import make_bucket
from tests.unit.sites.farm.test_cluster_carrying import URI, ended, order, outcome
from tests.unit.transfer.test_staging_chunks import contents
from tests.unit.transfer.test_staging_manifest import tree

__all__ = ["credentials", "server"]
pytestmark = pytest.mark.e2e
FILES = {"model": os.urandom(9_000_000), "metrics/a.json": b"{}", "metrics/b.json": b"{}"}
POD = "burst-1.0"
CAP_SECONDS = 4 * 3600.0
WANTED = order()


Opener = Callable[[str, str, float], BucketClient]


@dataclass
class Journals:
    """The sandbox of the tenant, with the events that its pods journalled."""

    files: TenantFiles
    events: tuple[PodEvent, ...] = field(default=())

    def last_words(self, pod: str) -> tuple[PodEvent, ...]:
        return self.events if pod == POD else ()


class Grid:
    """A home, and the farm of one rented machine. `silent` are the seconds since the home was last heard."""

    def __init__(self, folder: Path, running: RunningFarm, endpoint: str, bucket: str) -> None:
        self.folder, self.running, self.now, self.silent = folder, running, 1e9, 0.0
        settings = {"export": f"s3://{bucket}/some/prefix", "endpoint": endpoint}
        self.site = Site(name="burst", kind=SiteKind.CLOUD, settings=settings)
        self.client = member(keeping(folder, "far"))
        self.exports = self.opened()
        until = self.now + CAP_SECONDS + 3600.0
        terms = ExportTerms(until=until, dead_man_seconds=900.0, owner="grid-1", lease="lease-3")
        self.machine = MachineExports(self.exports, self.client, terms)
        notes = folder / "clusters/far/carried"
        self.data = HomeAttemptData(
            self.client, folder / "root", folder / "bundles", notes, exports=self.machine
        )
        self.there = Path(self.client.status().root)
        [sandbox] = running.farm.sandboxes.values()
        self.journals = Journals(sandbox.files)
        self.exporter = ResultExporter(
            running.farm.exports,
            lambda _: self.silent,
            lambda _: self.journals,
            folder,
            patience_seconds=60.0,
        )
        self.ending = folder / ENDING
        self.options = {"endpoint": endpoint}
        self.bucket = BucketClient(f"s3://{bucket}", self.options)

    def opened(self, opener: Opener = open_bucket) -> ResultExports:
        """The exports, as a control node opens them."""
        folder = self.folder / "exports"
        return ResultExports(self.site, "me", self.folder / "root", folder, opener, lambda: self.now)

    def starts(self) -> None:
        self.data.note(WANTED, POD)
        self.data.upload_inputs(WANTED)

    def ends(self, state: AttemptState = AttemptState.SUCCEEDED) -> None:
        """The attempt ends on the machine."""
        tree(self.there / URI, FILES)
        self.journals.events = ended(state).events

    def leaves(self) -> bool:
        """The home is away for long enough; whether all results were exported."""
        self.silent = 120.0
        return self.exporter.tick()

    def objects(self) -> list[str]:
        """The objects, without the empty ones with which the machine checks the bucket."""
        names = (name for page in self.bucket.names("") for name in page)
        return sorted(name for name in names if self.bucket.get(name, 2**30))


@pytest.fixture
def grid(tmp_path: Path, server: str) -> Iterator[Grid]:
    with a_grid(tmp_path, server) as made:
        yield made


@contextmanager
def a_grid(tmp_path: Path, endpoint: str) -> Iterator[Grid]:
    with open_folder() as folder, farm(folder / "farm") as running:
        line = f"{running.farm.authority.fingerprint}:{invite(running.farm.records, running.farm.now())}"
        become_tenant(tmp_path, "far", running.server.address.partition("//")[2], line)
        running.exporter.close()
        bucket = f"exports-{uuid4().hex}"
        make_bucket(endpoint, bucket)
        made = Grid(tmp_path, running, endpoint, bucket)
        yield made
        made.data.close()
        made.client.close()


def test_a_result_outlasts_its_machine(grid: Grid, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    grid.starts()
    grid.ends()
    assert grid.exporter.tick()
    assert grid.objects() == []  # the home is in contact, and downloads the result itself
    assert grid.leaves()
    assert len(grid.objects()) == 2
    [event] = grid.opened().collect(POD)  # the next control node; the machine has ended
    assert outcome(Events(events=(event,))).state == AttemptState.SUCCEEDED
    root = grid.folder / "root"
    assert contents(root / URI) == FILES
    assert read_contents(root / contents_uri(URI)) is not None
    again = grid.opened()  # the control node was killed before it had committed the events
    assert again.collect(POD) == (event,)
    again.sweep()
    assert grid.objects() == []
    assert again.collect(POD) == (event,)
    grid.now += CAP_SECONDS + 3601.0
    again.sweep()
    assert again.collect(POD) == ()
    written = b"".join(path.read_bytes() for path in grid.folder.rglob("*") if path.is_file())
    written += b"".join(path.read_bytes() for path in grid.there.parents[2].rglob("*") if path.is_file())
    for secret in ("X-Amz-Signature", "T0PSECRET"):
        assert secret not in caplog.text
        assert secret.encode() not in written
    assert "urls" not in repr(grid.running.farm.exports.left())


def test_a_result_that_came_home_leaves_no_objects(grid: Grid) -> None:
    grid.starts()
    grid.ends()
    assert grid.leaves()
    assert grid.objects()
    [event] = grid.data.download_results(ended()).events  # the home is back before the machine ends
    grid.exports.sweep()
    assert grid.objects(), "the end is not committed yet"
    grid.data.confirm(event.attempt_id)
    grid.exports.sweep()
    assert grid.objects() == []
    assert grid.opened().collect(POD) == ()  # the result is not accepted a second time


@pytest.mark.parametrize("was_exported", [True, False])
def test_a_control_node_that_is_killed_before_the_commit_loses_no_end(grid: Grid, was_exported: bool) -> None:
    log = PodEvent(number=1, attempt_id=WANTED.attempt_id, token=WANTED.token, time=1.0, type=EventType.LOG)
    grid.starts()
    grid.ends()
    [end] = ended().events
    grid.journals.events = log, replace(end, number=2)
    if was_exported:
        assert grid.leaves()
    [committed] = grid.data.download_results(Events(events=grid.journals.events[1:])).events
    exports = grid.opened()  # the next control node; the machine has ended
    exports.sweep()
    *logs, again = exports.collect(POD)
    assert logs == ([log] if was_exported else [])
    assert (again.number, outcome(Events(events=(again,)))) == (2, outcome(Events(events=(committed,))))
    assert contents(grid.folder / "root" / URI) == FILES
    exports.settle_pod(POD)
    exports.sweep()
    assert grid.objects() == []


def test_a_failed_attempt_reports_its_end_without_files(grid: Grid) -> None:
    grid.starts()
    grid.ends(AttemptState.FAILED)
    assert grid.leaves()
    [event] = grid.opened().collect(POD)
    assert outcome(Events(events=(event,))).state == AttemptState.FAILED
    assert not (grid.folder / "root" / URI).exists()


def test_a_running_attempt_exports_nothing(grid: Grid) -> None:
    grid.starts()
    assert grid.leaves()
    assert grid.opened().collect(POD) == ()
    assert grid.objects() == []


def test_a_machine_that_is_about_to_end_uploads_results_after_a_few_seconds(grid: Grid) -> None:
    grid.starts()
    grid.ends()
    grid.silent = 15.0
    assert grid.exporter.tick()
    assert grid.objects() == []  # the home has time
    grid.ending.write_text("the provider ends the machine")
    grid.silent = 2.0
    assert grid.exporter.tick()
    assert grid.objects() == []  # the home is in contact, and takes the result
    grid.silent = 15.0
    assert grid.exporter.tick()
    assert len(grid.opened().collect(POD)) == 1


CHECKPOINT = "checkpoints/p/j"
"""The folder of the checkpoints in the home."""


def writes_checkpoint(grid: Grid, **files: bytes) -> None:
    """The running attempt writes a checkpoint on the machine."""
    folder = grid.there / farm_checkpoint_uri(order(checkpoint_uri=CHECKPOINT))
    shutil.rmtree(folder, ignore_errors=True)
    tree(folder, files)


def starts_with_checkpoints(grid: Grid) -> None:
    wanted = order(checkpoint_uri=CHECKPOINT)
    grid.data.note(wanted, POD)
    grid.data.upload_inputs(wanted)


def test_a_machine_that_is_about_to_end_uploads_the_newest_checkpoint(grid: Grid) -> None:
    starts_with_checkpoints(grid)
    writes_checkpoint(grid, step=b"1", weights=os.urandom(9_000_000))
    assert grid.leaves()
    assert grid.objects() == [], "the job runs on"
    grid.ending.write_text("the machine reaches its longest time")
    assert grid.leaves()
    assert grid.leaves()
    first = grid.objects()
    assert len(first) == 2, "each checkpoint is uploaded once"
    writes_checkpoint(grid, step=b"2", weights=os.urandom(9_000_000))
    assert grid.leaves()
    assert grid.objects() > first, "the first one is still complete"
    home = grid.folder / "root" / CHECKPOINT
    assert grid.opened().collect(POD) == ()  # the attempt is lost, and the next one continues
    assert contents(home)["step"] == b"2"
    exports = grid.opened()
    assert exports.collect(POD) == ()
    exports.sweep()
    assert grid.objects() == []


def test_an_older_checkpoint_in_the_bucket_does_not_replace_a_newer_one_at_home(grid: Grid) -> None:
    starts_with_checkpoints(grid)
    writes_checkpoint(grid, step=b"1")
    grid.ending.write_text("the provider ends the machine")
    assert grid.leaves()
    home = tree(grid.folder / "root" / CHECKPOINT, {"step": b"7"})
    later = time.time() + 10.0
    os.utime(home, (later, later))
    assert grid.opened().collect(POD) == ()
    assert contents(home) == {"step": b"7"}


def test_a_damaged_checkpoint_is_replaced_by_the_one_before_it(grid: Grid) -> None:
    starts_with_checkpoints(grid)
    grid.ending.write_text("the provider ends the machine")
    for step in (b"1", b"2"):
        writes_checkpoint(grid, step=step)
        assert grid.leaves()
    [part] = [name for name in grid.objects() if "checkpoint-1" in name and not name.endswith("index")]
    grid.bucket.put(part, b"?")
    assert grid.opened().collect(POD) == ()
    assert contents(grid.folder / "root" / CHECKPOINT) == {"step": b"1"}


def test_each_rank_of_a_gang_reports_its_end(grid: Grid) -> None:
    member = GangMember(rank=0, host="m", address="10.0.0.1", port=20000)
    gang = Gang(id="p-1.j.1", rank=1, members=(member, replace(member, rank=1, port=20001)))
    wanted = replace(WANTED, gang=gang)
    grid.data.note(wanted, POD)
    grid.data.upload_inputs(wanted)
    grid.ends()
    assert grid.leaves()
    assert len(grid.objects()) == 1, "only rank 0 has files"
    [event] = grid.opened().collect(POD)
    assert outcome(Events(events=(event,))).state == AttemptState.SUCCEEDED


def test_the_reaper_finds_the_objects_of_a_lease(grid: Grid) -> None:
    grid.starts()
    grid.ends()
    assert grid.leaves()
    found = open_results(f"s3://{grid.bucket.url.partition('://')[2]}/some/prefix", grid.options)
    [one] = found.leftovers()
    assert (one.kind, one.owner, one.lease) == ("results", "grid-1", "lease-3")
    found.delete(one)
    found.delete(one)
    assert found.leftovers() == ()
    assert grid.objects() == []


def test_the_key_of_the_bucket_is_a_secret(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    grid.starts()
    grid.ends()
    assert grid.leaves()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(TransferRefusedError, match="no credentials"):
        grid.opened().collect(POD)
    key = {"access_key_id": "test", "secret_access_key": "${secret:bucket-key}"}
    opener = partial(open_bucket, credentials=key, resolve={"bucket-key": "T0PSECRET"}.__getitem__)
    assert len(grid.opened(opener).collect(POD)) == 1


def test_a_result_whose_upload_was_cut_is_made_again(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(url: str, content: bytes) -> None:
        raise UnavailableError("the machine ends")

    grid.starts()
    grid.ends()
    monkeypatch.setattr(grid.journals.files, "put_object", cut)
    assert not grid.leaves()
    assert len(grid.objects()) == 1
    exports = grid.opened()
    assert exports.collect(POD) == ()
    exports.sweep()
    assert grid.objects() == []


def test_an_upload_that_failed_is_tried_again(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(url: str, content: bytes) -> None:
        raise UnavailableError("cut")

    grid.starts()
    grid.ends()
    with monkeypatch.context() as patch:
        patch.setattr(grid.journals.files, "put_object", cut)
        assert not grid.leaves()
    assert grid.leaves()
    assert len(grid.opened().collect(POD)) == 1


def test_only_an_upload_to_a_bucket_that_takes_results_keeps_the_machine(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    @contextmanager
    def touching(path: Path, over: object) -> Iterator[None]:
        made.append(path)
        yield

    def refuse(url: str, content: bytes) -> None:
        raise UnavailableError("no way to the bucket")

    monkeypatch.setattr(result_export, "touching", touching)
    grid.starts()
    with monkeypatch.context() as patch:
        patch.setattr(grid.journals.files, "put_object", refuse)
        assert not grid.leaves()  # the job runs
        assert not (grid.folder / EXPORTABLE).exists()
        grid.ends()
        assert not grid.leaves()
        grid.journals.events = ()
    assert grid.leaves()
    assert (grid.folder / EXPORTABLE).read_text() == f"{WANTED.attempt_id}\n"
    assert made == []
    grid.ends()
    assert grid.leaves()
    assert made == [grid.folder / EXPORTING]
    assert grid.exporter.tick()
    assert (grid.folder / EXPORTABLE).read_text() == ""


def test_a_bucket_that_fails_for_long_does_not_keep_the_machine(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, marks = [0.0], []

    def fail(url: str, content: bytes) -> None:
        marks.append((grid.folder / EXPORTING).exists())
        raise UnavailableError("cut")

    grid.exporter = ResultExporter(
        grid.running.farm.exports,
        lambda _: grid.silent,
        lambda _: grid.journals,
        grid.folder,
        lambda: seconds[0],
        60.0,
    )
    grid.starts()
    grid.ends(AttemptState.FAILED)
    assert grid.exporter.tick()
    with monkeypatch.context() as patch:
        patch.setattr(grid.journals.files, "put_object", fail)
        for now in (0.0, 300.0, 601.0, 602.0):
            seconds[0] = now
            assert not grid.leaves()
    assert marks[2:] == [False, False]  # before, the thread that makes the mark may be late
    assert grid.leaves()
    assert len(grid.opened().collect(POD)) == 1


def test_a_damaged_result_is_not_accepted(grid: Grid) -> None:
    grid.starts()
    grid.ends()
    assert grid.leaves()
    [part] = [name for name in grid.objects() if not name.endswith("index")]
    content = grid.bucket.get(part, 2**30)
    grid.bucket.put(part, b"x" + content[1:])
    exports = grid.opened()
    with pytest.raises(DataError):
        exports.collect(POD)
    grid.now += 3600.0
    assert exports.collect(POD) == ()  # the attempt counts as lost
    assert not (grid.folder / "root" / URI).exists()


def test_a_bucket_that_does_not_answer_is_asked_again(grid: Grid) -> None:
    grid.starts()
    grid.ends()
    assert grid.leaves()
    away = replace(grid.site, settings={**grid.site.settings})
    exports = ResultExports(
        away,
        "me",
        grid.folder / "root",
        grid.folder / "exports",
        lambda url, endpoint, seconds: _refuse(),
        lambda: grid.now,
    )
    with pytest.raises(UnavailableError):
        exports.collect(POD)
    assert len(grid.opened().collect(POD)) == 1


def _refuse() -> BucketClient:
    raise UnavailableError("the bucket's server does not answer")


def test_a_machine_whose_server_restarted_gets_new_urls(grid: Grid) -> None:
    grid.starts()
    grid.running.farm.exports.drop("home", WANTED.attempt_id)
    for grant in grid.running.farm.exports.left():
        grid.running.farm.exports.drop(grant.tenant, grant.attempt_id)
    grid.machine.renew([POD])
    assert [one.attempt_id for one in grid.running.farm.exports.left()] == [WANTED.attempt_id]


def test_a_server_that_restarts_after_the_export_does_not_damage_the_result(grid: Grid) -> None:
    grid.starts()
    [grant] = grid.running.farm.exports.left()
    grid.ends()
    assert grid.leaves()
    grid.running.farm.exports.drop(grant.tenant, grant.attempt_id)  # the restart
    grid.silent = 0.0
    grid.machine.renew([POD])
    assert grid.exporter.tick()
    assert len(grid.opened().collect(POD)) == 1  # the machine ends before the home has the result
    assert contents(grid.folder / "root" / URI) == FILES


def test_a_result_is_exported_although_the_disk_is_full(grid: Grid) -> None:
    (grid.folder / f"{EXPORTABLE}.new").mkdir()  # so that the file cannot be written
    grid.starts()
    grid.ends()
    assert grid.leaves()
    assert len(grid.opened().collect(POD)) == 1


def test_a_removed_site_leaves_no_objects(grid: Grid) -> None:
    grid.starts()
    grid.ends()
    assert grid.leaves()
    grid.opened().clear()
    assert grid.objects() == []
    assert list((grid.folder / "exports/records").iterdir()) == []


def test_a_large_result_is_packed_into_a_bounded_number_of_objects(tmp_path: Path) -> None:
    manifest = scan(tree(tmp_path / "many", {f"f{at}": os.urandom(2000) for at in range(50)}))
    parts = packed(manifest, 3)
    assert len(parts) == 1
    assert sum(len(part) for part in parts) == 50
    assert packed(None, 3) == ()
