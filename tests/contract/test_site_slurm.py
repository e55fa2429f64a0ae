"""The Slurm site passes the suite, on a real Slurm: over files in a shared folder, and over TLS."""

import pytest
from tests.contract.test_sites import LocalHarness
from tests.kit.slurm import HOW_TO_GET_IT, is_installed, slurm_cluster

from gridmill.domain.site import Site, SiteKind
from gridmill.sites.slurm.site import make
from gridmill.testing.site_suite import SiteSuite

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not is_installed(), reason=HOW_TO_GET_IT)]


@pytest.fixture(scope="module")
def cluster():
    with slurm_cluster() as it:
        yield it


class SlurmHarness(LocalHarness):
    """Nodes are on this machine, so pods and their jobs are its processes."""

    def __init__(self, home, settings):
        super().__init__(home)
        self.described = Site(name="lab", kind=SiteKind.SLURM, settings=settings)
        self.open()

    def open(self):
        self.site = make(self.grid.settings, self.described, self.grid.control)

    def reopen(self):
        self.site.close()
        self.open()

    def order(self, pod_id):
        return self.grid.pod_order(pod_id, link=self.site.link(), home=self.site.pod_home(pod_id))

    def folder(self, pod_id):
        (mark,) = (self.grid.home / "slurm").glob("lab.mark")
        return self.grid.home / "storage-slurm" / mark.read_text() / "pods" / pod_id

    def close(self):
        pods = [path.name for path in self.folder("").glob("*")]
        self.site.tear_down(pods)
        self.site.close()
        self.grid.close()


@pytest.fixture
def harness(link, tmp_path, cluster, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    harness = SlurmHarness(tmp_path, {"link": link, "control": "localhost"})
    yield harness
    harness.close()
    cluster.wait(lambda: not cluster.jobs())


@pytest.mark.parametrize("link", ["spool"])
class TestSlurm(SiteSuite):
    """All of it."""


@pytest.mark.parametrize("link", ["tls"])
class TestSlurmOverTls:
    """What pods say and hear there."""

    test_a_pod_runs = SiteSuite.test_a_pod_runs_from_the_moment_it_was_brought_up
    test_bringing_up_again = SiteSuite.test_bringing_up_again_starts_nothing
    test_what_is_torn_down = SiteSuite.test_what_is_torn_down_is_gone_with_its_jobs
    test_another_control_node = SiteSuite.test_another_control_node_finds_the_pods
