"""Gridmill is installed on rented machines that have a Python, but neither Gridmill nor a package index."""

import sys
from pathlib import Path

import pytest

from gridmill.domain.lease import TryProblem
from gridmill.domain.states import RunState
from gridmill.testing.hosts import Host
from tests.e2e.test_cloud_site import Rent, net, rent  # noqa: F401  fixtures
from tests.kit.host_cloud import prepared_image, why_not

SYSTEM_PYTHON = f"/usr/bin/python3.{sys.version_info.minor}"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is everything"),
]
PIPELINE = """
pipeline: p
resources:
  burst: {type: command, site: burst, cpus: 1, memory: 256MiB, keep: 0s}
jobs:
  two: {resource: burst, command: "hostname; id -u; seq 3 > $GRIDMILL_OUTPUT/out"}
"""
OTHER_PYTHON = """#!/bin/sh
exec SYSTEM -c 'import re, sys
text = re.sub(r"sys.version_info\\[:2\\]", "(3, 99)", sys.stdin.read())
exec(text)'
"""


def bare_image(host: Host) -> None:
    """An image without Gridmill. Its other Python calls itself 3.99."""
    path = Path(f"/proc/{host.init}/root/usr/bin/python3.99")
    path.write_text(OTHER_PYTHON.replace("SYSTEM", SYSTEM_PYTHON))
    path.chmod(0o755)


@pytest.mark.long
@pytest.mark.skipif(not Path(SYSTEM_PYTHON).exists(), reason=f"needs {SYSTEM_PYTHON}")
def test_a_machine_without_a_package_index_gets_the_packages_of_home(rent: Rent) -> None:  # noqa: F811
    rented = rent(base_python=SYSTEM_PYTHON, extras="", packages="home")
    rented.cloud.image = bare_image
    run = rented.start(PIPELINE)
    rented.wait(rented.ready, "the machine is ready", 400)
    view = rented.ended(run)
    [lease] = rented.leases()
    assert view.run.state is RunState.SUCCEEDED, (lease, [one.job.message for one in view.jobs])
    assert lease.facts["installed"] == "home"
    said = rented.log(run).split()
    assert said[0] == "m20", "it ran on the machine"
    assert said[1] != "0", "as a Unix user of its own, which can read the installation"
    assert list((rented.settings.home / "cache" / "wheels").rglob("msgspec-*.whl"))


def image_without_containers(host: Host) -> None:
    """An image with Gridmill, but with neither podman nor docker."""
    prepared_image(host)
    host.run("sh", "-c", "for one in podman docker; do rm -f $(which -a $one); done")


def test_a_machine_without_a_runtime_is_refused_for_a_job_in_a_container(rent: Rent) -> None:  # noqa: F811
    rented = rent()
    rented.cloud.image = image_without_containers
    job = "{resource: burst, memory: 128MiB, command: {run: id, container: localhost/none}}"
    run = rented.start(PIPELINE.partition("  two:")[0] + f"  two: {job}\n")
    [two] = rented.ended(run).jobs
    [lease] = rented.leases()
    assert [one.problem for one in lease.tries] == [TryProblem.UNFIT]
    assert "runs in a container, but the machine has neither podman nor docker" in two.job.message


@pytest.mark.skipif(not Path(SYSTEM_PYTHON).exists(), reason=f"needs {SYSTEM_PYTHON}")
def test_packages_for_another_python_are_refused_and_no_further_machine_is_rented(
    rent: Rent,  # noqa: F811
) -> None:
    rented = rent(base_python="/usr/bin/python3.99", extras="", packages="home")
    rented.cloud.image = bare_image
    view = rented.ended(rented.start())
    [lease] = rented.leases()
    assert view.run.state is RunState.FAILED
    assert [one.problem for one in lease.tries] == [TryProblem.UNFIT]
    two = next(one.job for one in view.jobs if one.job.job.name == "two")
    assert "the machine has CPython 3.99, and the control node runs with CPython" in two.message
    assert "set `base_python` of the site to a Python 3." in two.message
