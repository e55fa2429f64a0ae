"""Logs of real jobs: as written, bounded, read by parts, harmless on a terminal, whole after kills."""

import hashlib
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from shlex import quote

import pytest

from tests.e2e.conftest import GRIDMILL, PATIENCE_SECONDS, Place, eventually

pytestmark = pytest.mark.e2e
PYTHON = f"exec {quote(sys.executable)}"
"""For commands in YAML, which a shell runs."""

ODD = "a\x0cb\x0bc\u2028d \x1b[31mred\x1b[0m \x1b]0;title\x07"


def on_a_terminal(place: Place, *words: str) -> bytes:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [GRIDMILL, *words], env=place.env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        written = b""
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            written += data
    os.close(ours)
    assert process.returncode == 0
    return written


def test_lines_are_as_written_dropped_bytes_are_told_and_a_terminal_is_safe(place: Place) -> None:
    (place.folder / "project").mkdir()
    (place.folder / "project" / "odd.py").write_text(
        f"print({ODD!r})\nprint('x' * 3_000_000)\nprint('a\\rb')\n"
    )
    (place.folder / "project" / "loud.py").write_text(
        "print('first line')\n"
        "for number in range(300_000): print(f'{number:08} ' + 'y' * 90)\n"
        "raise SystemExit('it broke')\n"
    )
    file = place.write(
        f"""
pipeline: words
jobs:
  odd:
    command: {PYTHON} odd.py
  loud:
    command: {PYTHON} loud.py
"""
    )
    limit = {"GRIDMILL_LOG_JOB": "8MiB"}
    done = place.gridmill("run", file, **limit)
    assert done.returncode == 1
    assert "it broke" in done.stdout, done
    assert "MiB of the log of loud were deleted here" in done.stdout, "in the failure's lines"
    odd = subprocess.run([GRIDMILL, "logs", "words", "odd"], env=place.env, capture_output=True, check=True)
    assert odd.stdout.decode().split("\n") == [ODD, "x" * 3_000_000, "a\rb", ""]
    read = place.gridmill("logs", "words", "loud")
    assert read.stdout.startswith("first line\n00000000 ")
    assert read.stdout.count("\n") < 110_000
    assert "MiB of the log of loud were deleted here" in read.stderr
    tail = place.gridmill("logs", "words", "loud", "--tail", "2")
    assert tail.stdout == f"00299999 {'y' * 90}\nit broke\n"
    assert place.gridmill("logs", "words", "--search", "00299999").stdout.count("\n") == 1
    report = (place.home / "reports" / "words-1.html").read_text()
    assert "MiB of the log of loud were deleted here" in report
    shown = on_a_terminal(place, "logs", "words", "odd", "--tail", "1")
    assert b"a\\x0db" in shown
    whole = on_a_terminal(place, "logs", "words", "odd", "--search", "title")
    assert b"\x1b" not in whole
    assert b"\\x1b]0;title\\x07" in whole


@pytest.mark.long
def test_kills_of_the_control_node_lose_and_double_no_line(place: Place) -> None:
    project, enough = place.folder / "project", place.folder / "enough"
    project.mkdir()
    (project / "count.py").write_text(
        "import itertools, os, time\n"
        "for number in itertools.count():\n"
        "    print(number)\n"
        "    if number % 200 == 0: time.sleep(0.02)\n"
        f"    if number % 200 == 0 and os.path.exists({str(enough)!r}): break\n"
        f"open({str(enough)!r}, 'w').write(str(number + 1))\n"
    )
    file = place.write(f"pipeline: kept\njobs:\n  count:\n    command: {PYTHON} -u count.py\n")
    node = place.start("up")
    assert eventually((place.home / "control.json").exists)
    assert place.gridmill("run", file, "--detach").returncode == 0
    for _ in range(6):
        log = place.home / "logs" / "kept-1.0.raw"
        size = log.stat().st_size if log.exists() else 0
        assert eventually(lambda size=size: _size(place) > size + 10_000)
        node.send_signal(signal.SIGKILL)
        node.wait()
        node = place.start("up")
    enough.touch()
    assert place.gridmill("logs", "kept-1", "-f", timeout=PATIENCE_SECONDS).returncode == 0
    lines = place.gridmill("logs", "kept-1", "count").stdout.split()
    assert lines == [str(number) for number in range(int(enough.read_text()))]
    node.send_signal(signal.SIGTERM)
    node.wait()


def _size(place: Place) -> int:
    return sum(path.stat().st_size for path in (place.home / "logs").glob("kept-1.*.raw"))


@pytest.mark.long
def test_a_log_of_300_megabytes_is_read_in_little_memory(place: Place) -> None:
    count = 3_000_000
    program = place.folder / "project" / "loud.py"
    program.parent.mkdir()
    program.write_text(f"for number in range({count}):\n    print(f'{{number:08}} ' + 'y' * 91)\n")
    file = place.write(f"pipeline: loud\njobs:\n  talk:\n    command: {PYTHON} loud.py\n")
    node = place.start("up", GRIDMILL_LOG_JOB="10GiB")
    assert eventually((place.home / "control.json").exists)
    assert place.gridmill("run", file, "--detach").returncode == 0
    written = _digest([GRIDMILL, "logs", "loud", "talk", "--follow"], place)
    assert place.gridmill("report", "loud-1").returncode == 0
    assert written == _digest([sys.executable, str(program)], place)
    last = place.gridmill("logs", "loud", "--tail", "1").stdout
    assert last.startswith(f"talk | {count - 1:08} ")
    assert place.gridmill("logs", "loud", "--search", "01234567 ").stdout.count("\n") == 1
    stored = sum(path.stat().st_size for path in (place.home / "logs").iterdir())
    assert stored <= 0.25 * 101 * count
    peak = next(
        int(line.split()[1]) / 1024
        for line in Path(f"/proc/{node.pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    assert peak <= 250, f"the control node used {peak:.0f} MiB"
    node.send_signal(signal.SIGTERM)
    node.wait()


def _digest(command: list[str], place: Place) -> str:
    digest = hashlib.sha256()
    with subprocess.Popen(command, env=place.env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while data := process.stdout.read(2**20):
            digest.update(data)
    assert process.returncode == 0
    return digest.hexdigest()
