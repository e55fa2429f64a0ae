"""Carrying by a bucket of a real S3 server, to a real controller."""

import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Lock
from uuid import uuid4

import pytest

from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.route import Staging
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.states import AttemptState
from gridmill.errors import UnavailableError
from gridmill.farm.join import invite
from gridmill.sites.farm import staging as carrying
from gridmill.sites.farm.carrier_choice import BucketEndpoints
from gridmill.sites.farm.client import member
from gridmill.sites.farm.credentials import keeping
from gridmill.sites.farm.join import become_tenant
from gridmill.sites.farm.staging import HomeAttemptData
from gridmill.transfer.bucket import BucketClient
from tests.e2e.conftest import PATIENCE_SECONDS, eventually
from tests.kit.farms import farm, open_folder
from tests.kit.faulty_proxy import faulty_proxy
from tests.kit.little_bucket import moment
from tests.kit.objectstore import HOW_TO_GET_IT, KEYS, make_bucket, object_store
from tests.unit.sites.farm.test_cluster_carrying import URI, ended, order, outcome
from tests.unit.transfer.test_staging_chunks import contents
from tests.unit.transfer.test_staging_manifest import tree

pytestmark = pytest.mark.e2e
SPAWN = multiprocessing.get_context("spawn")
FILES = {f"f{at}": bytes([at]) * 1000 for at in range(200)} | {"big": bytes(range(250)) * 80_000}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with object_store() as endpoint:
        if endpoint is None:
            pytest.skip(HOW_TO_GET_IT)
        yield endpoint


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (KEYS | {"AWS_SECRET_ACCESS_KEY": "T0PSECRET"}).items():
        monkeypatch.setenv(name, value)


class Home:
    """A home that has joined a farm, which is asked by its API alone."""

    def __init__(self, folder: Path, endpoint: str, bucket: str) -> None:
        self.folder, self.name = folder, bucket
        self.controller = member(keeping(folder, "far"))
        self.there = Path(self.controller.status().root)
        settings = {"export": f"s3://{bucket}/some/prefix", "endpoint": endpoint}
        settings |= {"shared": f"s3://{bucket}/shared", "keep": "10h"}
        self.site = Site(name="far", kind=SiteKind.CLUSTER, settings=settings)
        self.carriers = BucketEndpoints(self.controller, self.site, "me", folder / "clusters/far")
        notes = folder / "clusters/far/carried"
        self.carrying = HomeAttemptData(
            self.controller, folder / "root", folder / "bundles", notes, carriers=self.carriers
        )
        self.bucket = BucketClient(f"s3://{bucket}", {"endpoint": endpoint})

    def median_remaining(self) -> list[str]:
        return list(self.bucket.older(moment(-3600)))


@pytest.fixture
def home(tmp_path: Path, server: str) -> Iterator[Home]:
    with at_home(tmp_path, server) as made:
        yield made


@contextmanager
def at_home(tmp_path: Path, endpoint: str, bucket: str = "") -> Iterator[Home]:
    """With a bucket of its own, or one that is there."""
    with open_folder() as folder, farm(folder / "farm") as running:
        line = f"{running.farm.authority.fingerprint}:{invite(running.farm.records, running.farm.now())}"
        become_tenant(tmp_path, "far", running.server.address.partition("//")[2], line)
        if not bucket:
            bucket = f"exports-{uuid4().hex}"
            make_bucket(endpoint, bucket)
        made = Home(tmp_path, endpoint, bucket)
        yield made
        made.controller.close()


def test_a_jobs_data_goes_by_a_bucket_and_what_it_made_comes_by_it(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    tree(home.folder / "root/parts/a", FILES)
    home.carrying.note(wanted())
    home.carrying.upload_inputs(wanted())
    assert contents(home.there / "parts/a") == FILES
    tree(home.there / URI, FILES | {"more": b"more"})
    assert outcome(home.carrying.download_results(ended())).state == AttemptState.SUCCEEDED
    assert contents(home.folder / "root" / URI) == FILES | {"more": b"more"}
    assert home.median_remaining() == []
    written = b"".join(path.read_bytes() for path in home.there.parents[2].rglob("*") if path.is_file())
    for secret in ("X-Amz-Signature", "T0PSECRET", "some/prefix"):
        assert secret not in caplog.text
        assert secret.encode() not in written


def carry(folder: Path, endpoint: str, bucket: str, way: str) -> None:
    """What a home does that is to be killed."""
    home = Home(folder, endpoint, bucket)
    if way == "from":
        home.carrying.download_results(ended())
    else:
        home.carrying.upload_inputs(wanted())


def wanted(staging: Staging = Staging.EXPORT, uri: str = "parts/a") -> AttemptOrder:
    return order(parts=(uri,), staging=staging)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("way", "method", "by", "fault"),
    [
        ("to", "GET", "farm", ""),  # it was put, and is being taken
        ("to", "DELETE", "home", "cut"),  # it was taken
        ("from", "PUT", "farm", ""),  # the farm gives it
        ("from", "GET", "home", "cut"),  # the farm gave it
    ],
)
def test_what_a_killed_home_left_in_the_bucket_goes_as_it_is_back(
    tmp_path: Path, server: str, way: str, method: str, by: str, fault: str
) -> None:
    with faulty_proxy(server) as proxy, at_home(tmp_path, proxy.endpoint) as home:
        tree(tmp_path / "root/parts/a", FILES)
        tree(home.there / URI, FILES)
        home.carrying.note(wanted())
        once, started = Lock(), Queue[int]()
        killed = SPAWN.Process(target=carry, args=(tmp_path, proxy.endpoint, home.name, way))

        def kill(asked: str, path: str) -> str:
            if (asked, "farm" if "X-Amz-Signature" in path else "home") != (method, by):
                return ""
            if once.acquire(blocking=False):  # it is not waited for yet, so its number is still its own
                os.kill(started.get(timeout=PATIENCE_SECONDS), signal.SIGKILL)
            return fault

        home.bucket.put("some/prefix/me/other/kept", b"x")
        proxy.fault = kill
        killed.start()
        assert killed.pid is not None
        started.put(killed.pid)
        killed.join()
        proxy.fault = lambda method, path: ""
        assert killed.exitcode == -signal.SIGKILL
        assert eventually(lambda: len(home.median_remaining()) > 1)

        def swept() -> bool:
            home.carriers.sweeper.sweep_unused()
            return home.median_remaining() == ["some/prefix/me/other/kept"]

        assert eventually(swept)
        home.carrying.upload_inputs(wanted())
        assert outcome(home.carrying.download_results(ended())).state == AttemptState.SUCCEEDED
        assert contents(home.there / "parts/a") == contents(tmp_path / "root" / URI) == FILES
        assert eventually(swept)


def test_what_is_shared_is_kept_in_the_bucket_as_long_as_it_is_said(home: Home) -> None:
    tree(home.folder / "root/parts/a", FILES)
    home.carrying.note(wanted(Staging.SHARED))
    home.carrying.upload_inputs(wanted(Staging.SHARED))
    assert contents(home.there / "parts/a") == FILES
    tree(home.there / URI, {"made": b"made"})
    assert outcome(home.carrying.download_results(ended())).state == AttemptState.SUCCEEDED
    assert contents(home.folder / "root" / URI) == {"made": b"made"}
    kept = home.median_remaining()
    assert {name.rpartition("/")[0].partition("/ch")[0] for name in kept} == {
        "shared/kept/me",
        "shared/kept/me/index",
        "shared/kept/me/packs",
    }
    home.carriers.sweeper.sweep_unused()
    home.carriers.sweeper.sweep_old(moment(-9 * 3600))
    assert home.median_remaining() == kept
    home.site.settings["shared"] = f"s3://{home.name}/another"  # type: ignore[index]
    again = BucketEndpoints(home.controller, home.site, "me", home.folder / "clusters/far").sweeper
    again.sweep_old(moment(-11 * 3600))
    assert home.median_remaining() == []


def test_a_site_that_is_added_again_before_its_bucket_was_cleared_has_what_is_kept(home: Home) -> None:
    tree(home.folder / "root/parts/a", FILES)
    home.carrying.note(wanted(Staging.SHARED))
    home.carrying.upload_inputs(wanted(Staging.SHARED))
    kept = home.median_remaining()
    again = BucketEndpoints(home.controller, home.site, "me", home.folder / "clusters/far")
    again.endpoint(Staging.SHARED, {})
    home.carriers.clear()
    assert home.median_remaining() == kept
    again.close()
    home.carriers.clear()
    assert home.median_remaining() == []


def test_a_bucket_that_is_not_there_is_told_and_waited_for(home: Home, server: str) -> None:
    tree(home.folder / "root/parts/a", {"a": b"1"})
    home.site.settings["export"] = "s3://nowhere"  # type: ignore[index]
    with pytest.raises(UnavailableError, match="this bucket does not exist"):
        home.carrying.upload_inputs(wanted())


def test_a_bucket_that_fails_now_and_then_costs_only_time(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrying, "_PATIENCE_SECONDS", 300.0)
    with faulty_proxy(server) as proxy, at_home(tmp_path, proxy.endpoint) as home:
        faults = {
            method: iter(words)
            for method, words in (("PUT", ["503", "cut"]), ("GET", ["500", "short", "cut"]))
        }
        proxy.fault = lambda method, path: next(faults.get(method, iter(())), "")
        for staging, uri in ((Staging.EXPORT, "parts/a"), (Staging.SHARED, "parts/b")):
            tree(home.folder / "root" / uri, FILES | {"own": uri.encode()})
            home.carrying.note(wanted(staging, uri))
            home.carrying.upload_inputs(wanted(staging, uri))
            assert contents(home.there / uri) == FILES | {"own": uri.encode()}
        tree(home.there / URI, {"made": b"made"})
        assert outcome(home.carrying.download_results(ended())).state == AttemptState.SUCCEEDED
        assert contents(home.folder / "root" / URI) == {"made": b"made"}
        assert proxy.faults == 5
        assert [name for name in home.median_remaining() if not name.startswith("shared/kept/")] == []
        home.carriers.clear()
        assert home.median_remaining() == []


def test_a_bucket_that_does_not_answer_is_told_and_waited_for(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrying, "_PATIENCE_SECONDS", -1.0)
    with faulty_proxy(server) as proxy, at_home(tmp_path, proxy.endpoint) as home:
        tree(home.folder / "root/parts/a", {"a": b"1"})
        home.carrying.note(wanted())
        by_farm = "X-Amz-Signature"
        proxy.fault = lambda method, path: "503" if by_farm in path else ""
        with pytest.raises(UnavailableError, match="the bucket answers 503 SlowDown") as told:
            home.carrying.upload_inputs(wanted())
        assert by_farm not in str(told.value)
        proxy.fault = lambda method, path: "403" if by_farm in path else ""
        with pytest.raises(UnavailableError, match="the bucket answers 403"):
            home.carrying.upload_inputs(wanted())
        proxy.fault = lambda method, path: "503"
        with pytest.raises(UnavailableError, match="s3://exports"):
            home.carrying.upload_inputs(wanted())
        proxy.fault = lambda method, path: ""
        home.carrying.upload_inputs(wanted())
        assert contents(home.there / "parts/a") == {"a": b"1"}
