"""Containers of simulated batch services: which processes belong to them, and how they end."""

import os
import queue
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridmill.testing.cloud.containers import Containers, Image
from gridmill.testing.cloud.wire_simulation import WallClock

PATIENCE_SECONDS = 60.0
SHELL = Image(entry_point=("/bin/sh", "-c"))
Ends = queue.SimpleQueue[tuple[str, int]]


@pytest.fixture
def containers() -> Iterator[Containers]:
    made = Containers(WallClock())
    yield made
    made.close()


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A pipe through which a process of a container reports its process id."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def start(containers: Containers, script: str, ends: Ends, id: str = "1") -> None:
    containers.start(id, SHELL, (script,), {}, lambda *end: ends.put(end))


def test_the_end_of_a_container_does_not_end_one_with_the_same_id(containers: Containers, pipe: Path) -> None:
    other, ends, others = Containers(WallClock()), Ends(), Ends()
    start(other, f"echo ready > '{pipe}'; exec sleep 600", others)
    pipe.read_text()
    start(containers, "exit 0", ends)
    assert ends.get(timeout=PATIENCE_SECONDS) == ("1", 0)
    other.stop("1")
    assert others.get(timeout=PATIENCE_SECONDS) == ("1", 128 + signal.SIGTERM)
    other.close()


@pytest.mark.parametrize("end", ["kill", "exit", "close"])
def test_all_processes_of_a_container_end_with_it(containers: Containers, pipe: Path, end: str) -> None:
    ends = Ends()
    hidden = f"(env -i setsid sh -c 'echo $$ > \"{pipe}\"; sleep 600 & sleep 600' &)"
    os.mkfifo(f"{pipe}.go")
    start(containers, f"{hidden}; read line < '{pipe}.go'; exit 4", ends)
    pid = int(pipe.read_text())
    match end:
        case "kill":
            containers.kill("1")
            assert ends.get(timeout=PATIENCE_SECONDS) == ("1", 137)
        case "exit":
            Path(f"{pipe}.go").write_text("\n")
            assert ends.get(timeout=PATIENCE_SECONDS) == ("1", 4)
        case _:
            containers.close()
    assert not Path(f"/proc/{pid}").exists()


def test_a_container_gets_the_signal_to_stop_however_early_it_comes(containers: Containers) -> None:
    ends = Ends()
    start(containers, "sleep 600", ends)
    containers.stop("1")
    assert ends.get(timeout=PATIENCE_SECONDS) == ("1", 128 + signal.SIGTERM)


def test_a_command_that_does_not_exist_has_the_exit_code_of_a_shell(containers: Containers) -> None:
    ends = Ends()
    containers.start("1", Image(), ("/no/such/command",), {}, lambda *end: ends.put(end))
    assert ends.get(timeout=PATIENCE_SECONDS) == ("1", 127)
    assert "/no/such/command: " in containers.lines("1")[0].text


PROGRAM = """
import sys
from gridmill.testing.cloud.containers import Containers, Image
from gridmill.testing.cloud.wire_simulation import WallClock
made = Containers(WallClock())
made.start("1", Image(), ("/bin/sh", "-c", sys.argv[1]), {}, print)
sys.stdin.read()
"""


def test_the_processes_end_if_the_simulation_is_killed(pipe: Path, tmp_path: Path) -> None:
    script = f"env -i sh -c 'echo $$ > \"{pipe}\"; exec sleep 600' & wait"
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, script],
        stdin=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},  # where the program leaves its folder
    )
    hidden = os.pidfd_open(int(pipe.read_text()))
    program.kill()
    program.communicate()
    assert program.returncode == -signal.SIGKILL
    has_ended = select.poll()
    has_ended.register(hidden, select.POLLIN)
    assert has_ended.poll(PATIENCE_SECONDS * 1000)
    os.close(hidden)
