"""Gridmill is installed on a machine whose package index does not answer."""

import json
from pathlib import Path

import pytest

from gridmill.domain.site import Site, SiteKind
from gridmill.errors import InstallError, UnfitMachineError
from gridmill.sites.cloud.install import Installer
from gridmill.sites.cloud.settings import CloudSettings, read
from gridmill.sites.ssh import CompletedCommand, SshShell

BASE = {"implementation": "CPython", "version": "3.11", "architecture": "x86_64", "packages": {}}


class Machine(SshShell):
    """A machine with a Python, whose pip prints these errors."""

    def __init__(self, error: str) -> None:
        self.error = error

    def run(self, script: str, data: bytes | None = None, *, seconds: float = 0.0) -> CompletedCommand:
        if "pip install" in script:
            return CompletedCommand(status=int(bool(self.error)), out=b"", err=self.error)
        return CompletedCommand(status=0, out=json.dumps(BASE).encode(), err="")


@pytest.fixture
def site() -> CloudSettings:
    settings = {"provider": "aws", "packages": "index", "region": "eu-"}
    return read(Site(name="burst", kind=SiteKind.CLOUD, settings=settings))


def test_a_package_index_that_does_not_answer_for_long_fails_the_job(
    site: CloudSettings, tmp_path: Path
) -> None:
    now = [100.0]
    machine = Machine("Could not resolve host: index")
    installer = Installer(machine, site, tmp_path, lambda _: None, lambda: now[0])
    for passed in (0.0, 600.0, 299.0):
        now[0] += passed
        with pytest.raises(InstallError, match="package index of the machine now"):
            installer.install("/opt/x", 0)
    now[0] += 1.0
    with pytest.raises(UnfitMachineError, match=r"repeated for 15") as lasting:
        installer.install("/opt/x", 0)
    assert "set `packages: home` of the site" in lasting.value.hint
    machine.error = ""
    assert installer.install("/opt/x", 0) == "wheel", "an index that answers again is used"


def test_a_requirement_that_the_index_refuses_fails_at_once(site: CloudSettings, tmp_path: Path) -> None:
    installer = Installer(Machine("No matching distribution found"), site, tmp_path, lambda _: None)
    with pytest.raises(UnfitMachineError, match="No matching distribution"):
        installer.install("/opt/x", 0)
