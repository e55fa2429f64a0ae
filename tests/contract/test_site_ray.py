"""The Ray site passes the suite, on a real cluster of one node."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.test_sites import LocalHarness
from tests.kit.ray import ENVIRONMENT, needs_ray, ray_cluster

from gridmill.domain.site import Site, SiteKind
from gridmill.errors import InputError, UnavailableError
from gridmill.pod import processes
from gridmill.ports.site import PodStatus
from gridmill.sites.ray.site import RaySite, make
from gridmill.testing.site_suite import SiteSuite

pytestmark = [pytest.mark.e2e, needs_ray]


class NoDoors:
    """The pods of these tests are on this machine and dial a Unix socket."""

    def tls(self, host: str, port: int = 0) -> str:
        return f"tls:{host}:{port}"

    def spool(self, folder: Path) -> str:
        return f"spool:{folder}"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="gmr"))
    with ray_cluster(folder) as address:
        yield address
    shutil.rmtree(folder, ignore_errors=True)


class RayHarness(LocalHarness):
    """The local harness with Ray between: pods lie in the same home and dial the same socket."""

    deadline_seconds = 120.0  # a keeper is a new Python process with Ray in it

    def __init__(self, home: Path, address: str) -> None:
        super().__init__(home)
        self._link = self.site.link()
        site = Site(
            name="lab", kind=SiteKind.RAY, address=address, settings={"home": str(home), "patience": "5s"}
        )
        self._open = lambda: make(self.grid.settings, site, NoDoors())
        self.site = self.grid.site = self._open()

    def order(self, pod_id):
        return replace(super().order(pod_id), link=self._link, node=self.site.nodes()[0].name)

    def reopen(self):
        self.site.close()
        self.site = self.grid.site = self._open()


@pytest.fixture
def harness(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayHarness]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    harness = RayHarness(tmp_path, address)
    yield harness
    harness.grid.close()


@pytest.mark.long
class TestRay(SiteSuite):
    """All of it."""


def pid_of(harness: RayHarness, pod_id: str) -> tuple[int, int]:
    first, second = (harness.grid.home / "pods" / pod_id / "pid").read_text().split()
    return int(first), int(second)


def test_a_pod_ends_with_its_keeper(harness: RayHarness) -> None:
    """Ray ends an actor, for whatever reason: nothing of the pod goes on."""
    harness.up("r-1.0")
    job_lives = harness.run_job("r-1.0")
    pid, start = pid_of(harness, "r-1.0")
    os.kill(processes.stat(pid).parent, signal.SIGKILL)
    harness.wait(lambda: harness.sight("r-1.0") == PodStatus.GONE, "it is gone")
    assert not processes.is_alive(pid, start)
    assert not job_lives()


def test_nothing_of_a_pod_stays_that_was_torn_down(harness: RayHarness) -> None:
    harness.up("r-1.0")
    folder = harness.grid.home / "pods" / "r-1.0"
    assert folder.is_dir()
    harness.site.tear_down(["r-1.0"])
    assert not folder.exists()
    assert harness.sight("r-1.0") == PodStatus.GONE


def test_a_bridge_that_dies_is_started_again(harness: RayHarness) -> None:
    harness.up("r-1.0")
    site = harness.site
    assert isinstance(site, RaySite)
    site._bridge.kill()
    site._bridge.wait()
    assert harness.sight("r-1.0") == PodStatus.RUNNING


def test_pods_ray_has_no_room_for_wait_and_can_be_given_up(harness: RayHarness) -> None:
    order = harness.order("r-1.0")
    harness.site.bring_up([replace(order, capacity=replace(order.capacity, cpus=1000.0))])
    harness.wait(lambda: harness.sight("r-1.0") == PodStatus.QUEUED, "the pod waits for Ray")
    assert harness.greetings("r-1.0") == 0
    harness.site.tear_down(["r-1.0"])
    assert harness.sight("r-1.0") == PodStatus.GONE


def test_a_pod_whose_node_has_left_or_sees_no_root_is_gone_and_says_why(harness: RayHarness) -> None:
    order = harness.order("r-1.0")
    harness.site.bring_up([replace(order, node="elsewhere")])
    seen = harness.site.observe(["r-1.0"])["r-1.0"]
    assert (seen.status, seen.message) == (PodStatus.GONE, "node elsewhere has left the cluster")
    mark = Path(harness.site._opening.root_mark)
    mark.unlink()
    harness.site.bring_up([replace(order, pod_id="r-2.0", deployment_id="r-2")])
    harness.wait(lambda: harness.sight("r-2.0") == PodStatus.GONE, "it is refused")
    mark.touch()


@pytest.mark.parametrize(
    ("address", "settings", "error", "said"),
    [
        (None, {}, InputError, "has no address"),
        ("127.0.0.1:1", {"tokenfile": "x"}, InputError, "no setting 'tokenfile'"),
        ("127.0.0.1:1", {}, UnavailableError, "no Ray cluster answers"),
    ],
)
def test_what_is_wrong_with_a_site_is_said(
    tmp_path: Path, address: str | None, settings: dict[str, str], error: type[Exception], said: str
) -> None:
    site = Site(name="lab", kind=SiteKind.RAY, address=address, settings=settings)
    grid = LocalHarness(tmp_path).grid
    with pytest.raises(error, match=said):
        make(grid.settings, site, NoDoors()).nodes()
    grid.close()
