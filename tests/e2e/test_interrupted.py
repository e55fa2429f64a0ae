"""A long command makes room for one of a higher priority, and resumes from its checkpoint."""

from pathlib import Path

import pytest

from tests.e2e.conftest import PATIENCE_SECONDS, Place, eventually

pytestmark = pytest.mark.e2e

BOX = "resources:\n  box: {type: command, cpus: 1, memory: 512MiB, workers: 1, keep: 60s}\n"
"""One pod, with room for one of the jobs below."""


def long(folder: Path) -> str:
    """Counts until `enough` is there, and tells of each number; fails where another attempt runs."""
    return f"""
pipeline: long
project: science
{BOX}
jobs:
  count:
    resource: box
    memory: 400MiB
    resumable: true
    command:
      run: |
        exec 9> {folder}/alone && flock -n 9 || {{ echo "twice at the same time"; exit 1; }}
        done=$(cat "$GRIDMILL_CHECKPOINTS/done" 2> /dev/null || echo 0)
        echo "from $done" >> {folder}/said
        until [ -e {folder}/enough ]; do
          done=$((done + 1))
          echo "$done" > "$GRIDMILL_CHECKPOINTS/new"
          mv "$GRIDMILL_CHECKPOINTS/new" "$GRIDMILL_CHECKPOINTS/done"
          echo "$done" >> {folder}/said
          sleep 0.2
        done
"""


def urgent(folder: Path) -> str:
    """Runs until `go` is there."""
    return f"""
pipeline: urgent
project: science
{BOX}
jobs:
  first:
    resource: box
    memory: 400MiB
    priority: 5
    command:
      run: "echo urgent >> {folder}/said; until [ -e {folder}/go ]; do sleep 0.1; done"
"""


def job(place: Place, run: str) -> dict:
    (only,) = place.json("status", run)["jobs"]
    return only


def test_it_is_interrupted_waits_with_a_reason_and_goes_on(place: Place):
    files = place.write(long(place.folder), "long.yaml"), place.write(urgent(place.folder), "urgent.yaml")
    up = place.start("up", "--listen", "off")
    assert eventually(lambda: place.gridmill("show", "control").returncode == 0)
    refused = place.gridmill("run", files[0], "--detach")
    assert refused.returncode != 0
    assert "there is no project 'science'" in refused.stderr
    assert place.gridmill("configure", "project", "science", "--cpus", 2).returncode == 0
    assert place.gridmill("run", files[0], "--detach").returncode == 0
    assert eventually((place.folder / "said").exists)
    assert place.gridmill("run", files[1], "--detach").returncode == 0

    assert eventually(lambda: "urgent" in (place.folder / "said").read_text()), "room was made"
    waiting = job(place, "long-1")
    assert waiting["job"]["state"] == "waiting"
    assert waiting["why"].startswith("interrupted for urgent-1/first, whose turn comes first; ")
    assert "needs 400 MiB" in waiting["why"]
    table = place.gridmill("status", "long-1").stdout
    assert "project science" in table

    (place.folder / "go").touch()
    assert eventually(lambda: (place.folder / "said").read_text().count("from ") == 2), "it goes on"
    (place.folder / "enough").touch()
    assert eventually(lambda: job(place, "long-1")["job"]["state"] == "succeeded")
    view = job(place, "long-1")
    assert [one["state"] for one in view["attempts"]] == ["stopped", "succeeded"]
    assert (view["job"]["failures"], view["job"]["losses"], view["job"]["interruptions"]) == (0, 0, 1)
    pods = {one["pod_id"] for one in (*view["attempts"], *job(place, "urgent-1")["attempts"])}
    assert len(pods) == 1, "the pod of what was interrupted is there for the others"
    said = (place.folder / "said").read_text().split("\n")
    at = said.index("urgent")
    begun, went_on = said[:at], said[at + 1 :]
    assert begun[0] == "from 0"
    assert went_on[0] in (f"from {begun[-1]}", f"from {int(begun[-1]) + 1}"), "ended between two lines"
    report = place.gridmill("report", "long-1", "--output", place.folder / "report.html")
    assert report.returncode == 0, report.stderr
    page = (place.folder / "report.html").read_text()
    assert "project science" in page
    assert "interrupted for urgent-1/first" in page
    kept = place.home / "storage/checkpoints/long/count"
    assert eventually(lambda: not any(kept.glob("*"))), "nothing is kept of what is done"
    up.terminate()
    assert up.wait(timeout=PATIENCE_SECONDS) == 0


APART = "resources:\n  {name}: {{type: command, cpus: 1, memory: 400MiB, workers: 1, keep: 60s}}\n"


@pytest.mark.long
def test_an_urgent_job_of_another_resource_interrupts_and_only_then_the_first_goes_on(place: Place):
    """The site has room for the pod of one of the two resources."""
    box = BOX.removeprefix("resources:\n")
    first = long(place.folder).replace("project: science\n", "").replace(box, APART.format(name="slow")[11:])
    other = (
        urgent(place.folder).replace("project: science\n", "").replace(box, APART.format(name="fast")[11:])
    )
    files = (
        place.write(first.replace("resource: box", "resource: slow"), "long.yaml"),
        place.write(other.replace("resource: box", "resource: fast"), "urgent.yaml"),
    )
    room = {"GRIDMILL_MEMORY": "600MiB", "GRIDMILL_CPUS": "2"}
    up = place.start("up", "--listen", "off", **room)
    assert eventually(lambda: place.gridmill("show", "control").returncode == 0)
    assert place.gridmill("run", files[0], "--detach").returncode == 0
    said = place.folder / "said"
    assert eventually(said.exists)
    assert place.gridmill("run", files[1], "--detach").returncode == 0
    assert eventually(lambda: "urgent" in said.read_text()), place.gridmill("status", "urgent-1").stdout

    waiting = job(place, "long-1")
    assert waiting["job"]["state"] == "waiting"
    assert said.read_text().count("from ") == 1, (
        "nothing of lower priority started while the urgent job waited"
    )
    (place.folder / "go").touch()
    assert eventually(lambda: said.read_text().count("from ") == 2), place.gridmill("status", "long-1").stdout
    (place.folder / "enough").touch()
    assert eventually(lambda: job(place, "long-1")["job"]["state"] == "succeeded")
    assert [one["state"] for one in job(place, "long-1")["attempts"]] == ["stopped", "succeeded"]
    assert [one["state"] for one in job(place, "urgent-1")["attempts"]] == ["succeeded"]
    up.terminate()
    assert up.wait(timeout=PATIENCE_SECONDS) == 0
