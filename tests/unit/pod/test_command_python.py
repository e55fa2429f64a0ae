"""Standard output of the Python programs of commands: each line at once, and a buffer for very many."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gridmill.pod import command_python

FOLDER = Path(command_python.__file__).parent
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(FOLDER)}
LOUD = """
import os, sys, subprocess, threading, time
while not any(one.name == "gridmill-stdout" for one in threading.enumerate()):
    for number in range(1000): print("line", number)
"""
"""After it the thread empties the buffer."""


def output(code: str, *, timeout: float = 60.0, env: dict[str, str] | None = None) -> str:
    argv = (sys.executable, "-c", code)
    return subprocess.run(
        argv, env=env or ENVIRONMENT, stdout=subprocess.PIPE, text=True, timeout=timeout, check=True
    ).stdout


def after_loud(code: str) -> list[str]:
    """What a program prints after it has become loud."""
    return [line for line in output(LOUD + code).splitlines() if not line.startswith("line ")]


def test_many_lines_arrive_exactly_as_printed() -> None:
    code = "for number in range(200_000): print(number, 'ä' * (number % 7))"
    assert output(code) == "".join(f"{number} {'ä' * (number % 7)}\n" for number in range(200_000))


@pytest.mark.parametrize("before", ["import time\n", LOUD])
def test_a_line_arrives_although_the_program_goes_on_without_output(before: str) -> None:
    argv = (sys.executable, "-c", before + "print('now'); print('all'); time.sleep(60)")
    with subprocess.Popen(argv, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "now\n":
            continue
        assert process.stdout.readline() == "all\n"
        process.kill()


def test_a_program_that_is_killed_loses_no_line_unless_it_prints_very_much() -> None:
    code = "import os; print('last'); os.kill(os.getpid(), 9)"
    done = subprocess.run((sys.executable, "-c", code), env=ENVIRONMENT, stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"last\n")


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("print('a'); sys.exit()", ["a"]),
        ("print('a'); sys.stdout.flush(); os._exit(0)", ["a"]),
        ("print('a'); os._exit(0)", ["a"]),
        ("print('a'); subprocess.run(('echo', 'b')); print('c')", ["a", "b", "c"]),
        ("print('a'); os.system('echo b'); print('c')", ["a", "b", "c"]),
        ("print('a'); os.execvp('echo', ('echo', 'b'))", ["a", "b"]),
        ("print('a')\nif os.fork(): os.wait(); print('c')\nelse: print('b')", ["a", "b", "c"]),
        ("print('a')\nif os.fork(): os.wait(); print('c')\nelse: print('b'); os._exit(0)", ["a", "b", "c"]),
        ("sys.stdout.write('a'); sys.stdout.buffer.write(b'b'); print('c')", ["abc"]),
        (
            "one = threading.Thread(target=print, args=('a',)); one.start(); one.join(); print('b')",
            ["a", "b"],
        ),
        ("sys.stdout.detach().write(b'a'); os._exit(0)", ["a"]),
        ("print('a')\nimport atexit; atexit.register(print, 'b')", ["a", "b"]),
        ("print('a'); time.sleep(1.5); print(threading.active_count())", ["a", "1"]),
    ],
)
def test_no_line_is_lost_doubled_or_late_when_a_loud_program_forks_or_ends(
    code: str, lines: list[str]
) -> None:
    assert after_loud(code) == lines


def test_a_loud_program_with_threads_prints_whole_writes() -> None:
    code = """
import threading
def talk(name):
    for number in range(30_000): sys.stdout.write(f"{name} {number}\\n")
import sys
threads = [threading.Thread(target=talk, args=(name,)) for name in "abcd"]
for one in threads: one.start()
for one in threads: one.join()
"""
    lines = output(code).splitlines()
    for name in "abcd":
        assert [line for line in lines if line.startswith(name)] == [f"{name} {n}" for n in range(30_000)]
    assert len(lines) == 120_000


def test_the_path_and_another_sitecustomize_are_as_without_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.other_was_imported = True\n")
    code = "import sys; print(sys.other_was_imported, sys.path, sys.modules['sitecustomize'].__file__)"
    both = ENVIRONMENT | {"PYTHONPATH": f"{FOLDER}{os.pathsep}{tmp_path}"}
    only = ENVIRONMENT | {"PYTHONPATH": str(tmp_path)}
    assert output(code, env=both) == output(code, env=only)


def test_standard_output_that_is_no_pipe_or_buffered_is_left_alone(tmp_path: Path) -> None:
    code = "import sys; print(type(sys.stdout.buffer).__name__)"
    buffered = {name: value for name, value in ENVIRONMENT.items() if name != "PYTHONUNBUFFERED"}
    with (tmp_path / "out").open("w") as file:
        subprocess.run((sys.executable, "-c", code), env=ENVIRONMENT, stdout=file, check=True)
    assert (tmp_path / "out").read_text() == "FileIO\n"
    assert output("import sys; print(hasattr(sys.stdout.buffer.write, '__self__'))", env=buffered) == "True\n"
