"""Folders of a pod and its attempts: what lies where, and what an attempt leaves."""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from gridmill.codec import decode, encode
from gridmill.errors import InputError
from gridmill.model.message import Order, Outcome
from gridmill.model.noun import dataclass
from gridmill.model.uri import below

_FEW = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFolder:
    """`path` is the pod's own folder, `home` where attempts and caches are."""

    path: Path
    home: Path

    @property
    def starts(self) -> Path:
        """One line per attempt that was started: `attempt_id pid start-time` (pid 0: forked elsewhere)."""
        return self.path / "attempts"

    @property
    def trash(self) -> Path:
        """What is to be removed when there is time."""
        return self.path / "trash"

    def attempt(self, attempt_id: str) -> Path:
        """The folder of an attempt."""
        return self.home / "attempts" / attempt_id


def create_attempt_folder(folder: Path, order: Order) -> None:
    """Make it with its order. Raises FileExistsError when the attempt was started before, OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)
    (folder / "work").mkdir()
    descriptor = os.open(folder / "order.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(encode(order))


def own_outcome(folder: Path) -> Outcome | None:
    """What the job's own process wrote about its end, if it did."""
    try:
        return decode((folder / "outcome.json").read_bytes(), Outcome)
    except (OSError, InputError):
        return None


def drop_empty_output(root: str, uri: str) -> None:
    """Remove the output folder that nothing was written into, and parents that are empty with it."""
    folder = below(root, uri)
    try:
        folder.rmdir()
    except OSError:
        return


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    """Every file below and its size; links are not followed."""
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
    """True when removing it takes no time worth speaking of."""
    return len(list(islice(_files(folder), _FEW))) < _FEW
