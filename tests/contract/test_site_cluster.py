"""The cluster site passes the suite, against a real farm over TLS; and what its relay adds to it."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.contract.test_sites import LocalHarness
from tests.kit.control_end import Grid
from tests.kit.farms import farm

from gridmill.domain.site import Site, SiteKind
from gridmill.farm.join import invite
from gridmill.farm.main import RunningFarm
from gridmill.pod import processes
from gridmill.sites.farm.join import become_tenant
from gridmill.sites.farm.site import make
from gridmill.testing.site_suite import SiteSuite


class FarmHarness(LocalHarness):
    """The same pods, brought up by a farm, which a site of this home dials."""

    def __init__(self, home: Path, running: RunningFarm) -> None:
        self.grid = Grid(home)
        self.grid.site.close()
        self.running = running
        self.pids: dict[str, set[str]] = {}
        at = running.server.address.rpartition("//")[2]
        secret = invite(running.farm.records, running.farm.now())
        become_tenant(home, "far", at, f"{running.farm.authority.fingerprint}:{secret}")
        self.declared = Site(name="far", kind=SiteKind.CLUSTER, address=at)
        self.site = self.grid.site = self._opened()

    def _opened(self):
        return make(self.grid.settings, self.declared, self.grid.control)

    def order(self, pod_id):
        return self.grid.pod_order(pod_id, deployment_id=pod_id.rpartition(".")[0])

    def greetings(self, pod_id):
        """By how many processes: whenever its home dials anew a pod greets again."""
        if super().greetings(pod_id):
            self.pids.setdefault(pod_id, set()).add((self.folder(pod_id) / "pid").read_text())
        return len(self.pids.get(pod_id, ()))

    def folder(self, pod_id):
        [one] = self.running.farm.sandboxes.values()
        return one.settings.home / "pods" / pod_id

    def kill(self, pod_id):
        pid, start = map(int, (self.folder(pod_id) / "pid").read_text().split())
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.wait(lambda: not processes.is_alive(pid, start), "the pod is dead")

    def reopen(self):
        self.site.close()
        self.site = self.grid.site = self._opened()


@pytest.mark.e2e
class TestCluster(SiteSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[FarmHarness]:
        with farm(tmp_path / "farm") as running:
            harness = FarmHarness(tmp_path / "home", running)
            yield harness
            pods = [path.name for path in harness.folder("").glob("*")]
            harness.site.tear_down(pods)
            harness.site.close()
            harness.grid.control.close()
