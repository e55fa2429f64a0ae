"""A batch site passes the suite of sites. Its service starts the containers as processes of this machine."""

import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.contract.test_sites import LocalHarness
from tests.kit.batch_processes import ProcessBatch

from gridmill.domain.site import Site, SiteKind
from gridmill.ports.site import PodStatus
from gridmill.sites.batch.exchange import open_exchange
from gridmill.sites.batch.settings import read
from gridmill.sites.batch.site import BatchSite
from gridmill.testing.site_suite import SiteSuite

pytestmark = pytest.mark.e2e


class BatchHarness(LocalHarness):
    """The bucket is a folder of this machine."""

    pods_are_processes = False

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.service = ProcessBatch(uuid4().hex)
        settings = {
            "service": "aws",
            "region": "eu-central-1",
            "queue": "q",
            "bucket": "s3://bucket/prefix",
            "python": sys.executable,
            "cpus": "1",
            "memory": "1GiB",
            "poll": "100ms",
        }
        self.declared = Site(name="batch", kind=SiteKind.BATCH, settings=settings)
        self.open()

    def open(self) -> None:
        bucket = open_exchange(f"file://{self.grid.home / 'bucket'}", {})
        self.site = BatchSite(self.grid.settings, self.declared, read(self.declared), self.service, bucket)
        self.site.start()

    def reopen(self) -> None:
        self.site.close()
        self.open()
        self.wait(lambda: self.sight("none-1.0") is not PodStatus.UNKNOWN, "the site has read its pods")

    def order(self, pod_id):
        return self.grid.pod_order(pod_id, link=self.site.link(), home=self.site.pod_home(pod_id))

    def close(self) -> None:
        folder = self.grid.home / "batch" / "batch" / "pods"
        self.site.tear_down([path.name for path in folder.glob("*")])
        self.site.close()
        self.grid.close()
        self.service.end()


class TestBatch(SiteSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[BatchHarness]:
        harness = BatchHarness(tmp_path)
        yield harness
        harness.close()
