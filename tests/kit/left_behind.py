"""A run of the tests has a temporary folder of its own, and leaves nothing behind: no process, mount or
file.

What it started is known by its environment, what it wrote by that folder. What has a place that all runs
share - hard-coded names below /tmp, shared memory, network devices, control groups - is compared with what
was there before, unless another run of the tests is in progress.
"""

import errno
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gridmill.pod.cgroups import RECORD, destroy, own_hierarchies
from gridmill.pod.folders import has_ended

RUN = "GRIDMILL_TEST_RUN"
"""The environment variable that names the run's folder to all that it starts."""
ROOT = Path(__file__).resolve().parents[2]
_OURS = re.compile(r"gridmill|^gm|ray|plasma|torch|slurm|^pg-|^my-|^redis-")
_SHARED = ("/tmp", "/dev/shm", "/sys/class/net", "/run/netns")
_CACHES = ("__pycache__", "_cache/", ".hypothesis/", ".egg-info")
_KEPT = re.compile(r"(pytest|ports|\.ses|torchinductor_\w+|pymp-\w+)$")
"""In a run's folder: those of tests, of tests.kit.ports, and what libraries keep there as long as they are
used (onnxruntime, torch, multiprocessing)."""
_WRITTEN_BY_PEOPLE = ("src/", "tests/", "bench/")
_LONGEST = 24
"""Bytes of a temporary folder in which sockets have paths that are short enough: 107 bytes at most."""


@dataclass
class Run:
    """One run: its folder, and what was there before it."""

    folder: Path
    ending_seconds: float = 20.0  # how long after the last test what is ending has to end
    shared: set[str] = field(default_factory=set)
    repository: set[str] = field(default_factory=set)
    alone: bool = True
    _here: socket.socket = field(default_factory=lambda: socket.socket(socket.AF_UNIX))

    def __post_init__(self) -> None:
        self._here.bind(f"\0gridmill-tests-{self.folder.name}")
        self.alone = not self._others()
        self.shared, self.repository = set(_shared()), _in_repository()

    def left(self) -> list[str]:
        """What is left once all had time to end; each with its kind and name."""
        until = time.monotonic() + self.ending_seconds
        while (found := self._found()) and time.monotonic() < until:
            time.sleep(0.1)
        return found

    def _found(self) -> list[str]:
        self.alone = self.alone and not self._others()
        shared = sorted(set(_shared()) - self.shared) if self.alone else []
        shared = [name for name in shared if not _removed_as_empty(Path(name))]
        written = sorted(_in_repository() - self.repository)
        return [
            *(f"process {words}" for words in self._processes()),
            *(f"mount {path}" for path in _mounts() if path.is_relative_to(self.folder)),
            *(f"file {path}" for path in self.folder.iterdir() if not _KEPT.match(path.name)),
            *shared,
            *(f"file {path} in the repository" for path in written),
        ]

    def _processes(self) -> Iterator[str]:
        mark = f"{RUN}={self.folder}".encode()
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if not entry.name.isdigit() or int(entry.name) == os.getpid():
                    continue
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                ends_with_us = (
                    "multiprocessing.resource_tracker" in words or "multiprocessing.forkserver" in words
                )
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX" and not ends_with_us and mark in (entry / "environ").read_bytes():
                    yield f"{entry.name}: {words[:200]}"

    def _others(self) -> bool:
        names = re.findall(r"@gridmill-tests-(\S+)", Path("/proc/net/unix").read_text())
        return any(name != self.folder.name for name in names)

    def end(self, *, keep: bool) -> None:
        """Its folder is gone unless it has what tells why tests failed."""
        self._here.close()
        if not (keep and any(self.folder.glob("pytest/*"))):
            _remove(self.folder)


def begin() -> Run:
    """From now on temporary files are in the new run's folder. Everybody may write there, as below /tmp:
    databases and jobs of farms have users of their own."""
    usual = tempfile.gettempdir()
    short = len(os.fsencode(usual)) <= _LONGEST and re.fullmatch(r"[\w/.-]+", usual, re.ASCII)
    folder = Path(tempfile.mkdtemp(prefix="gm-", dir=usual if short else "/tmp"))
    folder.chmod(0o1777)
    run = Run(folder)
    os.environ["TMPDIR"] = os.environ[RUN] = str(folder)
    tempfile.tempdir = None  # it is looked up again
    return run


def _remove(folder: Path) -> None:
    """A folder that tests have closed to us too."""
    for at, names, _ in os.walk(folder):
        for name in names:
            with suppress(OSError):
                if not (Path(at) / name).is_symlink():
                    (Path(at) / name).chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def remove_groups_of_killed_pods(home: Path) -> None:
    """Delete the control groups of pods in this home that a test killed: nobody else does."""
    for record in home.glob("pods/*/" + RECORD):
        if not has_ended(record.parent):
            for group in record.read_text().splitlines():
                destroy(Path(group))


def _has_process(group: Path) -> bool:
    """Whether a control group holds a process. Another test can delete the group during the scan."""
    try:
        return bool((group / "cgroup.procs").read_text().strip())
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):
            return False
        raise


def _removed_as_empty(path: Path) -> bool:
    """Whether the path was a control group without processes, as a killed pod leaves it, and was deleted."""
    if not path.is_relative_to("/sys/fs/cgroup"):
        return False
    groups = [
        Path(folder) for folder, _, _ in os.walk(path, topdown=False)
    ]  # skips those that vanish meanwhile
    if any(map(_has_process, groups)):
        return False
    with suppress(OSError):
        for group in groups:
            group.rmdir()
    return not path.exists()


def _groups() -> set[Path]:
    """The folders in which the groups of a pod lie that is started here."""
    here = own_hierarchies()
    return {folder for folder in (here.unified, *here.v1.values()) if folder is not None}


def _shared() -> Iterator[str]:
    for folder in (*map(Path, _SHARED), *_groups()):
        with suppress(OSError):
            yield from (f"{folder / name}" for name in os.listdir(folder) if _OURS.search(name))


def _mounts() -> list[Path]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), one.split()[1])) for one in lines]


def _in_repository() -> set[str]:
    """What Git does not keep and no tool's cache is, aside of where people write while tests run."""
    words = ("git", "-c", f"safe.directory={ROOT}", "status", "--porcelain", "--ignored", "-z")
    try:
        said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return set()  # no Git, or no clone of it
    names = {entry[3:] for entry in said.split("\0") if entry[:2] in ("??", "!!")}
    return {
        name
        for name in names
        if not name.startswith(_WRITTEN_BY_PEOPLE) and not any(cache in name for cache in _CACHES)
    }


def open_descriptors() -> int:
    """Returns how many files and connections this process has open."""
    return len(os.listdir("/proc/self/fd"))


def kinds_of_open_files() -> str:
    """Returns what this process has open, such as `4000 socket, 12 pipe`, the most frequent first."""
    kinds = Counter[str]()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            kinds[os.readlink(f"/proc/self/fd/{number}").partition(":")[0]] += 1
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(8))
