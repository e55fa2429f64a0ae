"""A home of its own for each test, a `gridmill` command for it, and no process left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.kit.left_behind import remove_groups_of_killed_pods
from tests.kit.planned import planned

GRIDMILL = str(Path(sys.executable).parent / "gridmill")
PATIENCE_SECONDS = 120.0
"""Until what must come is given up: no test waits so long, but on a busy machine nothing is quick."""


def eventually(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> bool:
    """True as soon as the condition holds; False when it did not in time. What takes long to look at, as a
    command does, is looked at half of the time: the other half is for what it waits for."""
    deadline = time.monotonic() + seconds
    while True:
        begun = time.monotonic()
        if condition():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(max(0.02, min(1.0, time.monotonic() - begun)))


def files_below(folder: Path, name: str) -> list[Path]:
    """Those whose name matches, below a folder that others change meanwhile: what vanishes is passed over."""
    walked = os.walk(folder)
    return [Path(at) / found for at, _, files in walked for found in files if fnmatch(found, name)]


def processes_mentioning(text: str) -> list[int]:
    """Living processes whose command line or environment contains `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            content = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if state not in "ZX" and text.encode() in content:
            found.append(int(entry.name))
    return found


@dataclass
class Place:
    """A folder with a home below it."""

    folder: Path
    store: str = ""
    started: list[subprocess.Popen] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def env(self) -> dict[str, str]:
        return {
            **os.environ,
            "GRIDMILL_HOME": str(self.home),
            "GRIDMILL_OBSERVE": "0.2",
            "GRIDMILL_GRACE": "1",
            "GRIDMILL_STORE": self.store,
        }

    def write(self, text: str, name: str = "pipeline.yaml") -> Path:
        project = self.folder / "project"
        project.mkdir(exist_ok=True)
        (project / name).write_text(text)
        return project / name

    def gridmill(
        self, *words: object, timeout: float = 2 * PATIENCE_SECONDS, **env: str
    ) -> subprocess.CompletedProcess:
        """Run the command to its end."""
        with planned(words, {**self.env, **env}) as plan:
            done = subprocess.run(
                [GRIDMILL, *map(str, words)],
                env={**self.env, **env},
                capture_output=True,
                text=True,
                timeout=timeout,
                stdin=subprocess.DEVNULL,
                check=False,
            )
            plan.exit_code = done.returncode
        return done

    def json(self, *words: object, timeout: float = 2 * PATIENCE_SECONDS, **env: str):
        """What the command prints with --json."""
        done = self.gridmill(*words, "--json", timeout=timeout, **env)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def start(self, *words: object, **env: str) -> subprocess.Popen:
        """Start the command and go on."""
        process = subprocess.Popen(
            [GRIDMILL, *map(str, words)],
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def wait_for(self, name: str) -> None:
        """Wait for a file in the folder."""
        assert eventually(lambda: (self.folder / name).exists()), f"{name} never came"

    def meet(
        self, run: "subprocess.Popen[str]", condition: Callable[[], object], seconds: float = 600.0
    ) -> None:
        """Wait for what is there only while the command runs; fails with its words once it has ended."""

        def met() -> bool:
            has_ended = run.poll() is not None
            if condition():
                return True
            assert not has_ended, f"it ended before it was met: {run.communicate()}"
            return False

        assert eventually(met, seconds), "it was never met"

    def node_pid(self) -> int:
        """The process of the control node that owns the home now, or did last; 0 while one begins."""
        return int((self.home / "control.lock").read_text() or 0)

    def crash(self, run: "subprocess.Popen[str]") -> None:
        """Kill a command and the control node at once: neither notices that the other one has gone."""
        run.send_signal(signal.SIGSTOP)
        os.kill(self.node_pid(), signal.SIGKILL)
        run.kill()
        run.wait()

    def leftovers(self) -> list[int]:
        return processes_mentioning(str(self.home))


@contextmanager
def a_place(folder: Path, store: str = "") -> Iterator[Place]:
    """A place whose processes are gone at the end."""
    it = Place(folder, store)
    try:
        yield it
    finally:
        _clear(it)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with a_place(tmp_path) as it:
        yield it


def _clear(it: Place) -> None:
    for process in it.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    for pid in it.leftovers():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    remove_groups_of_killed_pods(it.home)
