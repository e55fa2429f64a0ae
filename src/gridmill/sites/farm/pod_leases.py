"""Stores the lease of each pod at a farm: the lease setting at the time when the pod was requested, even if
the setting has changed since then."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from threading import Lock

from gridmill.codec import decode, encode
from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError, StorageError
from gridmill.private_files import write_private

MARGIN_SECONDS = 60.0
"""The margin in seconds that is added to a lease. A request in flight may have renewed the lease, and the
farm measures the lease from the time when it notices that the connection was lost."""


def is_over(silent_seconds: float, lease_seconds: float) -> bool:
    """Returns whether a pod with this lease has certainly ended after this number of seconds without
    contact. Either the farm ends the pod, or the pod ends itself because the farm's controller has
    failed."""
    return silent_seconds >= lease_seconds + MARGIN_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseFile:
    """The leases that the file contains: the seconds of the lease for each pod."""

    seconds: Mapping[str, float] = field(default_factory=dict)


class PodLeases:
    """Stores the leases of the pods at one farm, so that they are known after a restart. This class is safe
    to call from several threads."""

    def __init__(self, path: Path, usual_seconds: float) -> None:
        """`usual_seconds` is the lease of pods that start now, and of pods without a stored lease."""
        self._path, self._usual_seconds = path, usual_seconds
        self._lock = Lock()
        try:
            self._seconds = dict(decode(path.read_bytes(), LeaseFile).seconds)
        except (OSError, InputError):
            self._seconds = {}

    def lease_seconds(self, pods: Iterable[str]) -> float:
        """Returns the lease in seconds for a request of these pods. A repeated request uses the lease of the
        first request. Raises StorageError."""
        with self._lock:
            lease_values = [self._seconds[pod] for pod in pods if pod in self._seconds]
            seconds = max(lease_values, default=self._usual_seconds)
            new = {pod: seconds for pod in pods if pod not in self._seconds}
            if new:
                self._write(self._seconds | new)
            return seconds

    def of(self, pod: str) -> float:
        """Returns the lease of a pod in seconds."""
        with self._lock:
            return self._seconds.get(pod, self._usual_seconds)

    def over(self, pods: Iterable[str]) -> None:
        """Deletes the stored leases of pods that have ended. Raises StorageError."""
        with self._lock:
            gone = set(pods)
            left = {pod: seconds for pod, seconds in self._seconds.items() if pod not in gone}
            if left != self._seconds:
                self._write(left)

    def _write(self, seconds: dict[str, float]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_private(self._path, encode(LeaseFile(seconds=seconds)))
        except OSError as error:
            raise StorageError(f"cannot be written: {error.strerror}", place=str(self._path)) from error
        self._seconds = seconds
