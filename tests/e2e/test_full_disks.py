"""Full disks of home and root: jobs that write too much are ended, others continue, with the true reasons."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Place
from tests.kit.small_disks import small_disk

pytestmark = pytest.mark.e2e
MIB = 2**20


@pytest.fixture
def disk() -> Iterator[Path]:
    with small_disk(80 * MIB) as place:
        yield place


def attempts(view: dict, name: str) -> list[dict]:
    return next(job for job in view["jobs"] if job["job"]["job"]["name"] == name)["attempts"]


def test_a_job_that_fills_the_root_is_ended_and_its_neighbour_succeeds(place: Place, disk: Path) -> None:
    file = place.write(
        """
pipeline: greedy
jobs:
  writes:
    command: dd if=/dev/urandom of=$GRIDMILL_OUTPUT/large bs=1M count=79; sleep 60
  small:
    command: sleep 3; echo well > $GRIDMILL_OUTPUT/small
"""
    )
    view = place.json("run", file, GRIDMILL_ROOT=str(disk / "root"))
    (greedy,) = attempts(view, "writes")
    assert (greedy["state"], greedy["cause"]) == ("failed", "disk"), greedy
    assert "this job had written most" in greedy["message"]
    assert [one["state"] for one in attempts(view, "small")][-1] == "succeeded"
    assert not list(disk.glob("root/files/greedy/writes/*/large"))  # nobody needs it, others need the room


def test_a_limit_of_the_job_ends_it_with_the_option(place: Place) -> None:
    file = place.write(
        """
pipeline: limited
jobs:
  writes:
    disk: 2MiB
    command: dd if=/dev/urandom of=$GRIDMILL_OUTPUT/large bs=1M count=20; sleep 60
"""
    )
    done = place.gridmill("run", file)
    assert done.returncode == 1
    assert "its limit is 2 MiB" in done.stdout + done.stderr
    assert "Raise `disk` of the job (for example `disk: 4MiB`)" in done.stdout + done.stderr
