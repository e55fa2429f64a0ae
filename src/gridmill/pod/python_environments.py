"""The code bundles and the Python environments of jobs. Bundles and environments are unpacked or built once
for each content, under a lock.

An attempt that may write to its code gets a private copy of the code. A Python environment is built once for
each combination of requirements file content and Python version.
"""

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from gridmill.domain.amounts import KIB, show_count
from gridmill.domain.environment_build import BEGUN, ENDED, ENVIRONMENT
from gridmill.domain.frozen import dataclass
from gridmill.errors import GridmillError, InputError, InstallError, StorageError
from gridmill.pod.launch import EVENTS_FD
from gridmill.storage.unpack import unpack_bundle
from gridmill.transfer.tree_writer import clone

_FEW_ENTRIES, _LITTLE_BYTES = 16, 256 * KIB
"""The pod itself copies code up to this size. Larger code is copied by another process."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Takes a lock on this file, and waits while another process has the lock. The kernel releases the lock
    when the process that has it dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def bundle_folder(home: Path, bundle: str) -> Path:
    """Returns the folder into which a bundle is unpacked."""
    return home / "cache" / "bundles" / bundle


def is_small_code(folder: Path) -> bool:
    """Returns whether copying the folder takes only some milliseconds: it has few, small files and folders,
    and no links."""
    few, size = islice(_entries(folder), _FEW_ENTRIES + 1), 0
    for count, entry in enumerate(few):
        size += entry.stat(follow_symlinks=False).st_size
        if entry.is_symlink() or count >= _FEW_ENTRIES or size > _LITTLE_BYTES:
            return False
    return True


def _entries(folder: Path | str) -> Iterator["os.DirEntry[str]"]:
    with os.scandir(folder) as found:
        for entry in found:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from _entries(entry.path)


def unpacked(home: Path, bundle: str, archive: str = "") -> Path:
    """Returns the folder with the content of the bundle. At the first use, the bundle is unpacked from
    `archive`, or from the bundles in the home. Raises StorageError if the bundle does not exist, and
    InputError if its archive is unsafe."""
    folder = bundle_folder(home, bundle)
    if not folder.is_dir():
        with locked(folder.with_name(f"{bundle}.lock")):
            if not folder.is_dir():
                _unpack(Path(archive) if archive else home / "bundles" / f"{bundle}.tar.gz", folder)
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    if not archive.exists():
        raise StorageError(f"the code bundle {folder.name[:12]} is not on this machine")
    unpack_bundle(archive, folder, expected=folder.name)


def private_copy(source: Path, target: Path) -> None:
    """Copies the content of `source` to `target`, which is a new or empty folder. Links are copied as links.

    On a file system that supports it (Btrfs, XFS, bcachefs), the copy and the source share blocks until one
    of them is changed. Writing to the copy never changes the source.
    """
    shutil.copytree(source, target, symlinks=True, copy_function=_copy, dirs_exist_ok=True)


def _copy(source: str, target: str) -> None:
    if clone(source, target):
        shutil.copystat(source, target)
    else:  # cloning fails if the file system cannot clone, or between two file systems
        shutil.copy2(source, target)


_READY = "gridmill-ready"
_LAST_LINES = 12
_UNANSWERED = re.compile(
    r"Could not fetch URL (?!.*\b4\d\d Client Error)|HTTP error (5\d\d|429)|connection broken by"
    r"|(ReadTimeout|ConnectTimeout|ConnectionReset|IncompleteRead)Error|Temporary failure in name resolution"
)
"""Matches lines of pip's log about a failed network or package index. pip itself continues without such an
index, and then reports that the package does not exist."""
_KILLED = {
    code: number.name
    for number in (signal.SIGKILL, signal.SIGTERM)
    # a child has the first exit code, a shell the second, and pip the third for its own child
    for code in (-number, 128 + number, 256 - number)
}
_LOG_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\S+\s*")
_FULL = "No space left on device"
_SHOWN = 300
_NOISE = ("[notice]", "Looking in links", "Looking in indexes", "is ignored: either a non-existing path")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """A requirements file, its text, and the bundle that contains it. `locked` are exact versions of packages
    (`name==version`) that the environment must have if it has these packages."""

    file: Path
    text: str
    bundle: str
    locked: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Returns the name of the environment. The same text and the same Python version give the same name.

        If the text of the requirements refers to other files of the project, the name depends on the bundle
        too.
        """
        made_of = [platform.python_implementation(), platform.python_version(), self.text]
        if _REFERS_TO_FILES.search(self.text):
            made_of.append(self.bundle)
        return hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:32]

    @property
    def locked_key(self) -> str:
        """Returns the name of an environment that has the versions in `locked`."""
        return hashlib.sha256("\n".join((self.key, *self.locked)).encode()).hexdigest()[:32]

    @property
    def constraints(self) -> str:
        """Returns the text of the constraints for pip. Requirements with hashes name exact versions
        themselves, and pip accepts no constraints without hashes beside them."""
        return "" if "--hash" in self.text else "".join(f"{one}\n" for one in self.locked)


_REFERS_TO_FILES = re.compile(
    r"^\s*(-[rce]\b|--(requirement|constraint|editable)\b|[./]|\S+/|.*@\s*file:)", re.M
)


def ready_environment(home: Path, requirements: Requirements) -> Path:
    """Returns the folder of the Python environment. The first call builds the environment, and other callers
    wait until it is complete. With locked versions, an environment of the same requirements is used only if
    it has these versions.

    If an environment is incomplete (the mark file inside it is missing), it is built again. Raises
    InputError with the last lines that pip printed, InstallError if the package index did not answer or the
    installer was killed, and StorageError if the disk is full.
    """
    folder = home / "cache" / "environments" / requirements.key
    if requirements.constraints and not _has_locked(folder, requirements.locked):
        folder = folder.with_name(requirements.locked_key)
    mark = folder / _READY
    if not mark.exists():
        _show("waiting for another job that builds this environment")
        with locked(folder.with_name(f"{folder.name}.lock")):
            if not mark.exists():
                _build(folder, requirements)
                mark.touch()
        _report({"type": "progress", "done": 0, "phase": ""})
    return folder


def _has_locked(folder: Path, locked: tuple[str, ...]) -> bool:
    """Returns whether the environment is complete and has exactly the locked versions."""
    if not (folder / _READY).exists():
        return False
    places = [str(place) for place in folder.glob("lib/python*/site-packages")]
    return set(locked) <= {f"{one.name.lower()}=={one.version}" for one in distributions(path=places)}


def _build(folder: Path, requirements: Requirements) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _log_line(f"{BEGUN} {folder.name[:12]} (once; other jobs reuse it)\n")
    _show("python -m venv")
    pip = _make_empty(folder)
    log = folder / "pip.log"
    install = [*pip, "install", "--no-input", "--log", str(log), "-r", str(requirements.file)]
    if requirements.constraints:
        constraints = folder / "gridmill-constraints.txt"
        constraints.write_text(requirements.constraints, "utf-8")
        install += ["-c", str(constraints)]
    progress, over = PipProgress(), threading.Event()
    threading.Thread(target=_show_unpacking, args=(folder, progress, over), daemon=True).start()
    try:
        _run(install, cwd=requirements.file.parent, log=log, progress=progress)
    finally:
        over.set()
    log.unlink(missing_ok=True)
    _log_line(f"{ENDED} {folder.name[:12]}\n")


def _make_empty(folder: Path) -> list[str]:
    """Makes an environment without packages, and returns the pip command that installs packages into it. The
    command uses Gridmill's own pip if there is one, because installing a new pip takes seconds."""
    if find_spec("pip") is None:
        _run([sys.executable, "-m", "venv", str(folder)])
        return [str(folder / "bin" / "python"), "-m", "pip"]
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    return [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]


class PipProgress:
    """Derives the progress of pip from the lines that pip prints. Because pip first resolves dependencies,
    the number of packages grows until pip starts the downloads."""

    def __init__(self) -> None:
        self._collected: dict[str, None] = {}
        self._loaded: dict[str, None] = {}
        self.unpacking = 0

    def feed(self, line: str) -> str:
        """Returns the present step of pip, for example `pip install numpy (3 of 12 packages)`, or an empty
        text if the line shows no progress."""
        if match := _INSTALLING.match(line):
            self.unpacking = match[1].count(",") + 1
            return f"pip install, unpacking (0 of {show_count(self.unpacking, 'package')})"
        if match := _COLLECTING.match(line):
            self._collected[match[1]] = None
        elif match := _LOADING.search(line):
            self._loaded[match[1].lower()] = None
        else:
            return ""
        total = max(len(self._collected), len(self._loaded))
        return f"pip install {match[1]} ({len(self._loaded)} of {show_count(total, 'package')})"


def _show_unpacking(folder: Path, progress: PipProgress, over: threading.Event) -> None:
    """Shows the number of unpacked packages until `over` is set, because pip prints nothing while it
    unpacks."""
    before = _packages_in(folder)
    while not over.wait(_POLL_SECONDS):
        if progress.unpacking:
            done = min(progress.unpacking, _packages_in(folder) - before)
            _show(f"pip install, unpacking ({done} of {show_count(progress.unpacking, 'package')})")


def _packages_in(folder: Path) -> int:
    return sum(1 for _ in folder.glob("lib/python*/site-packages/*.dist-info"))


_POLL_SECONDS = 1.0
_COLLECTING = re.compile(r"\s*Collecting ([A-Za-z0-9._-]+)")
_LOADING = re.compile(
    r"(?:Downloading|Using cached|Processing)\s(?:\S*/)?([A-Za-z0-9._]+)-[^/\s]*\.(?:whl|tar\.gz|zip)(?=\s|$)"
)
_INSTALLING = re.compile(r"\s*Installing collected packages: (.+)")


def _run(
    argv: list[str], cwd: Path | None = None, log: Path | None = None, progress: PipProgress | None = None
) -> None:
    """Runs an installer. `log` is the path of the log file of the installer, which contains more than the
    installer prints. `progress` reads the printed lines."""
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with subprocess.Popen(
        argv,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",  # building a package may print text that is not UTF-8
    ) as process:
        for line in process.stdout or ():
            if not any(noise in line for noise in _NOISE):
                last.append(line)
                _log_line(line)
                if progress is not None and (at := progress.feed(line)):
                    _show(at)
    if process.returncode != 0:
        raise _failure(process.returncode, "".join(last).rstrip(), _unanswered(log))


def _unanswered(log: Path | None) -> str:
    """Returns the first line of the log which reports that a package index did not answer, or an empty text
    if there is none."""
    if log is None or not log.exists():
        return ""
    with log.open(errors="replace") as lines:
        found = next((line for line in lines if _UNANSWERED.search(line)), "")
    return _LOG_TIME.sub("", found).strip()[:_SHOWN]


def _failure(code: int, last: str, unanswered: str) -> GridmillError:
    """Returns the error for the installer's exit code, the last lines that it printed, and the line from its
    log."""
    if code in _KILLED:
        return InstallError(
            f"the installer of the environment was killed by {_KILLED[code]}",
            hint="Another program killed the installer, or the machine ran out of memory.",
        )
    if _FULL in last:
        return StorageError(f"the environment could not be built, because the disk is full:\n{last}")
    if unanswered:
        return InstallError(
            f"the package index did not answer: {unanswered}",
            hint="If this machine cannot reach the package index, set PIP_INDEX_URL or PIP_FIND_LINKS where "
            "pods run.",
        )
    return InputError(
        f"the environment could not be built:\n{last}",
        hint="Correct the requirements file. The job's log has the whole output of pip.",
    )


def _log_line(text: str) -> None:
    _report({"type": "log", "text": text})


def _show(at: str) -> None:
    """Reports progress while the Python environment is being built. The terminal, the command `status` and
    the report show this progress."""
    _report({"type": "progress", "done": 0, "phase": ENVIRONMENT, "note": f"building environment: {at}"})


def _report(body: dict[str, object]) -> None:
    os.write(EVENTS_FD, (json.dumps(body) + "\n").encode())
