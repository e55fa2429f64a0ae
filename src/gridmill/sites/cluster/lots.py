"""Where in buckets this home has put something, over restarts: there it looks for what still lies there."""

from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from threading import Lock

from gridmill.codec import decode, encode
from gridmill.errors import InputError, StorageError
from gridmill.model.noun import dataclass
from gridmill.private_files import write_private


@dataclass(frozen=True, slots=True, kw_only=True)
class Lot:
    """What is below a bucket's `url`: in `folder` what one process put there for one use; without a folder
    what is kept. `endpoint` is where the bucket's server is (empty: the cloud's own); `over`: since when
    (Unix) that process is known to be gone."""

    url: str
    endpoint: str = ""
    folder: str = ""
    over: float | None = None


class Lots:
    """One file each, written before the first object is put. Safe to use from several threads and
    processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun: set[Lot] = set()
        self._lock = Lock()

    def begin(self, lot: Lot) -> None:
        """Something is about to be put there. May be repeated. Raises StorageError."""
        with self._lock:
            if lot not in self._begun:
                self._write(lot)
                self._begun.add(lot)

    def over(self, lot: Lot, now: float) -> Lot:
        """The process that put it there is gone. May be repeated. Raises StorageError."""
        if lot.over is None or lot.over > now:  # the clock was set back
            lot = replace(lot, over=now)
            self._write(lot)
        return lot

    def _write(self, lot: Lot) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_private(self._path(lot), encode(lot))
        except OSError as error:
            raise StorageError(f"cannot be written: {error.strerror}", place=str(self._folder)) from error

    def all(self) -> tuple[Lot, ...]:
        """Those that were begun, by whatever process, and are not done."""
        found: list[Lot] = []
        for path in sorted(self._folder.glob("*.json")):
            with suppress(OSError, InputError):  # damaged: its objects go by their age
                found.append(decode(path.read_bytes(), Lot))
        return tuple(found)

    def done(self, lot: Lot) -> None:
        """Nothing is there, and nothing will be, unless this process has begun it. May be repeated."""
        with self._lock, suppress(OSError):  # then it is looked at again
            if lot not in self._begun:
                self._path(lot).unlink(missing_ok=True)

    def end(self, lot: Lot) -> None:
        """Nothing is there, and this process puts nothing there any more."""
        with self._lock:
            self._begun.discard(lot)
        self.done(lot)

    def _path(self, lot: Lot) -> Path:
        name = encode(replace(lot, over=None))
        return self._folder / f"{sha256(name).hexdigest()[:32]}.json"
