"""The program with its records in PostgreSQL: as on SQLite, and when the server or the way to it fails."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import chain, repeat
from pathlib import Path

import pytest

from gridmill.errors import StoreInUseError, StoreLostError
from gridmill.stores import sql
from tests.e2e.conftest import PATIENCE_SECONDS, Place, a_place, eventually
from tests.e2e.test_survive import (  # noqa: F401  the same tests, in places of this module
    test_a_killed_pod_costs_an_attempt_and_not_the_run,
    test_a_result_outlives_its_pod_and_the_control_node,
    test_jobs_outlive_a_killed_run_command_and_the_next_one_goes_on,
)
from tests.kit.cutting_proxy import Cut, cutting_proxy
from tests.kit.postgresql import PostgresqlServer

pytestmark = pytest.mark.e2e

LONG = """
pipeline: long
jobs:
  work:
    command: |
      echo begin >> {folder}/marks
      until test -e {folder}/go; do sleep 0.05; done
      echo end >> {folder}/marks
  after:
    needs: [work]
    command: echo after >> {folder}/marks
"""


@pytest.fixture
def place(tmp_path: Path, postgresql_url: str) -> Iterator[Place]:
    with a_place(tmp_path, postgresql_url) as it:
        yield it
        assert not (it.home / "store.db").exists(), "the records are in the server alone"


def database(place: Place) -> str:
    return place.store.rpartition("/")[2]


def long(place: Place) -> Path:
    return place.write(LONG.format(folder=place.folder))


def assert_each_ran_once(place: Place) -> None:
    assert (place.folder / "marks").read_text() == "begin\nend\nafter\n"


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.long),
        pytest.param(signal.SIGQUIT, marks=pytest.mark.long),
        signal.SIGKILL,
    ],
)
def test_a_restart_of_the_server_in_the_middle_of_a_run(
    place: Place, postgresql: PostgresqlServer, how: signal.Signals
):
    run = place.start("run", long(place))
    place.wait_for("marks")
    postgresql.stop(how)
    (place.folder / "go").touch()  # the job ends while there is no store
    assert eventually(lambda: (place.folder / "marks").read_text() == "begin\nend\n")
    postgresql.start()
    _, err = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 0, err
    assert_each_ran_once(place)


STEPS = """
pipeline: steps
jobs:
{jobs}
"""
STEP = """
  step{number}:
    needs: [{needs}]
    command: |
      echo {number} >> {folder}/marks
      until test -e {folder}/go{number}; do sleep 0.02; done
"""


@pytest.mark.long
def test_the_server_killed_again_and_again_in_one_run(place: Place, postgresql: PostgresqlServer):
    """At each step once while it runs, and at each end of one: the run goes on when the server is back."""
    jobs = "".join(
        STEP.format(number=number, needs=f"step{number - 1}" if number else "", folder=place.folder)
        for number in range(3)
    )
    run = place.start("run", place.write(STEPS.format(jobs=jobs)), "--json")
    for number in range(3):
        begun = "".join(f"{before}\n" for before in range(number + 1))
        assert eventually(lambda begun=begun: marks(place) == begun), marks(place)
        postgresql.restart(signal.SIGKILL)
        (place.folder / f"go{number}").touch()
        postgresql.restart(signal.SIGKILL)
    out, err = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 0, err
    attempts = [attempt["state"] for job in json.loads(out)["jobs"] for attempt in job["attempts"]]
    assert attempts == ["succeeded"] * 3
    assert marks(place) == "0\n1\n2\n"


def marks(place: Place) -> str:
    file = place.folder / "marks"
    return file.read_text() if file.exists() else ""


@pytest.mark.long
def test_connections_ended_again_and_again(place: Place, postgresql: PostgresqlServer):
    run = place.start("run", long(place))
    place.wait_for("marks")
    cut = 0
    while cut < 12:
        assert run.poll() is None, run.communicate()
        cut += postgresql.cut(database(place))
    (place.folder / "go").touch()
    _, err = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 0, err
    assert_each_ran_once(place)


@pytest.mark.long
def test_connections_cut_at_commits(place: Place, postgresql: PostgresqlServer):
    fates = chain.from_iterable(repeat((Cut.NONE, Cut.BEFORE, Cut.NONE, Cut.NONE, Cut.AFTER)))
    first = [Cut.NONE] * 6  # the schema, and what the start commits: those are refused, not tried again
    (place.folder / "go").touch()
    with cutting_proxy(postgresql.port, lambda: next(fates) if not first else first.pop()) as proxy:
        through = postgresql.url(database(place), port=proxy.port)
        done = place.gridmill("run", long(place), GRIDMILL_STORE=through)
        assert done.returncode == 0, done.stderr
        assert proxy.cuts >= 2
    assert_each_ran_once(place)


def test_a_second_control_node_of_another_home_is_refused(place: Place, tmp_path: Path):
    up = place.start("up", "--listen", "off")
    assert eventually(lambda: (place.home / "control.sock").exists())
    with a_place(tmp_path / "other", place.store) as other:
        other.folder.mkdir()
        done = other.gridmill("run", other.write(LONG))
        assert done.returncode == 6
        assert f"process {up.pid} on {os.uname().nodename[:30]}" in done.stderr
        assert "already owns this store" in done.stderr
        assert "Traceback" not in done.stderr
        assert other.gridmill("list", "runs").returncode == 0, "reading is free"


def test_a_control_node_ends_when_another_has_its_store(place: Place, postgresql: PostgresqlServer):
    up = place.start("up", "--listen", "off")
    assert eventually(lambda: (place.home / "control.sock").exists())
    with closing(sql.make(place.store)) as thief:

        def stolen() -> bool:
            with suppress(StoreLostError):  # its own connection was cut, too
                try:
                    thief.own("the thief")
                    return True
                except StoreInUseError:
                    postgresql.cut(database(place))
            return False

        up.send_signal(signal.SIGSTOP)  # else it may be quicker, always
        assert eventually(stolen)
        up.send_signal(signal.SIGCONT)
        done = place.gridmill("run", long(place), "--detach")
        assert done.returncode in (6, 8), done.stderr
        _, err = up.communicate(timeout=PATIENCE_SECONDS)
        assert up.returncode == 6
        assert "the thief" in err
        assert "Traceback" not in err


@pytest.mark.long
def test_a_store_whose_home_is_elsewhere_is_taken_over_only_when_told(place: Place, tmp_path: Path):
    run = place.start("run", long(place))
    place.wait_for("marks")
    place.crash(run)
    with a_place(tmp_path / "other", place.store) as other:
        other.folder.mkdir()
        done = other.gridmill("up", "--listen", "off")
        assert done.returncode == 6
        assert "belongs to another home" in done.stderr
        assert "--take-over" in done.stderr
        for pid in place.leftovers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # that machine is gone for good
        shutil.copytree(place.home / "bundles", other.home / "bundles")  # from a backup
        (place.folder / "go").touch()
        other.start("up", "--listen", "off", "--take-over")
        assert eventually(lambda: other.gridmill("status", "long-1").returncode == 0)
        assert eventually(lambda: other.json("status", "long-1")["run"]["state"] != "active")
        assert other.json("status", "long-1")["run"]["state"] == "succeeded"
    assert (place.folder / "marks").read_text() == "begin\nbegin\nend\nafter\n"


def test_a_password_among_the_words_of_a_command_is_refused(place: Place):
    done = place.gridmill("up", "--listen", "off", "--store", place.store, GRIDMILL_STORE="")
    assert done.returncode == 2
    assert "PGPASSWORD" in done.stderr
    password = place.store.partition("@")[0].rpartition(":")[2]
    assert password not in done.stderr
    words, _, rest = place.store.partition(f":{password}")
    up = place.start(
        "up", "--listen", "off", "--json", "--store", words + rest, PGPASSWORD=password, GRIDMILL_STORE=""
    )
    assert json.loads(up.stdout.readline())["control"]["pid"] == up.pid


def test_a_server_that_is_down_is_explained(place: Place, postgresql: PostgresqlServer):
    postgresql.stop()
    try:
        done = place.gridmill("list", "runs")
    finally:
        postgresql.start()
    assert done.returncode == 8
    assert "Check that the database server is running" in done.stderr
    assert postgresql.password not in done.stderr
    assert "Traceback" not in done.stderr
