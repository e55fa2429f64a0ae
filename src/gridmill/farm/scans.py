"""Scans the trees below a tenant's root in the background, since large ones take minutes."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from gridmill.domain.farm_protocol import Manifest
from gridmill.domain.storage_uri import below
from gridmill.errors import UnavailableError
from gridmill.farm.unix_users import acting_as
from gridmill.transfer.manifest import HashCache, scan

PATIENCE_SECONDS = 60.0
"""A request is answered within this time, if only with "not known yet": tenants wait for a few minutes at
most."""
MOST_WAITING = 1000
MOST_KEPT = 1000
"""Trees whose file hashes are cached; those read longest ago are evicted first."""


class Scans:
    """Of one source. What files hashed to is kept, so that a tree that was asked for is read once. Safe to
    use from several threads."""

    def __init__(
        self, root: Path, folder: Path, user: int | None, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        """`folder` is ours, below `root` all is the user's."""
        self._root, self._folder, self._user = root, folder, user
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._running: dict[str, Future[Manifest]] = {}

    def scan(self, uri: str) -> Manifest:
        """Of a checked path. Raises UnavailableError while it is not known, to be asked again; as
        `manifest.scan`."""
        running = self._begun(uri)
        wait((running,), self._patience_seconds)
        if not running.done():
            raise UnavailableError(f"{uri} is still being read", hint="Ask again.")
        with self._lock:
            if self._running.get(uri) is running:
                del self._running[uri]
        return running.result()

    def _begun(self, uri: str) -> Future[Manifest]:
        """The one that runs, or that nobody has heard the end of."""
        with self._lock:
            known = self._running.get(uri)
            if known is not None:
                return known
            if len(self._running) >= MOST_WAITING:
                self._running = {one: run for one, run in self._running.items() if not run.done()}
            if len(self._running) >= MOST_WAITING:
                raise UnavailableError("too many folders are being read", hint="Ask again.")
            made = self._running[uri] = Future()
        threading.Thread(target=self._run, args=(uri, made), name="gridmill-scan", daemon=True).start()
        return made

    def _run(self, uri: str, made: Future[Manifest]) -> None:
        try:
            with acting_as(self._user):
                found = scan(below(self._root, uri), cache=self._cache(uri))
            self._tidy()
        except BaseException as error:  # noqa: BLE001  whoever asks hears of it
            made.set_exception(error)
        else:
            made.set_result(found)

    def _tidy(self) -> None:
        kept = sorted(self._folder.glob("*.json"), key=_age, reverse=True)
        for old in kept[MOST_KEPT:]:
            old.unlink(missing_ok=True)

    def _cache(self, uri: str) -> HashCache:
        return _Ours(self._path(uri), ours=None if self._user is None else 0)

    def _path(self, uri: str) -> Path:
        return self._folder / f"{sha256(uri.encode()).hexdigest()}.json"

    def forget(self, uri: str) -> None:
        """It is gone, with all that is below it."""
        with self._lock:
            for known in [one for one in self._running if f"{one}/".startswith(f"{uri}/")]:
                del self._running[known]
        self._path(uri).unlink(missing_ok=True)


def _age(path: Path) -> float:
    """When it was written; what goes meanwhile is old."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


class _Ours(HashCache):
    """Kept by us, of files that are read as somebody else."""

    def __init__(self, path: Path, *, ours: int | None) -> None:
        super().__init__(path)
        self._ours = ours

    def open(self, chunk_bytes: int) -> None:
        """See HashCache."""
        with self._as_us():
            super().open(chunk_bytes)

    def save(self) -> None:
        """See HashCache."""
        with self._as_us():
            super().save()

    @contextmanager
    def _as_us(self) -> Iterator[None]:
        with acting_as(self._ours):
            yield
