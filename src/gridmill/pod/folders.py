"""The folders of a pod and its attempts, and the lock and mark files of the pod.

The lock shows that the pod is alive. The mark files show that the pod was started and that the pod has
ended.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from gridmill.codec import decode, encode
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import JobKind
from gridmill.domain.pod_protocol import AttemptOrder, AttemptOutcome
from gridmill.domain.storage_uri import below
from gridmill.errors import GridmillError, InputError
from gridmill.jobs.context import CODE
from gridmill.pod.empty_folders import ATTEMPT, INNER, OUTPUT, EmptyFolders
from gridmill.pod.inputs import NO_FILES, input_folders

FEW = 200
_SMALL_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFolder:
    """The paths of a pod's files. `path` is the pod's own folder, and `home` is the folder that contains
    attempts and caches."""

    path: Path
    home: Path

    @property
    def starts(self) -> Path:
        """Returns the path of the file with one line for each started attempt: `attempt_id pid start-time`.
        The pid is 0 if another process forked the attempt's process."""
        return self.path / "attempts"

    @property
    def emptied(self) -> Path:
        """Returns the folder in which emptied folders of ended attempts are kept."""
        return self.path / "emptied"

    @property
    def trash(self) -> Path:
        """Returns the folder for files that are deleted later."""
        return self.path / "trash"

    def attempt(self, attempt_id: str) -> Path:
        """Returns the folder of an attempt."""
        return Path(f"{self.home}/attempts/{attempt_id}")


def create_attempt_folder(folder: Path, order: AttemptOrder, empties: EmptyFolders) -> None:
    """Makes the folder of the attempt, without the file with its order. Raises FileExistsError if the
    attempt was started before, and OSError."""
    if not folder.parent.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
    empties.make(folder, ATTEMPT, mode=0o700)
    empties.make(f"{folder}/work", INNER)
    if order.job.kind == JobKind.COMMAND:
        empties.make(f"{folder}/work/tmp", INNER)
        empties.make(f"{folder}/work/{CODE}", INNER)
        _make_no_files(order, folder / "work", empties)
        # no error here, because the attempt's process tries again and reports the error
        with contextlib.suppress(OSError, GridmillError):
            create_output(order, empties)


def write_order(folder: Path, order: AttemptOrder) -> None:
    """Writes the order of the attempt to a file once, for the process that executes the attempt. Raises
    OSError."""
    path = folder / "order.json"
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(encode(order))


def _make_no_files(order: AttemptOrder, work: Path, empties: EmptyFolders) -> None:
    """Makes the empty folders that are used as inputs for needed jobs that have no files."""
    if not order.job.needs:
        return
    place = work / NO_FILES
    folders = [folder for folder in input_folders(order, work).values() if folder.parent == place]
    if folders:
        empties.make(place, INNER)
        for folder in folders:
            empties.make(folder, INNER)


def existing_output(order: AttemptOrder) -> Path | None:
    """Returns the path of the output folder of an attempt that has not started, if this path already exists.

    An existing output folder belongs to another attempt that had the same id in a record store which was
    lost. The ranks of a gang share their output folder.
    """
    with contextlib.suppress(GridmillError):  # no error here, because the attempt's process reports the error
        folder = below(order.root, order.output_uri)
        return folder if order.gang is None and os.path.lexists(folder) else None
    return None


def create_output(order: AttemptOrder, empties: EmptyFolders) -> None:
    """Makes the output folder of a command, unless several attempts share the folder. Raises OSError,
    UnsafePathError."""
    if order.gang is not None or order.part is not None:
        return
    folder = below(order.root, order.output_uri)
    if not folder.parent.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        empties.make(folder, OUTPUT)


def own_outcome(folder: Path) -> AttemptOutcome | None:
    """Returns the outcome that the process of the job wrote, or None if it wrote no outcome."""
    try:
        return decode((folder / "outcome.json").read_bytes(), AttemptOutcome)
    except (OSError, InputError):
        return None


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    """Yields every file below the folder with its size. Links are not followed."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path))
        else:
            yield entry.path, entry.stat(follow_symlinks=False).st_size


def has_few_files(folder: Path) -> bool:
    """Returns whether the folder has so few files that removing it takes a negligible time."""
    return len(list(islice(_files(folder), FEW))) < FEW


def is_small(folder: Path) -> bool:
    """Returns whether the folder has only a few small files."""
    sizes = [size for _, size in islice(_files(folder), FEW)]
    return len(sizes) < FEW and sum(sizes) < _SMALL_BYTES


LOCK_FD = "GRIDMILL_POD_LOCK_FD"
"""The environment variable that contains the file descriptor of the lock. The site has taken this lock for
the pod that it starts."""


def acquire_lock(path: Path, *, patience_seconds: float) -> int | None:
    """Takes the lock of the pod and returns its file descriptor, or returns None if the pod is alive.

    The function tries for a while, because observers take the lock for short moments.
    """
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + patience_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() >= until:
                os.close(descriptor)
                return None
            time.sleep(0.01)


LIFELINE_FD = "GRIDMILL_POD_LIFELINE_FD"
"""The environment variable that contains the file descriptor for reading from a pipe. The pod ends when no
process has the other end of this pipe open."""


def inherited_lock() -> int | None:
    """Returns the file descriptor of the lock that a site passed to this process, or None if there is
    none."""
    return _inherited(LOCK_FD)


def inherited_lifeline() -> int | None:
    """Returns the file descriptor of the pipe from a site whose pods end when the site ends, or None if
    there is no such pipe."""
    return _inherited(LIFELINE_FD)


def _inherited(name: str) -> int | None:
    text = os.environ.pop(name, "")
    if not text.isdigit():
        return None
    os.set_inheritable(int(text), False)
    return int(text)


def was_started(path: Path) -> bool:
    """Returns whether the pod was ever started. A pod that was started once never starts again."""
    return (path / "pid").exists()


def mark_started(path: Path, start: int) -> None:
    """Writes the process id of the pod and the start time of this process to the file `pid`."""
    (path / "pid").write_text(f"{os.getpid()} {start}\n")


def has_ended(path: Path) -> bool:
    """Returns whether the pod has ended and no process or file of the pod is left."""
    return (path / "ended").exists()


def mark_ended(path: Path, why: str = "") -> None:
    """Writes the mark file `ended`. The mark file `ended` means that nothing of the pod is left and that the
    pod never starts again. `why` is the reason of the end if the pod did not end by itself."""
    (path / "ended").write_text(why)
