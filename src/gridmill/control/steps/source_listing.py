"""This module lists the files of sources in the background, because a folder with many files or on a slow
server takes time."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial

from gridmill.control.state import BackgroundReads, PendingReads
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job
from gridmill.domain.source import Source
from gridmill.errors import GridmillError, StorageError
from gridmill.ports.storage import FileStat, Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceListing:
    """The files of a job's source with the hashes of their contents, or the error with which listing them
    failed. A job without a source has no listing. `waiting` is a text about the number of files that may
    still change; empty if there are no such files."""

    files: tuple[FileStat, ...] = ()
    waiting: str = ""
    error: GridmillError | None = None

    def files_or_raise(self) -> tuple[FileStat, ...]:
        """Return the files of the source. Raises the error of the listing."""
        if self.error is not None:
            raise self.error
        return self.files

    @property
    def size_bytes(self) -> int:
        """The total size of the files in bytes."""
        return sum(file.size_bytes for file in self.files)


NOTHING = SourceListing()


def list_sources(storage: Storage, jobs: Iterable[Job], folder: str, now: float) -> dict[str, SourceListing]:
    """Return the files in the sources of these jobs at the time `now`, by job. Listing the files may take
    long, so the caller must not hold the node's lock."""
    return {job.name: _list(storage, job.sink.source, folder, now) for job in jobs if job.sink is not None}


def _list(storage: Storage, source: Source, folder: str, now: float) -> SourceListing:
    try:
        found = storage.describe_source(source, folder)
        settled = tuple(file for file in found if not source.waits(file.ctime_ns, now))
        files = storage.hash_sources(settled, f"{folder} {' '.join(source.local_paths)}")
        return SourceListing(files=files, waiting=source.waiting_text(len(found) - len(settled)))
    except StorageError:  # the store failed, not the source: the listing is repeated
        raise
    except GridmillError as error:
        return SourceListing(error=error)


def listed(
    reads: BackgroundReads,
    key: str,
    jobs: Iterable[Job],
    folder: str,
    *,
    then: Callable[[], None] = lambda: None,
) -> Mapping[str, SourceListing] | None:
    """Return the files in the sources of these jobs. The result is None while the sources are being listed
    in the background. When the listing has ended, the function `then` is called, and the next tick gets the
    result. The listing for each `key` is returned only once. Raises unexpected errors of the listing."""
    local = [job for job in jobs if job.sink is not None and job.sink.source.local_paths]
    if not local:
        return {}
    if key not in reads.pending.listings:
        look = partial(list_sources, reads.storage, local, folder, reads.clock.now())
        reads.runner.submit(f"sources of {key}", look, partial(_keep, reads.pending, key, then))
    listing = reads.pending.listings.pop(key, None)
    return listing.result() if listing is not None else None


def _keep(
    pending: PendingReads, key: str, then: Callable[[], None], future: Future[dict[str, SourceListing]]
) -> None:
    pending.listings[key] = future
    then()
