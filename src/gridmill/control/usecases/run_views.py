"""This module makes views of whole runs. The size of a view in bytes is limited, whatever the number of jobs
is.

The jobs to show are chosen in one pass over all jobs of a run. A view is used again while it is valid. For a
run with many jobs that change continually, a view may be a moment old, so that all readers together use at
most a twentieth of a processor.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import chain, islice

from gridmill.codec import encode
from gridmill.control.catalog import BoundedCache
from gridmill.control.node import ControlNode
from gridmill.control.steps.output_folders import part_id
from gridmill.control.usecases.views import (
    Attempts,
    attempts_of,
    attempts_of_jobs,
    is_behind,
    job_views,
)
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.graph import critical_path
from gridmill.domain.pod_protocol import event_id
from gridmill.domain.run import JobRun, Run
from gridmill.domain.states import URGENCY, JobState
from gridmill.domain.views import JobView, RunView
from gridmill.errors import NotFoundError
from gridmill.ports.pages import MOST_ITEMS, PAGE_BYTES
from gridmill.ports.store import Order

SHOWN_JOBS, CHOSEN_JOBS = 100, 40
"""The largest number of jobs in the view of a run, and the number of jobs that are chosen if the run has
more jobs."""
_KEPT_VIEWS = 32
_UNCHANGED_SECONDS = 0.1
"""The seconds for which a view is valid while nothing is committed. Progress and reasons in a view change
without a commit."""
_LOCK_SECONDS = 0.01
"""A reader waits at most this long for a tick that runs, if the view in memory may be used meanwhile."""
_COST, _LONGEST_SECONDS = 40, 2.0
"""The largest age of a view of a run with many jobs: this many times the time that it took to make the view,
and at most this many seconds. After half of the largest age of a view, one reader makes the view again,
while all other readers get the old view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenJobs:
    """The jobs that the view of a run shows, most urgent first, with the parts of these jobs, and the number
    of all jobs in each state."""

    jobs: Sequence[JobRun]
    parts: Mapping[str, Sequence[JobRun]]
    counts: Mapping[JobState, int]

    @property
    def is_whole(self) -> bool:
        """Whether the view shows all jobs of the run."""
        return len(self.jobs) == sum(self.counts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewLimit:
    """The number of jobs in the view of a run. A run with at most `all_of` jobs is shown completely. If a
    run has more jobs, `chosen` of its jobs are shown."""

    all_of: int
    chosen: int


SHOWN = ViewLimit(all_of=SHOWN_JOBS, chosen=CHOSEN_JOBS)


def choose_jobs(job_runs: Iterable[JobRun], limit: ViewLimit = SHOWN) -> ChosenJobs:
    """Return the jobs of a run to show. Failed jobs come first, up to half of the shown jobs, and all other
    jobs follow by urgency."""
    counts = Counter[JobState]()
    by_state: dict[JobState, list[JobRun]] = {state: [] for state in URGENCY}
    parts: dict[str, list[JobRun]] = {}
    for job in job_runs:
        if job.part is not None:
            parts.setdefault(job.part.of, []).append(job)
            continue
        counts[job.state] += 1
        if len(by_state[job.state]) < limit.all_of:
            by_state[job.state].append(job)
    most = limit.all_of if counts.total() <= limit.all_of else limit.chosen
    failed = by_state[JobState.FAILED]
    chosen = [*islice(chain(failed[: most // 2], _without(by_state, failed, most // 2)), most)]
    return ChosenJobs(
        jobs=chosen, parts={job.id: _present(job, parts.get(job.id, ())) for job in chosen}, counts=counts
    )


def _without(
    by_state: Mapping[JobState, Sequence[JobRun]], failed: Sequence[JobRun], taken: int
) -> Iterator[JobRun]:
    for state, jobs in by_state.items():
        yield from failed[taken:] if state == JobState.FAILED else jobs


def _present(job: JobRun, parts: Iterable[JobRun]) -> Sequence[JobRun]:
    """Return the current parts of a job, in order."""
    numbered = [(part.part.number, part) for part in parts if part.part is not None]
    return [part for number, part in sorted(numbered, key=lambda one: one[0]) if number < job.parts]


class _KeptView:
    """A view in memory, with the number of commits when the view was made, and the time until which the view
    is valid after further commits. The view is encoded once for all readers."""

    def __init__(self, view: RunView, commits: int, made: float, until: float) -> None:
        self.view, self.commits, self.made, self.until = view, commits, made, until
        self._body = self._short = b""

    def as_seen(self, since: str) -> RunView:
        """Return the view for a reader that already has the version `since`."""
        if since != self.view.version:
            return self.view
        return replace(self.view, jobs=(), critical=None, unchanged=True)

    def encoded(self, since: str) -> bytes:
        """Return the view for a reader that already has the version `since`, as JSON."""
        if since == self.view.version:
            self._short = self._short or encode(self.as_seen(since))
            return self._short
        self._body = self._body or encode(self.view)
        return self._body


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPart:
    """The records that were read from the store for a view, and the seconds that this took: the jobs of a
    finished run, and the attempts of a run with few jobs."""

    ended: tuple[Run, ChosenJobs] | None
    attempts: Attempts | None
    seconds: float


class RunViews:
    """An object that makes views of runs for readers in several threads."""

    def __init__(self, node: ControlNode) -> None:
        self._node, self._control, self._ledger = node, node.control, node.control.ledger
        self._kept: BoundedCache[_KeptView] = BoundedCache(_KEPT_VIEWS)
        self._renewing: set[str] = set()

    def view(self, run_id: str, *, since: str = "", fresh: bool = False) -> RunView:
        """Return the current state of a run. With `fresh`, the view is made again even if the view in memory
        is still valid. Raises NotFoundError."""
        kept = None if fresh else self._right(run_id)
        return (kept or self._made(run_id, fresh=fresh)).as_seen(since)

    def ready(self, run_id: str, since: str) -> bytes | None:
        """Return the encoded view of an active run if the view in memory is still valid. This method does no
        work, so a server may call it in its event loop. If the method returns None, the caller has to call
        `encoded` in a thread."""
        kept, run = self._kept.get(run_id), self._ledger.snapshot.runs.get(run_id)
        if kept is None or run is None:
            return None
        now = self._control.clock.monotonic()
        if not self._is_unchanged(kept, now):
            if now >= kept.until or run != kept.view.run:
                return None
            if now > (kept.made + kept.until) / 2 and run_id not in self._renewing:
                self._renewing.add(run_id)
                return None
        return kept.encoded(since)

    def encoded(self, run_id: str, since: str) -> bytes:
        """Return the view of a run as JSON. The view is made again if the view in memory is too old. Raises
        NotFoundError."""
        renews = run_id in self._renewing
        try:
            kept = None if renews else self._right(run_id)
            return (kept or self._made(run_id, fresh=False, renews=renews)).encoded(since)
        finally:
            self._renewing.discard(run_id)

    def _is_unchanged(self, kept: _KeptView, now: float) -> bool:
        return kept.commits == self._node.commits and now <= kept.made + _UNCHANGED_SECONDS

    def _right(self, run_id: str) -> _KeptView | None:
        """Return the view in memory, if it is still valid."""
        kept, now = self._kept.get(run_id), self._control.clock.monotonic()
        if kept is None or self._is_unchanged(kept, now):
            return kept
        if now >= kept.until:
            return None
        run = self._ledger.snapshot.runs.get(run_id) or self._ledger.read(Run, run_id)
        return kept if run == kept.view.run else None

    def _made(self, run_id: str, *, fresh: bool, renews: bool = False) -> _KeptView:
        """Make the view of a run again. While a tick runs, the view in memory is used if nothing was
        committed since it was made, or if it `renews` a view that is still valid."""
        read, began = self.read(run_id, SHOWN), self._control.clock.monotonic()
        is_locked = not fresh and self._node.lock.acquire(timeout=_LOCK_SECONDS)
        if not fresh and not is_locked and (kept := self._meanwhile(run_id)) is not None:
            return kept
        if not is_locked:
            self._node.lock.acquire()
        try:
            if not (fresh or renews) and (kept := self._right(run_id)) is not None:
                return kept  # another reader made the view while this reader waited for the lock
            commits, waited = self._node.commits, self._control.clock.monotonic() - began
            view = self.make(run_id, read, SHOWN)
            now = self._control.clock.monotonic()
            lasts = min(_LONGEST_SECONDS, _COST * (read.seconds + now - began - waited))
            until = now + lasts if view.left_out else now
            kept = self._kept[run_id] = _KeptView(view, commits, now, until)
            return kept
        finally:
            self._node.lock.release()

    def _meanwhile(self, run_id: str) -> _KeptView | None:
        """Return the view in memory that readers may use while a tick runs, if there is one."""
        kept, now = self._kept.get(run_id), self._control.clock.monotonic()
        if kept is None or now > kept.made + _LONGEST_SECONDS:
            return None
        return kept if kept.commits == self._node.commits else self._right(run_id)

    def report(self, run_id: str, limit: ViewLimit) -> RunView:
        """Return a view with more jobs, for the report. Raises NotFoundError."""
        read = self.read(run_id, limit)
        with self._node.lock:
            return self.make(run_id, read, limit)

    def read(self, run_id: str, limit: ViewLimit) -> "StoredPart":
        """Return the records that a view needs from the store, read before the node's lock is taken."""
        began = self._control.clock.monotonic()
        ended, attempts = None, None
        if run_id not in self._ledger.snapshot.runs:
            ended = self._ended(run_id, limit)
            few = ended[1].is_whole
        else:
            few = self._ledger.snapshot.lines.count_of(run_id) <= limit.all_of
        if few:
            attempts = attempts_of(self._ledger.store, run_id)
        return StoredPart(ended=ended, attempts=attempts, seconds=self._control.clock.monotonic() - began)

    def make(self, run_id: str, read: "StoredPart", limit: ViewLimit) -> RunView:
        """Make the view of a run. The caller must hold the node's lock."""
        last_event = self._ledger.store.last_event(run_id)
        run = self._ledger.snapshot.runs.get(run_id)
        if run is not None:
            chosen = choose_jobs(self._ledger.snapshot.lines.each_of(run_id), limit)
        else:
            run, chosen = read.ended or self._ended(run_id, limit)
        jobs = self._jobs(run_id, chosen, read.attempts)
        whole = chosen.is_whole and len(jobs) == len(chosen.jobs)
        ordered = sorted(jobs, key=lambda view: (view.job.order, view.job.id))
        now = self._control.timeline.now()
        view = RunView(
            run=run,
            jobs=tuple(ordered),
            critical=critical_path([view.job for view in ordered], now) if whole else None,
            counts=dict(chosen.counts),
        )
        mark = blake2b(encode(view), digest_size=9).hexdigest()
        return replace(view, version=mark, last_event=event_id(last_event) if last_event else "")

    def _jobs(self, run_id: str, chosen: ChosenJobs, attempts: Attempts | None) -> Sequence[JobView]:
        """Return the views of the chosen jobs, as many as fit into a page."""
        every = [*chosen.jobs, *(part for parts in chosen.parts.values() for part in parts)]
        if not chosen.is_whole:
            attempts = attempts_of_jobs(self._ledger, every)
        elif attempts is None or any(is_behind(job, attempts.get(job.id, ())) for job in every):
            attempts = attempts_of(self._ledger.store, run_id)
        return [*_that_fit(job_views(self._control, chosen.jobs, chosen.parts, attempts), PAGE_BYTES)]

    def of_jobs(self, job_runs: Sequence[JobRun]) -> tuple[JobView, ...]:
        """Return views of some jobs of any runs."""
        attempts = attempts_of_jobs(self._ledger, job_runs)
        with self._node.lock:
            snapshot = self._ledger.snapshot
            now = [snapshot.job_runs.get(job.id, job) for job in job_runs]
            parts = {job.id: [*self._parts(job)] for job in now if job.parts}
            behind = [job for job in now if is_behind(job, attempts.get(job.id, ()))]
            every = [*behind, *(part for some in parts.values() for part in some)]
            return job_views(self._control, now, parts, {**attempts, **attempts_of_jobs(self._ledger, every)})

    def _parts(self, job: JobRun) -> Iterator[JobRun]:
        for number in range(job.parts):
            name = part_id(job.id, number)
            part = self._ledger.snapshot.job_runs.get(name) or self._ledger.read(JobRun, name)
            if part is not None:
                yield part

    def _ended(self, run_id: str, limit: ViewLimit) -> tuple[Run, ChosenJobs]:
        """Return the view of a finished run, with its jobs read page by page. The caller needs no lock."""
        record = self._ledger.store.get(Run, run_id)
        if record is None or not isinstance(record.noun, Run):
            raise NotFoundError(f"there is no run {run_id!r}", hint="`gridmill list runs` shows them.")
        return record.noun, choose_jobs(self._stored(run_id), limit)

    def _stored(self, run_id: str) -> Iterator[JobRun]:
        after = None
        while True:
            rows = self._ledger.store.page(
                JobRun, order=Order.OLDEST_FIRST, after=after, limit=MOST_ITEMS, parent=run_id
            )
            yield from (record.noun for _, record in rows if isinstance(record.noun, JobRun))
            if len(rows) < MOST_ITEMS:
                return
            after = rows[-1][0]


def _that_fit(views: Sequence[JobView], size: int) -> Iterator[JobView]:
    """Return as many of the first views as have a total size of at most `size` bytes, but at least one
    view."""
    for number, view in enumerate(views):
        size -= len(encode(view))
        if size < 0 and number:
            return
        yield view
