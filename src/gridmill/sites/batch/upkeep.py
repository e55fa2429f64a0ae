"""The regular work of a batch site besides its attempts: deleting old data from the bucket, and looking for
jobs of this home that the home does not know."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta

from gridmill.errors import GridmillError
from gridmill.sites.batch.attempt_record import BatchAttemptRecord
from gridmill.sites.batch.context import SiteContext
from gridmill.sites.batch.manifest import ATTEMPTS, CHUNKS, chunks_folder

_LOG = logging.getLogger(__name__)
_SWEEP_SECONDS = 6 * 3600.0
_LOOK_SECONDS = 300.0
"""The time between two lists of all jobs of the home at the service."""
_STARTING_SECONDS = 3600.0
"""The longest time between the choice of the folder of an attempt and the record of the attempt."""


class Upkeep:
    """The regular work of a site. Only the thread that polls the service calls `turn`."""

    def __init__(
        self,
        context: SiteContext,
        known_names: Callable[[], Collection[str]],
        now: Callable[[], float] = time.time,
    ) -> None:
        """`known_names` returns the names of the jobs of all attempts that the home has."""
        self._context, self._known_names, self._now = context, known_names, now
        self._sweep_due = context.monotonic() + _SWEEP_SECONDS
        self._look_due = context.monotonic()
        self._seen: frozenset[str] = frozenset()
        self.problems: Mapping[str, str] = {}
        """The unknown jobs, in words by their ids."""

    def turn(self, open_attempts: Collection[BatchAttemptRecord]) -> None:
        """Do the work that is due. `open_attempts` are the attempts that have not ended."""
        now = self._context.monotonic()
        if now >= self._sweep_due:
            self._sweep_due = now + _SWEEP_SECONDS
            self.sweep(open_attempts)
        if now >= self._look_due:
            self._look_due = now + _LOOK_SECONDS
            self.look()

    # --- data in the bucket

    def sweep(self, open_attempts: Collection[BatchAttemptRecord]) -> None:
        """Delete data that no open attempt uses: old folders of chunks, and objects of attempts for which the
        bucket did not answer when the attempt ended."""
        try:
            self._sweep_chunks({one.chunks for one in open_attempts})
            self._sweep_attempts(open_attempts)
        except GridmillError as error:
            _LOG.info("bucket_not_tidied site=%s reason=%s", self._context.site.name, error)

    def _sweep_chunks(self, used: set[str]) -> None:
        exchange, keep_seconds, now = self._context.exchange, self._context.parsed.keep_seconds, self._now()
        kept = used | {chunks_folder(time, keep_seconds) for time in (now, now - _STARTING_SECONDS)}
        for folder in self._folders() - kept:
            exchange.delete_chunks(folder)
        if "" not in used:  # of versions of Gridmill without folders of chunks
            exchange.chunks.clear(self._old())

    def _folders(self) -> set[str]:
        names = (name for page in self._context.exchange.bucket.names(CHUNKS) for name in page)
        return {"/".join(name.split("/")[:2]) for name in names}

    def _sweep_attempts(self, open_attempts: Collection[BatchAttemptRecord]) -> None:
        kept = {one.order.attempt_id for one in open_attempts}
        kept |= {one.order.gang.id for one in open_attempts if one.order.gang is not None}
        bucket = self._context.exchange.bucket
        for name in tuple(bucket.older(self._old(), ATTEMPTS)):
            if name.split("/")[1] not in kept:
                bucket.remove(name)

    def _old(self) -> datetime:
        return datetime.fromtimestamp(self._now(), UTC) - timedelta(seconds=self._context.parsed.keep_seconds)

    # --- jobs at the service

    def look(self) -> None:
        """Look for jobs of this home that the home does not know, for example because its records were
        restored from an old copy. A job counts as unknown if two consecutive lists show the job, because
        lists show jobs for some time after their end. Gridmill does not end these jobs: another copy of the
        home may follow them."""
        try:
            listed = self._context.service.open_jobs(self._context.mark)
        except GridmillError as error:
            _LOG.info("jobs_not_listed site=%s reason=%s", self._context.site.name, error)
            return
        known = self._known_names()  # after the list, so that it contains all jobs of the list
        unknown = {one.id: one for one in listed if one.name not in known}
        site = self._context.site.name
        self.problems = {
            id: f"site {site}: the home does not know job {one.name} ({one.status}), which has the mark of "
            f"this home. The job costs money until it ends. To end it: {one.end_command}"
            for id, one in unknown.items()
            if id in self._seen
        }
        self._seen = frozenset(unknown)
