"""The Slurm site passes the suite, on a real Slurm: over files in a shared folder, and over TLS."""

import pytest
from tests.contract.test_sites import LocalHarness
from tests.slurm import HOW_TO_GET_IT, is_installed, slurm_cluster

from gridmill.model.site import Site, SiteKind
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


class TestSlurm(SiteSuite):
    @pytest.fixture(params=["spool", "tls"])
    def harness(self, request, tmp_path, cluster, monkeypatch):
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        harness = SlurmHarness(tmp_path, {"link": request.param, "control": "localhost"})
        yield harness
        harness.close()
        cluster.wait(lambda: not cluster.jobs())
