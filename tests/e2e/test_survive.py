"""What must survive: kills of pods and jobs, memory, interrupts, a second control node, a full disk."""

import json
import os
import signal
import time
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from gridmill.domain.amounts import MIB, show_bytes
from gridmill.domain.deployment import Deployment
from gridmill.domain.run import Run
from gridmill.ports.store import Store
from gridmill.stores.sql import make
from tests.e2e.conftest import PATIENCE_SECONDS, Place, eventually, processes_mentioning

pytestmark = pytest.mark.e2e


def job(view: dict, name: str) -> dict:
    return next(job for job in view["jobs"] if job["job"]["job"]["name"] == name)


def pod_pids(place: Place) -> list[int]:
    return [
        int((pod / "pid").read_text().split()[0])
        for pod in (place.home / "pods").iterdir()
        if (pod / "pid").exists()
    ]


def test_a_killed_pod_costs_an_attempt_and_not_the_run(place: Place):
    marks = place.folder / "marks"
    file = place.write(
        f"""
pipeline: killed
jobs:
  work:
    command: |
      echo begin >> {marks}
      test $(wc -l < {marks}) -gt 1 || sleep 600
      echo end >> {marks}
"""
    )
    run = place.start("run", file, "--json")
    place.wait_for("marks")
    os.kill(pod_pids(place)[0], signal.SIGKILL)
    out, err = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 0, err
    assert marks.read_text() == "begin\nbegin\nend\n", (
        "the first try's processes ended before the second began"
    )
    view = json.loads(out)
    assert [attempt["state"] for attempt in job(view, "work")["attempts"]] == ["lost", "succeeded"]
    assert eventually(lambda: not place.leftovers())


def test_a_killed_job_fails_with_the_signal_and_is_retried(place: Place):
    marks = place.folder / "marks"
    file = place.write(
        f"""
pipeline: signal
jobs:
  work:
    retries: 1
    command: |
      echo begin >> {marks}
      test $(wc -l < {marks}) -gt 1 || kill -KILL $$
"""
    )
    done = place.gridmill("run", file, "--json")
    assert done.returncode == 0, done.stderr
    attempts = job(json.loads(done.stdout), "work")["attempts"]
    assert [attempt["state"] for attempt in attempts] == ["failed", "succeeded"]
    assert "SIGKILL" in attempts[0]["message"]


def test_a_job_over_its_estimated_memory_says_so_and_is_retried_larger(place: Place):
    file = place.write(
        """
pipeline: memory
jobs:
  hungry:
    command: |
      test ! -e {mark} || exit 0
      touch {mark}
      exec python -c "import time; x = bytearray(900 * 2**20); time.sleep(60)"
""".replace("{mark}", str(place.folder / "mark"))
    )
    done = place.gridmill("run", file, "--json")
    assert done.returncode == 0, done.stderr
    first, second = job(json.loads(done.stdout), "hungry")["attempts"]
    assert first["cause"] == "memory"
    larger = second["given"]["memory_bytes"]
    assert f"trying again with {show_bytes(larger)}" in done.stderr
    assert larger >= 2 * first["given"]["memory_bytes"]
    assert second["state"] == "succeeded"


def test_a_job_over_the_memory_that_it_declares_is_retried_no_larger_and_fails_with_the_reason(place: Place):
    file = place.write(
        """
pipeline: memory
jobs:
  hungry:
    memory: 60MiB
    retries: 1
    command: [python, -c, "import time; x = bytearray(150 * 2**20); time.sleep(600)"]
"""
    )
    done = place.gridmill("run", file)
    assert done.returncode == 1
    assert "ran out of memory at 60 MiB, the limit that the job declares" in done.stderr
    assert "Traceback" not in done.stderr
    attempts = job(place.json("show", "run", "memory-1"), "hungry")["attempts"]
    assert [attempt["cause"] for attempt in attempts] == ["memory", "memory"]
    assert [attempt["given"]["memory_bytes"] for attempt in attempts] == [60 * MIB, 60 * MIB]


def test_an_interrupted_run_stops_cleanly_and_can_be_resumed(place: Place):
    marks = place.folder / "marks"
    file = place.write(
        f"""
pipeline: interrupted
jobs:
  first: {{command: "echo first >> {marks}"}}
  second:
    needs: [first]
    command: |
      echo second >> {marks}
      test -e {place.folder}/go || sleep 600
  third: {{needs: [second], command: "echo third >> {marks}"}}
"""
    )
    run = place.start("run", file)
    assert eventually(lambda: marks.exists() and "second" in marks.read_text())
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 130, err
    assert "resume" in out + err
    assert eventually(lambda: not place.leftovers()), "an embedded control node leaves nothing up"
    (place.folder / "go").touch()
    done = place.gridmill("resume", "interrupted-1")
    assert done.returncode == 0, done.stderr
    assert marks.read_text() == "first\nsecond\nsecond\nthird\n"


def test_a_second_control_node_on_the_same_home_is_refused(place: Place):
    first = place.start("up", "--listen", "off")
    assert eventually(lambda: place.gridmill("show", "control").returncode == 0)
    second = place.gridmill("up", "--listen", "off")
    assert second.returncode == 6
    assert "already owns" in second.stderr
    first.terminate()
    assert first.wait(timeout=PATIENCE_SECONDS) == 0


def until_told(place: Place) -> str:
    """Words that wait for the file `go`."""
    return f"until test -e {place.folder}/go; do sleep 0.05; done"


def test_jobs_outlive_a_killed_run_command_and_the_next_one_goes_on(place: Place):
    marks = place.folder / "marks"
    file = place.write(
        f"""
pipeline: orphan
jobs:
  long: {{command: "echo begin >> {marks}; {until_told(place)}; echo end >> {marks}"}}
  after: {{needs: [long], command: "echo after >> {marks}"}}
"""
    )
    run = place.start("run", file)
    place.wait_for("marks")
    place.crash(run)
    (place.folder / "go").touch()
    done = place.gridmill("resume", "orphan-1")
    assert done.returncode == 0, done.stderr
    assert marks.read_text() == "begin\nend\nafter\n"


def test_a_control_node_of_a_run_gives_way_to_one_that_comes_to_stay(place: Place):
    """Also one that was started because the control node was killed; the job runs once all the while."""
    marks = place.folder / "marks"
    file = place.write(
        f"""
pipeline: giving
jobs:
  long: {{command: "echo begin >> {marks}; {until_told(place)}; echo end >> {marks}"}}
  after: {{needs: [long], command: "echo after >> {marks}"}}
"""
    )
    run = place.start("run", file)
    place.wait_for("marks")
    for _ in range(2):
        up = place.start("up", "--listen", "off", "--json")
        place.meet(up, lambda up=up: owner(place) == up.pid)
        up.kill()
        up.wait()
        place.meet(run, lambda up=up: owner(place) not in (0, up.pid))
    up = place.start("up", "--listen", "off", "--json")
    place.meet(up, lambda: owner(place) == up.pid)
    place.meet(up, lambda: place.gridmill("status", "giving").returncode == 0)
    (place.folder / "go").touch()
    out, err = run.communicate(timeout=600)
    assert run.returncode == 0, (out, err)
    assert marks.read_text() == "begin\nend\nafter\n"
    assert owner(place) == up.pid
    up.terminate()
    assert up.wait(timeout=600) == 0


def owner(place: Place) -> int:
    """The process that owns the home, or did last."""
    return int((place.home / "control.lock").read_text() or 0)


def test_a_job_that_leaves_daemons_behind_leaves_none(place: Place):
    file = place.write(
        """
pipeline: daemons
jobs:
  sly: {command: "setsid nohup sleep 300 >/dev/null 2>&1 & echo started"}
"""
    )
    done = place.gridmill("run", file)
    assert done.returncode == 0, done.stderr
    assert eventually(lambda: not processes_mentioning(str(place.folder)))


def test_a_resource_larger_than_any_site_is_refused_with_the_sizes(place: Place):
    done = place.gridmill("configure", "resource", "huge", "--type", "training", "--memory", "900TiB")
    assert done.returncode == 7
    assert "huge" in done.stderr
    assert "GiB" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_fails_the_sink_and_nothing_half_written_is_visible(place: Place, tmp_path: Path):
    small = tmp_path / "small"
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=3m none {small} 2>/dev/null") != 0:
        pytest.skip("this machine cannot mount a tmpfs; run as root with CAP_SYS_ADMIN")
    try:
        chance = Random(7)  # what does not compress
        rows = "\n".join(f"{n},{chance.random()},{chance.random()}" for n in range(600_000))
        (place.folder / "project").mkdir()
        (place.folder / "project" / "big.csv").write_text("a,b,c\n" + rows)
        file = place.write("pipeline: full\njobs:\n  big: {sink: {source: {path: big.csv}}}\n")
        done = place.gridmill("run", file, GRIDMILL_ROOT=str(small))
        assert done.returncode == 1, done.stdout
        assert "disk" in (done.stdout + done.stderr).lower() or "space" in (done.stdout + done.stderr).lower()
        assert "Traceback" not in done.stderr
        assert place.json("list", "sinks") == []
    finally:
        os.system(f"umount -l {small}")


def deployments(store: Store) -> list[Deployment]:
    """Those that are up, as the records say: asking by a command may take longer than they are kept."""
    return [record.noun for record in store.live() if isinstance(record.noun, Deployment)]


KEEP_SECONDS = 20


def test_an_idle_deployment_is_released_after_its_keep(place: Place):
    up = place.start("up", "--listen", "off")
    assert eventually(lambda: place.gridmill("show", "control").returncode == 0)
    file = place.write(
        """
pipeline: kept
resources:
  short: {type: command, memory: 256MiB, keep: KEEPs}
jobs:
  work: {resource: short, command: "true"}
""".replace("KEEP", str(KEEP_SECONDS))
    )
    assert place.gridmill("run", file).returncode == 0
    with closing(make(place.home / "store.db")) as store:
        [run] = [record.noun for record in store.list(Run)]
        is_up = [one.resource for one in deployments(store)] == ["short"]
        assert is_up or time.time() - run.ended >= KEEP_SECONDS, "on a busy machine its time may be over"
        assert eventually(lambda: not deployments(store))
    assert place.json("list", "deployments") == []
    assert eventually(lambda: not processes_mentioning(str(place.home / "pods")))
    up.terminate()
    assert up.wait(timeout=PATIENCE_SECONDS) == 0


def test_jobs_share_one_deployment_and_are_admitted_by_memory(place: Place):
    marks = place.folder / "marks"
    two = f"until [ $(grep -c begin {marks}) -ge 2 ]; do sleep 0.05; done"  # there is room for another
    work = f"echo begin >> {marks}; {two}; sleep 0.3; echo end >> {marks}"
    jobs = "\n".join(f'  w{n}: {{resource: crew, memory: 300MiB, command: "{work}"}}' for n in range(4))
    file = place.write(
        "pipeline: shared\nresources:\n  crew: {type: command, cpus: 4, memory: 700MiB, workers: 1}\n"
        f"jobs:\n{jobs}\n"
    )
    done = place.gridmill("run", file, "--json", GRIDMILL_CPUS="4")
    assert done.returncode == 0, done.stderr
    view = json.loads(done.stdout)
    assert {a["pod_id"] for j in view["jobs"] for a in j["attempts"]} == {"crew-1.0"}
    running, most = 0, 0
    for line in marks.read_text().split():
        running += 1 if line == "begin" else -1
        most = max(most, running)
    assert most == 2, "two of 300 MiB fit in 700 MiB, a third does not"


def test_what_a_failed_attempt_wrote_does_not_stay(place: Place):
    file = place.write(
        """
pipeline: untidy
jobs:
  work: {command: "echo half > $GRIDMILL_OUTPUT/half; exit 3"}
"""
    )
    done = place.gridmill("run", file)
    assert done.returncode == 1
    assert "exit code 3" in done.stdout + done.stderr
    assert not list((place.home / "storage").rglob("half"))


def test_a_result_outlives_its_pod_and_the_control_node(place: Place):
    marks = place.folder / "marks"
    file = place.write(
        f"""
pipeline: words
jobs:
  work: {{command: "echo begin >> {marks}; {until_told(place)}; echo said; echo end >> {marks}"}}
"""
    )
    run = place.start("run", file, GRIDMILL_ORPHAN="1s")
    place.wait_for("marks")
    place.crash(run)
    (place.folder / "go").touch()
    assert eventually(lambda: not processes_mentioning(str(place.home / "pods"))), "an orphaned pod ends"
    done = place.gridmill("resume", "words-1")
    assert done.returncode == 0, done.stderr
    assert marks.read_text() == "begin\nend\n", "its result was found, not made again"
    assert "said" in place.gridmill("logs", "words-1").stdout
