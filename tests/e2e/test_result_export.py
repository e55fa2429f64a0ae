"""The result of an attempt whose machine ended while the home was away. The bucket is on a real S3 server,
and the farm of the machine is a real controller."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import pytest

from gridmill.domain.pod_protocol import Events, PodEvent
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.states import AttemptState
from gridmill.domain.version_manifest import contents_uri
from gridmill.errors import DataError, UnavailableError
from gridmill.farm.files import TenantFiles
from gridmill.farm.join import invite
from gridmill.farm.main import RunningFarm
from gridmill.farm.result_export import ResultExporter, packed
from gridmill.sites.farm.client import member
from gridmill.sites.farm.credentials import keeping
from gridmill.sites.farm.join import become_tenant
from gridmill.sites.farm.result_export import MachineExports, ResultExports, open_bucket
from gridmill.sites.farm.staging import HomeAttemptData
from gridmill.transfer.bucket import BucketClient
from gridmill.transfer.chunk_manifest import scan
from gridmill.transfer.contents import read_contents
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
        self.machine = MachineExports(self.exports, self.client, until, 900.0)
        notes = folder / "clusters/far/carried"
        self.data = HomeAttemptData(
            self.client, folder / "root", folder / "bundles", notes, exports=self.machine
        )
        self.there = Path(self.client.status().root)
        [sandbox] = running.farm.sandboxes.values()
        self.journals = Journals(sandbox.files)
        self.exporter = ResultExporter(
            running.farm.exports, lambda _: self.silent, lambda _: self.journals, folder
        )
        self.bucket = BucketClient(f"s3://{bucket}", {"endpoint": endpoint})

    def opened(self) -> ResultExports:
        """The exports, as a control node opens them."""
        folder = self.folder / "exports"
        return ResultExports(self.site, "me", self.folder / "root", folder, open_bucket, lambda: self.now)

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
    grid.data.download_results(ended())  # the home is back before the machine ends
    grid.exports.sweep()
    assert grid.objects() == []
    assert grid.opened().collect(POD) == ()  # the result is not accepted a second time


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
