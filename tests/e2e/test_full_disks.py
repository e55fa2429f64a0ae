"""Full disks of home and root: jobs that write too much are ended, others continue, with the true reasons."""

import json
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gridmill.stores.sql import make
from gridmill.testing.store_samples import an_event
from tests.e2e.conftest import PATIENCE_SECONDS, Place, a_place, eventually
from tests.kit.small_disks import fill, free_bytes, small_disk

pytestmark = pytest.mark.e2e
MIB = 2**20


@pytest.fixture
def disk() -> Iterator[Path]:
    with small_disk(80 * MIB) as place:
        yield place


@pytest.fixture
def full_place(disk: Path) -> Iterator[Place]:
    """A home on the small disk."""
    with a_place(disk) as it:
        yield it


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
    assert "this job wrote most" in greedy["message"]
    assert [one["state"] for one in attempts(view, "small")][-1] == "succeeded"
    assert not list(disk.glob("root/files/greedy/writes/*/large"))  # nobody needs it, others need the room


@pytest.mark.long
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


def test_a_full_root_holds_attempts_back_until_there_is_room(place: Place, disk: Path) -> None:
    root = str(disk / "root")
    file = place.write("pipeline: held\njobs:\n  work:\n    command: echo well > $GRIDMILL_OUTPUT/file\n")
    ballast = fill(disk, left_bytes=MIB)
    run = place.start("run", file, "--json", GRIDMILL_ROOT=root)

    def why() -> str:
        done = place.gridmill("status", "--json", GRIDMILL_ROOT=root)
        control = json.loads(done.stdout)["control"] if done.returncode == 0 else None
        return " ".join(control["problems"]) if control else ""

    assert eventually(lambda: "no attempt starts until there is space" in why()), why()
    assert "less than its reserve of 4 MiB" in why()
    (name,) = [one["id"] for one in place.json("list", "runs", GRIDMILL_ROOT=root)]
    view = place.json("status", name, GRIDMILL_ROOT=root)
    (job,) = view["jobs"]
    assert "less than its reserve" in job["why"], job["why"]
    assert job["attempts"] == []
    doctor = place.gridmill("doctor", GRIDMILL_ROOT=root)
    assert "less than its reserve of 4 MiB" in " ".join(doctor.stdout.split())
    assert doctor.returncode != 0
    ballast.unlink()
    out, err = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 0, err
    assert [one["state"] for one in attempts(json.loads(out), "work")] == ["succeeded"]


@pytest.mark.long
def test_a_full_home_is_named_and_the_node_goes_on_when_there_is_room(
    full_place: Place, disk: Path, tmp_path: Path
) -> None:
    place = full_place
    root = {"GRIDMILL_ROOT": str(tmp_path / "root")}
    file = place.write("pipeline: full\njobs:\n  work:\n    command: echo well > $GRIDMILL_OUTPUT/file\n")
    up = place.start("up", "--listen", "off", **root)
    assert eventually(lambda: place.gridmill("show", "control", **root).returncode == 0)
    assert place.gridmill("run", file, **root).returncode == 0
    ballast = fill(disk, left_bytes=0)
    for _ in range(3):
        with ballast.open("ab") as rest:
            rest.write(b"1" * free_bytes(disk))
        refused = place.gridmill("run", file, **root)
        if refused.returncode:
            break
    told = " ".join((refused.stdout + refused.stderr).split())
    assert refused.returncode != 0
    assert "disk" in told, told
    assert "full" in told or "less than its reserve" in told, told
    assert "Traceback" not in told
    assert "defect" not in told

    def shown() -> str:
        return " ".join(place.gridmill("status", **root).stdout.split())

    assert eventually(lambda: "less than its reserve of 4 MiB" in shown()), (shown(), told)
    assert up.poll() is None
    ballast.unlink()
    done = place.gridmill("run", file, **root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert up.poll() is None
    up.terminate()
    assert up.wait(timeout=PATIENCE_SECONDS) == 0


def test_caches_that_nothing_uses_go_first_and_the_run_succeeds(disk: Path) -> None:
    place = Place(folder=disk)
    file = place.write("pipeline: evicts\njobs:\n  work:\n    command: echo well > $GRIDMILL_OUTPUT/file\n")
    for age, name in enumerate(("old", "older", "oldest")):
        folder = place.home / "cache" / "environments" / name
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"1" * 8 * MIB)
        os.utime(folder, (1e9 - age, 1e9 - age))
    fill(disk, left_bytes=2 * MIB)
    done = place.gridmill("run", file)
    assert done.returncode == 0, done.stderr
    assert "a disk is nearly full: 1 item that nothing uses (8 MiB) deleted" in done.stderr
    left = sorted(path.name for path in (place.home / "cache" / "environments").iterdir())
    assert left == ["old", "older"]


@pytest.mark.long
def test_a_command_whose_disk_is_full_names_it_and_is_tried_again(place: Place, disk: Path) -> None:
    (disk / "elsewhere").write_bytes(b"1" * 70 * MIB)
    file = place.write(
        f"""
pipeline: again
jobs:
  work:
    command: |
      echo begin >> {place.folder}/marks
      if test $(wc -l < {place.folder}/marks) -eq 1; then
        dd if=/dev/zero of={disk}/neighbour bs=1M count=20; exit 1
      fi
      echo well > $GRIDMILL_OUTPUT/file
"""
    )
    run = place.start("run", file, "--json", GRIDMILL_ROOT=str(disk / "root"))
    place.wait_for("marks")
    assert eventually(lambda: (disk / "neighbour").exists() and free_bytes(disk) == 0)
    root = str(disk / "root")
    (name,) = [one["id"] for one in place.json("list", "runs", GRIDMILL_ROOT=root)]

    def states() -> list[str]:
        return [one["state"] for one in attempts(place.json("status", name, GRIDMILL_ROOT=root), "work")]

    assert eventually(lambda: states() == ["lost"])
    (disk / "neighbour").unlink()
    out, err = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 0, err
    first, second = attempts(json.loads(out), "work")
    assert (first["state"], first["cause"], second["state"]) == ("lost", "storage", "succeeded")
    assert "exit code 1; likely because the disk of the storage root" in first["message"]


@pytest.mark.long
def test_clean_gives_free_pages_of_the_store_back_and_says_how_much(place: Place) -> None:
    file = place.write("pipeline: small\njobs:\n  work:\n    command: echo well > $GRIDMILL_OUTPUT/file\n")
    assert place.gridmill("run", file).returncode == 0
    path = place.home / "store.db"
    with closing(make(path)) as store:
        for first in range(0, 5000, 500):
            numbers = range(first + 1, first + 501)
            store.commit([], [replace(an_event(one), body={"text": "x" * 2000}) for one in numbers])
        store.drop_events([an_event(1).run_id])
    before = path.stat().st_blocks * 512
    assert before > 8 * MIB
    cleaned = {one["kind"]: one for one in place.json("clean")}
    after = path.stat().st_blocks * 512
    assert after < MIB
    assert abs(cleaned["store"]["size_bytes"] - (before - after)) < MIB
    assert "(measured by the file system" in place.gridmill("clean").stdout
