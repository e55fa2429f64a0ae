"""A machine that boots from a built image finds Gridmill in it, against the simulated Compute Engine with
real machines."""

import json
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridmill.bootstrap.node import embed
from gridmill.declarations import read_pipeline
from gridmill.domain.lease import Lease
from gridmill.domain.machine_image import ImageOrder, ImageState
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.states import RunState
from gridmill.settings import read_settings
from gridmill.testing.cloud.gce.simulation import GceSimulation, simulated_gce
from gridmill.testing.cloud.namespace_machines import NamespaceMachines, why_no_machines
from tests.e2e.test_rented_ec2 import Account

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(why_no_machines()), reason=why_no_machines() or "there are machines"),
]
BASE = "ubuntu-os-cloud/family/ubuntu-2204-lts"
TYPE = "e2-standard-2"
PIPELINE = """
pipeline: p
resources:
  burst:
    type: command
    site: gcp
    cpus: 1
    memory: 256MiB
    keep: 0s
    settings: {instance_type: TYPE, image: BOOT}
jobs:
  two: {resource: burst, command: "echo begun on BOOT; cp /etc/hostname $GRIDMILL_OUTPUT/out"}
"""
BASE_PYTHON = """#!/bin/sh
# A Python whose environments find the dependencies of Gridmill, because the machine has no way to an index.
PYTHON "$@" || exit
for last; do :; done
[ "$2" != venv ] || echo PACKAGES > "$(echo "$last"/lib/python*/site-packages)/packages.pth"
"""


class Project(Account):
    """A home with the site `gcp`, whose machines belong to a simulated Compute Engine. Gridmill must be
    installed on the machines, because `python` does not exist on them."""

    def __init__(self, folder: Path, gce: GceSimulation, host: NamespaceMachines, base_python: Path) -> None:
        self.folder, self.gce, self.host = folder, gce, host
        home = folder / "home"
        home.mkdir()
        self.settings = read_settings(
            {"GRIDMILL_HOME": str(home), "GRIDMILL_GRACE": "1", "GRIDMILL_OBSERVE": "0.2"}
        )
        self.node = embed(self.settings)
        self.node.grid.add_secret("key", json.dumps(gce.service_account_key))
        given = {
            "provider": "gcp",
            "regions": "us-central1",
            "endpoint_url": gce.endpoint_url,
            "service_account_key": "key",
            "base_python": str(base_python),
            "extras": "tls",
        }
        self.node.grid.add_site(Site(name="gcp", kind=SiteKind.CLOUD, settings=given))

    def run_on(self, image: str) -> tuple[Lease, float]:
        """Runs the pipeline on a machine with an image. Returns its lease, and the seconds from the start of
        the machine to the first line of the job."""
        project = self.folder / "project"
        project.mkdir(exist_ok=True)
        text = PIPELINE.replace("BOOT", image).replace("TYPE", TYPE)
        (project / "pipeline.yaml").write_text(text)
        run = self.node.grid.start_run(read_pipeline(project / "pipeline.yaml")).run.id
        view = self.ended(run)
        assert view.run.state is RunState.SUCCEEDED, view.jobs[0].job.message
        self.wait(lambda: list(self.node.grid.logs(run, job="two")), "the log has arrived")
        line = next(iter(self.node.grid.logs(run, job="two")))
        leases = [one.lease for one in self.node.grid.leases().items]
        [lease] = [one for one in leases if one.terms.image == image and not one.image_name]
        [started, *_] = [since for since, _ in self.gce.find(lease.tries[-1].machine_id).runs]
        return lease, line.time - started

    def returned(self) -> None:
        self.wait(lambda: not self.gce.running(), "all machines are returned")


def packages(folder: Path) -> Path:
    """Makes a folder with the packages of this Python without Gridmill itself."""
    folder.mkdir()
    for place in dict.fromkeys(one for one in sys.path if one.endswith("-packages")):
        for one in Path(place).iterdir():
            own = one.name.lower().startswith(("gridmill", "__editable__", "_gridmill"))
            if not own and one.suffix != ".pth" and not (folder / one.name).exists():
                (folder / one.name).symlink_to(one)
    return folder


@pytest.fixture
def gcp() -> Iterator[Project]:
    with tempfile.TemporaryDirectory(prefix="gmb", ignore_cleanup_errors=True) as name:
        needed = Path(name) / "needed"
        needed.mkdir()
        python = needed / "python"
        text = BASE_PYTHON.replace("PACKAGES", str(packages(needed / "packages")))
        python.write_text(text.replace("PYTHON", f"'{sys.executable}'"))
        python.chmod(python.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        host = NamespaceMachines(needed=[needed])
        with simulated_gce(host=host) as gce:
            account = Project(Path(name), gce, host, python)
            yield account
            for one in account.node.grid.leases().items:
                account.node.grid.stop_lease(one.lease.id)
            account.close()


@pytest.mark.long
def test_a_machine_with_a_built_image_needs_no_installation(gcp: Project) -> None:
    lease = gcp.node.grid.build_image(
        ImageOrder(name="base-1", site="gcp", region="us-central1", instance_type=TYPE, base=BASE)
    ).lease.id
    gcp.wait(lambda: gcp.node.grid.lease(lease).lease.image_id, "the image is finished")
    [image] = gcp.node.grid.images()
    assert (image.name, image.state, image.region) == ("base-1", ImageState.AVAILABLE, "global")
    ready, seconds = gcp.run_on(image.id)
    phases = {name: text for name, text in ready.facts.items() if "seconds" in name}
    print(f"from the start of the machine to the first line: {seconds:.1f} s", phases)
    assert gcp.node.grid.lease(lease).lease.facts["installed"] == "wheel"
    assert (ready.facts["installed"], phases["install seconds"]) == ("image", "0.0")
