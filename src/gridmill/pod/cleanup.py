"""Cleans up after a pod that has ended: its processes, cgroups and folders.

`python -m gridmill.pod.cleanup POD_FOLDER` ends all processes that the pod left, and deletes its files. The
command does nothing while the pod is alive. The command finds the processes of the pod through the pod's
cgroups, through the process ids and start times that the pod recorded, and through the environment variables
that identify the pod. Small folders are deleted immediately. Other folders are moved aside and deleted by a
separate process, so that no job waits.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from gridmill.codec import decode
from gridmill.domain.pod_protocol import PodOrder
from gridmill.errors import InputError
from gridmill.jobs.containers import remove_container
from gridmill.pod import processes
from gridmill.pod.cgroups import RECORD, destroy
from gridmill.pod.empty_folders import OUTPUT, EmptyFolders
from gridmill.pod.folders import (
    FEW,
    PodFolder,
    acquire_lock,
    has_ended,
    has_few_files,
    is_small,
    mark_ended,
    was_started,
)

_PATIENCE_SECONDS = 5.0


def sweep(folder: PodFolder) -> bool:
    """Ends every process that the pod's jobs left, and removes the folders of the jobs and the cgroups of
    the pod. Returns True if nothing of the pod is left."""
    until = time.monotonic() + _PATIENCE_SECONDS
    for attempt_id in _attempts(folder):
        remove_container(folder.attempt(attempt_id), attempt_id)
    clean = _end_processes(folder, until)
    removed = [destroy(path) for path in _cgroups(folder)]
    sweep_attempts(folder)
    return clean and all(removed)


def _end_processes(folder: PodFolder, until: float) -> bool:
    while True:
        left = _left(folder)
        if not left:
            return True
        processes.send(left, signal.SIGKILL)
        if time.monotonic() > until:
            return False
        time.sleep(0.01)


def _left(folder: PodFolder) -> list[int]:
    recorded = [pid for pid, start in _recorded(folder) if processes.is_alive(pid, start)]
    marked = processes.marked(f"GRIDMILL_POD={folder.path}")
    pids = processes.tree([*recorded, *marked])
    return [pid for pid in pids if processes.stat(pid) is not None]


def _recorded(folder: PodFolder) -> list[tuple[int, int]]:
    """Returns the process id and start time of each attempt's process whose start time is known."""
    entries = (line.split() for line in _lines(folder.starts))
    return [(int(e[1]), int(e[2])) for e in entries if len(e) == 3 and e[2] != "0" and e[2].isdigit()]


def _cgroups(folder: PodFolder) -> list[Path]:
    return [Path(line) for line in _lines(folder.path / RECORD)]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _attempts(folder: PodFolder) -> set[str]:
    return {line.split()[0] for line in _lines(folder.starts) if line.strip()}


def sweep_attempts(folder: PodFolder) -> None:
    """Removes the folders of the pod's attempts and its folder for deleted files."""
    for attempt_id in _attempts(folder):
        shutil.rmtree(folder.attempt(attempt_id), ignore_errors=True)
    for place in (folder.trash, folder.emptied):
        shutil.rmtree(place, ignore_errors=True)


def main(path: Path) -> int:
    """Returns 0 if the pod has ended and no process or file of the pod is left. Returns 1 if the pod is
    alive or something cannot be ended."""
    lock = acquire_lock(path, patience_seconds=0.0)
    if lock is None:
        return 1
    if has_ended(path) or not was_started(path):
        return 0
    try:
        order = decode((path / "order.json").read_bytes(), PodOrder)
    except (OSError, InputError):
        return 1
    if not sweep(PodFolder(path=path, home=Path(order.home))):
        return 1
    mark_ended(path, _why_it_died(path))
    return 0


def _why_it_died(path: Path) -> str:
    """Returns the reason why the pod ended, for a message in which the reason follows the word `it`."""
    try:
        if (path / "pid").stat().st_mtime < _boot_time():
            return "ended because its machine was switched off or restarted"
    except OSError:
        pass
    return "was killed, or its machine ran out of memory"


def _boot_time() -> float:
    """Returns the Unix time at which this machine was started, or 0 if this time is unknown."""
    try:
        lines = (processes.PROC / "stat").read_text().splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), 0.0)


class CleanupProcess:
    """Removes the folders of ended attempts. `pid` is the id of the process that deletes files, or 0 if
    there is none. The loop of the pod calls `ended` when this process ends."""

    def __init__(self, trash: Path, empties: EmptyFolders) -> None:
        self.pid = 0
        self._trash, self._empties = trash, empties
        self._child: subprocess.Popen[bytes] | None = None

    def remove(self, folder: Path) -> None:
        """Removes the folder, although a process may still use it. If the folder does not exist, the
        function does nothing."""
        if has_few_files(folder):
            shutil.rmtree(folder, ignore_errors=True)
            return
        self._trash.mkdir(exist_ok=True)
        folder.rename(self._trash / os.urandom(8).hex())
        if not self.pid:
            self._work()

    def remove_tree(self, folder: Path) -> None:
        """Deletes a folder on another file system. A separate process deletes a large folder, so that no job
        waits."""
        if has_few_files(folder):
            shutil.rmtree(folder, ignore_errors=True)
            return
        child = subprocess.Popen(
            ["rm", "-rf", "--", str(folder)], stdin=subprocess.DEVNULL, start_new_session=True
        )
        child.returncode = 0  # marked as ended for Python, because the pod's loop reaps it

    def clear(self, folder: Path, role: str) -> None:
        """Removes the folder, which no process uses any more, and keeps emptied folders so that later
        attempts can reuse them."""
        if not self._empties.clear(folder, role, FEW):
            self.remove(folder)

    def drop_empty(self, folder: Path, *, keep: bool) -> None:
        """Removes an empty output folder. With `keep`, the folder is kept so that a later attempt can reuse
        it."""
        if keep:
            self._empties.keep(folder, OUTPUT)
            return
        with suppress(OSError):
            folder.rmdir()

    def remove_large(self, folder: Path) -> None:
        """Removes the folder if it is large. A small folder is deleted later, together with the folder that
        contains it."""
        if not is_small(folder):
            self.remove(folder)

    def _work(self) -> None:
        self._child = subprocess.Popen(
            ["rm", "-rf", "--", *map(str, self._trash.iterdir())],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.pid = self._child.pid

    def ended(self) -> None:
        """Starts the next deletion after the deleting process has ended and was reaped."""
        if self._child is not None:
            self._child.returncode = 0
        self.pid = 0
        if any(self._trash.iterdir()):
            self._work()


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]).absolute()))
