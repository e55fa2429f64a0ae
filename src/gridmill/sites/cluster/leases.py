"""For how long a farm keeps each pod without a word of us: what was asked for then, whatever is asked now."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from threading import Lock

from gridmill.codec import decode, encode
from gridmill.errors import InputError, StorageError
from gridmill.model.noun import dataclass
from gridmill.private_files import write_private

MARGIN_SECONDS = 60.0
"""A question that was under way may have renewed the lease, and the farm's pods count it from when it sees
that it is cut off."""


def is_over(silent_seconds: float, lease_seconds: float) -> bool:
    """Whether a farm that has not heard of us for so long has surely ended a pod of that lease, or that pod
    itself, whatever became of the farm's controller meanwhile."""
    return silent_seconds >= lease_seconds + MARGIN_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is in the file: seconds by pod."""

    seconds: Mapping[str, float] = field(default_factory=dict)


class Leases:
    """Of the pods at one farm, over restarts. Safe to call from several threads."""

    def __init__(self, path: Path, usual_seconds: float) -> None:
        """`usual_seconds` are those of pods that are brought up now, and of those that are not known."""
        self._path, self._usual_seconds = path, usual_seconds
        self._lock = Lock()
        try:
            self._seconds = dict(decode(path.read_bytes(), Kept).seconds)
        except (OSError, InputError):
            self._seconds = {}

    def asked(self, pods: Iterable[str]) -> float:
        """The lease (seconds) with which to ask for these pods: that with which they were asked for first.
        Raises StorageError."""
        with self._lock:
            known = [self._seconds[pod] for pod in pods if pod in self._seconds]
            seconds = max(known, default=self._usual_seconds)
            new = {pod: seconds for pod in pods if pod not in self._seconds}
            if new:
                self._write(self._seconds | new)
            return seconds

    def of(self, pod: str) -> float:
        """In seconds."""
        with self._lock:
            return self._seconds.get(pod, self._usual_seconds)

    def over(self, pods: Iterable[str]) -> None:
        """These are gone. Raises StorageError."""
        with self._lock:
            gone = set(pods)
            left = {pod: seconds for pod, seconds in self._seconds.items() if pod not in gone}
            if left != self._seconds:
                self._write(left)

    def _write(self, seconds: dict[str, float]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_private(self._path, encode(Kept(seconds=seconds)))
        except OSError as error:
            raise StorageError(f"cannot be written: {error.strerror}", place=str(self._path)) from error
        self._seconds = seconds
