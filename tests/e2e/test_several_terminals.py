"""Several commands on one home at the same moment share a control node; none ends another one's run."""

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.e2e.conftest import Place, eventually

pytestmark = pytest.mark.e2e

WAITING = """
pipeline: {name}
jobs:
  first: {{command: "touch {folder}/{name}-began; while [ ! -e {folder}/go ]; do sleep 0.05; done"}}
  second: {{needs: [first], command: "echo $TZ >> {folder}/{name}-zone"}}
"""
QUICK = """
pipeline: {name}
jobs:
  only: {{command: "true"}}
"""
CONNECT = """
import gridmill, sys
with gridmill.connect() as client:
    view = client.run(sys.argv[1])
    assert view.run.state == "succeeded", view
    assert client.list_runs()
"""


def waiting(place: Place, name: str) -> Path:
    return place.write(WAITING.format(name=name, folder=place.folder), f"{name}.yaml")


def quick(place: Place, name: str) -> Path:
    return place.write(QUICK.format(name=name), f"{name}.yaml")


def connect(place: Place, file: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", CONNECT, str(file)],
        env=place.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    place.started.append(process)
    return process


def ended_well(process: "subprocess.Popen[str]") -> bool:
    out, told = process.communicate(timeout=240)
    assert process.returncode == 0, out + told
    return True


def state(place: Place, run: str) -> str:
    found: str = place.json("show", "run", run)["run"]["state"]
    return found


def one_stays(place: Place) -> bool:
    control = place.json("status")["control"]
    return control is not None and not control["embedded"]


@pytest.mark.parametrize(
    "is_new",
    [
        pytest.param(True, id="in a fresh home"),
        pytest.param(False, id="in a home that was used", marks=pytest.mark.long),
    ],
)
def test_ten_commands_at_the_same_moment_all_work(place: Place, is_new: bool):
    if not is_new:
        assert place.gridmill("run", quick(place, "before")).returncode == 0
    runs = [place.start("run", quick(place, f"run{number}")) for number in range(4)]
    connects = [connect(place, quick(place, f"sdk{number}")) for number in range(2)]
    up = place.start("up", "--listen", "off")
    others = [
        place.start("plan", quick(place, "planned")),
        place.start("apply", "-f", quick(place, "applied")),
        place.start("status"),
    ]
    assert all(ended_well(process) for process in runs + connects + others)
    assert eventually(lambda: one_stays(place))
    assert place.gridmill("down").returncode == 0  # SIGTERM would leave pods that are idle
    assert ended_well(up)
    assert eventually(lambda: not place.leftovers())


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_the_first_client_ends_and_its_run_alone_with_it(place: Place, how: int):
    first = place.start("run", waiting(place, "one"))
    place.wait_for("one-began")
    second = place.start("run", waiting(place, "two"))
    place.wait_for("two-began")
    first.send_signal(how)
    first.communicate(timeout=120)
    assert eventually(lambda: state(place, "one") == "stopped")
    assert second.poll() is None
    (place.folder / "go").touch()
    assert ended_well(second)
    assert place.gridmill("resume", "one").returncode == 0
    assert eventually(lambda: not place.leftovers())


def test_a_terminal_that_is_closed_ends_its_own_run_alone(place: Place):
    file = waiting(place, "one")
    child, terminal = pty.fork()
    if child == 0:
        os.execve(sys.executable, [sys.executable, "-m", "gridmill", "run", str(file)], place.env)
    place.wait_for("one-began")
    second = place.start("run", waiting(place, "two"))
    place.wait_for("two-began")
    os.close(terminal)
    os.waitpid(child, 0)
    assert eventually(lambda: state(place, "one") == "stopped")
    (place.folder / "go").touch()
    assert ended_well(second)


def test_a_control_node_that_is_killed_is_followed_by_another_one(place: Place):
    runs = [place.start("run", waiting(place, name), TZ=f"Etc/{name}") for name in ("one", "two", "three")]
    for name in ("one", "two", "three"):
        place.wait_for(f"{name}-began")
    for _ in range(2):
        killed = place.node_pid()
        os.kill(killed, signal.SIGKILL)
        assert eventually(lambda killed=killed: place.node_pid() not in (0, killed))
    (place.folder / "go").touch()
    assert all(ended_well(process) for process in runs)
    for name in ("one", "two", "three"):  # each has its own client's environment, whoever started the node
        assert (place.folder / f"{name}-zone").read_text() == f"Etc/{name}\n"
    assert eventually(lambda: not place.leftovers())


def test_a_control_node_and_a_client_that_are_killed_leave_the_run_to_the_next_command(place: Place):
    run = place.start("run", waiting(place, "one"))
    place.wait_for("one-began")
    place.crash(run)
    (place.folder / "go").touch()
    done = place.gridmill("resume", "one")
    assert done.returncode == 0, done.stderr


def test_one_that_stays_takes_over_and_what_runs_goes_on_with_its_own_environment(place: Place):
    first = place.start("run", waiting(place, "one"), TZ="Etc/one")
    second = place.start("run", waiting(place, "two"), TZ="Etc/two")
    for name in ("one", "two"):
        place.wait_for(f"{name}-began")
    refused = place.gridmill("run", quick(place, "detached"), "--detach")
    assert refused.returncode == 8
    assert "gridmill up" in refused.stderr
    before = place.node_pid()
    up = place.start("up", "--listen", "off", TZ="Etc/up")
    assert eventually(lambda: one_stays(place))
    assert place.node_pid() != before
    (place.folder / "go").touch()
    assert ended_well(first)
    assert ended_well(second)
    assert (place.folder / "one-zone").read_text() == "Etc/one\n"
    assert (place.folder / "two-zone").read_text() == "Etc/two\n"
    assert place.gridmill("run", quick(place, "detached"), "--detach").returncode == 0
    assert eventually(lambda: state(place, "detached") == "succeeded")
    assert "has stopped" in place.gridmill("down").stdout
    assert ended_well(up)
    assert eventually(lambda: not place.leftovers())


def test_what_a_client_needs_is_its_own(place: Place, tmp_path: Path):
    """Its folder, relative paths, and environment: not those of whoever started the control node."""
    first = place.start("run", waiting(place, "one"), TZ="Etc/one")
    place.wait_for("one-began")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "said").write_text("mine")
    (elsewhere / "two.yaml").write_text(
        f"pipeline: two\n"
        f"jobs: {{only: {{command: 'cat said > {place.folder}/said; echo $TZ >> {place.folder}/said'}}}}"
    )
    second = subprocess.run(
        [sys.executable, "-m", "gridmill", "--home", "../home", "run", "two.yaml"],
        cwd=elsewhere,
        env={**place.env, "TZ": "Etc/two", "GRIDMILL_CPUS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert second.returncode == 0, second.stderr
    assert (place.folder / "said").read_text() == "mineEtc/two\n"
    assert "GRIDMILL_CPUS is 1 here and not set at the running control node" in second.stderr
    assert "GRIDMILL_ROOT" not in second.stderr
    (place.folder / "go").touch()
    assert ended_well(first)


def test_a_control_node_that_works_for_others_is_ended_with_all_only(place: Place):
    assert "nothing to stop" in place.gridmill("down").stdout
    first = place.start("run", waiting(place, "one"))
    place.wait_for("one-began")
    refused = place.gridmill("down")
    assert refused.returncode == 5
    assert "one-1" in refused.stderr
    assert "run one.yaml" in refused.stderr or "one.yaml" in refused.stderr
    assert "--all" in refused.stderr
    told = place.gridmill("status").stdout
    assert "ends when its last client ends" in told
    assert "waits for one-1" in told
    done = place.gridmill("stop", "--all")
    assert done.returncode == 0, done.stderr
    assert "one-1" in done.stderr
    assert "has stopped" in done.stdout
    first.communicate(timeout=120)
    assert first.returncode == 130
    assert eventually(lambda: not place.leftovers())
    assert state(place, "one") == "stopped"


def test_clients_come_and_are_killed_at_any_moment(place: Place):
    """Kills of clients and of the control node while others come: who is not killed ends well."""
    kept, killed = [], []
    for number in range(6):
        process = place.start("run", quick(place, f"p{number}"))
        (killed if number % 2 else kept).append(process)
        time.sleep(0.15)  # any moment will do
        if number % 2:
            process.kill()
        if number == 3:
            with suppress(OSError, ValueError):
                os.kill(place.node_pid(), signal.SIGKILL)
    assert all(ended_well(process) for process in kept)
    assert eventually(lambda: not place.leftovers())


@pytest.mark.long
def test_a_child_that_a_client_forked_does_not_keep_its_run(place: Place):
    script = (
        "import gridmill, os, sys, time\n"
        "client = gridmill.connect()\n"
        "if os.fork() == 0: time.sleep(600)\n"
        "client.run(sys.argv[1])\n"
    )
    file = waiting(place, "one")
    client = subprocess.Popen([sys.executable, "-c", script, str(file)], env=place.env)
    place.started.append(client)
    place.wait_for("one-began")
    client.kill()
    client.wait()
    assert eventually(lambda: state(place, "one") == "stopped")


def test_a_home_with_a_long_path_has_them_too(tmp_path: Path):
    place = Place(tmp_path / ("long" * 30))
    place.folder.mkdir()
    runs = [place.start("run", quick(place, name)) for name in ("one", "two")]
    assert all(ended_well(process) for process in runs)
    assert eventually(lambda: not place.leftovers())


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_a_mix_of_commands_and_kills_at_random_moments(place: Place, seed: int):
    """Who is not killed ends well, whatever becomes of the others, of the control node, and of one that
    stays."""
    random = Random(seed)
    others = (("plan",), ("apply", "-f"), ("list", "runs"), ("status",))
    kept, killed, ups = [], [], []
    for number in range(14):
        file = quick(place, f"p{number}")
        match random.randrange(6):
            case 0:
                kept.append(connect(place, file))
            case 1:
                words = random.choice(others)
                kept.append(place.start(*words, *([file] if words[0] in ("plan", "apply") else [])))
            case 2:
                ups.append(place.start("up", "--listen", "off"))
            case 3:
                killed.append(place.start("run", file))
            case _:
                kept.append(place.start("run", file))
        time.sleep(random.random() * 0.5)  # any moment will do
        if killed and random.random() < 0.5:
            killed.pop().send_signal(random.choice((signal.SIGKILL, signal.SIGINT, signal.SIGHUP)))
        if random.random() < 0.15:
            with suppress(OSError, ValueError):
                os.kill(place.node_pid() or 2**22, random.choice((signal.SIGKILL, signal.SIGTERM)))
    for process in kept:
        assert ended_well(process)
    for up in ups:
        up.send_signal(signal.SIGTERM)
    for process in [*killed, *ups]:
        process.communicate(timeout=240)
        assert process.returncode in (0, 6, 130, -signal.SIGTERM, -signal.SIGKILL), process.args
    assert place.gridmill("down", "--all").returncode == 0
    last = place.gridmill("run", quick(place, "last"))  # with it goes what one that was killed left idle
    assert last.returncode == 0, last.stdout + last.stderr
    assert eventually(lambda: not place.leftovers())
