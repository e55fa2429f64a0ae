"""This module has the use cases that show and follow runs: their jobs, their events and their logs."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from gridmill.codec import encode
from gridmill.control.node import ControlNode
from gridmill.control.usecases.run_views import RunViews
from gridmill.control.usecases.sinks import AlterationUseCases
from gridmill.domain.job_log import LogEntry, offset_of
from gridmill.domain.pod_protocol import Event, sequence_of
from gridmill.domain.run import JobRun, Run
from gridmill.domain.states import JobState, RunState
from gridmill.domain.views import JobView, RunView
from gridmill.errors import InputError, NotFoundError
from gridmill.ports.logs import LogQuery
from gridmill.ports.pages import PAGE_BYTES, PAGE_ITEMS, Page, cut_page, page_request
from gridmill.ports.store import Order

MOST_TAIL_LINES = 1_000_000
_FIRST_EVENTS = 250
"""The number of events in the first read. A further read has as many events as may fit, and at most four
times as many as the read before."""


_VIEWS_AT_ONCE = 50
_NAMED_JOBS = 20


class RunReadingUseCases(AlterationUseCases):
    """The use cases that show and follow runs and their jobs."""

    def __init__(self, node: ControlNode) -> None:
        super().__init__(node)
        self._run_views = RunViews(node)
        self._reading_events = threading.Lock()

    def runs(
        self,
        *,
        pipeline: str | None = None,
        states: tuple[RunState, ...] = (),
        limit: int = PAGE_ITEMS,
        cursor: str | None = None,
    ) -> Page[Run]:
        """Return runs, newest first."""
        request = page_request(int, "runs", limit, cursor, pipeline, states)
        return self._page_by_position(
            Run,
            request,
            Order.NEWEST_FIRST,
            parent=pipeline,
            selects=lambda run: not states or run.state in states,
        )

    def jobs(
        self,
        run_id: str,
        *,
        states: tuple[JobState, ...] = (),
        limit: int = PAGE_ITEMS,
        cursor: str | None = None,
    ) -> Page[JobView]:
        """Return the jobs of a run, each with its parts."""
        request = page_request(int, "jobs", limit, cursor, run_id, states)
        self._check_run(run_id)
        found = self._following(JobRun, Order.OLDEST_FIRST, request.after, run_id)
        chosen = (
            (mark, job)
            for mark, job in found
            if isinstance(mark, int) and job.part is None and (not states or job.state in states)
        )
        return cut_page(request, self._viewed(chosen))

    def _viewed(self, numbered: Iterator[tuple[int, JobRun]]) -> Iterator[tuple[int, JobView]]:
        """Return the views of jobs, made in groups."""
        while some := [*islice(numbered, _VIEWS_AT_ONCE)]:
            views = self._run_views.of_jobs([job for _, job in some])
            yield from zip((mark for mark, _ in some), views, strict=True)

    def job(self, run_id: str, name: str) -> JobView:
        """Return one job of a run."""
        return self._run_views.of_jobs([self._job_run(run_id, name)])[0]

    def _job_run(self, run_id: str, name: str) -> JobRun:
        record = self._ledger.store.get(JobRun, f"{run_id}/{name}")
        if record is None or not isinstance(record.noun, JobRun) or record.noun.part is not None:
            view = self.run(run_id)
            names = [one.job.job.name for one in view.jobs[:_NAMED_JOBS]]
            more = sum(view.states.values()) - len(names)
            hint = f"It has: {', '.join(names)}{f' and {more} more' if more else ''}."
            raise NotFoundError(f"run {run_id} has no job {name!r}", hint=hint)
        return record.noun

    def _check_run(self, run_id: str) -> None:
        if run_id not in self._ledger.snapshot.runs and self._ledger.store.get(Run, run_id) is None:
            raise NotFoundError(f"there is no run {run_id!r}", hint="`gridmill list runs` shows them.")

    def run(self, run_id: str, *, since: str = "") -> RunView:
        """Return a run with its jobs."""
        return self._run_views.view(run_id, since=since)

    def events(
        self,
        run_id: str,
        *,
        job: str | None = None,
        after: str = "",
        limit: int = 1000,
        wait_seconds: float = 0,
    ) -> tuple[Event, ...]:
        """Return the stored events after a given event. If there are no such events, the call waits for new
        events."""
        begin = sequence_of(after)
        self._check_run(run_id)
        if job is not None:
            self._job_run(run_id, job)
        else:
            self._keep_events(run_id)
        deadline = self._control.clock.monotonic() + wait_seconds
        while True:
            seen = self._node.commits
            result = self._events(run_id, job, begin, limit)
            left = deadline - self._control.clock.monotonic()
            if self._node.taken_over is not None:
                raise self._node.taken_over
            if result or left <= 0 or self._node.ending:
                return result
            self._node.wait_for_commit(seen, left)

    def logs(
        self,
        run_id: str,
        *,
        job: str | None = None,
        attempt: str | None = None,
        after: str = "",
        until: int | None = None,
        tail: int | None = None,
        search: str = "",
        limit: int = 1000,
        wait_seconds: float = 0,
    ) -> tuple[LogEntry, ...]:
        """Return the texts of the logs of a run. If there are no such texts, the call waits for new
        texts."""
        if "\n" in search:
            raise InputError(
                "the text to search for has a line break",
                place="search",
                hint="Search for the text of one line.",
            )
        if tail is not None and tail > MOST_TAIL_LINES:
            raise InputError(
                f"{tail} lines are too many to read from the end of a log",
                place="tail",
                hint=f"The maximum is {MOST_TAIL_LINES:,}. To read the lines after an offset, pass `after`.",
            )
        query = LogQuery(
            run_id=run_id, job=job, attempt=attempt, after=offset_of(after), until=until, search=search
        )
        deadline = self._control.clock.monotonic() + wait_seconds
        while True:
            seen = self._node.commits
            logs = self._ledger.logs
            result = tuple(logs.read(query) if tail is None or search else logs.tail(query, tail))
            left = deadline - self._control.clock.monotonic()
            if self._node.taken_over is not None:
                raise self._node.taken_over
            if result or left <= 0 or self._node.ending:
                return tuple(_first(result, limit)) or self._none_of(run_id)
            self._node.wait_for_commit(seen, left)

    def _none_of(self, run_id: str) -> tuple[LogEntry, ...]:
        """Return an empty result for an existing run. Raises NotFoundError."""
        self._check_run(run_id)
        return ()

    def _keep_events(self, run_id: str) -> None:
        """Hold the events of an active run in memory from now on, for the clients that follow the run."""
        if run_id in self._ledger.snapshot.runs and not self._ledger.doubtful:
            self._ledger.tails.follow(run_id, lambda: self._ledger.store.last_event(run_id))

    def ready(self, name: str, arguments: Mapping[str, Any]) -> bytes | None:
        """See ports.grid.ReadyAnswers."""
        run_id = arguments.get("run_id", "")
        if name == "run":
            return self._run_views.ready(run_id, arguments.get("since", ""))
        follows = name == "events" and arguments.get("job") is None
        if not follows or run_id not in self._ledger.snapshot.runs or self._node.taken_over is not None:
            return None
        after, limit = sequence_of(arguments.get("after", "")), arguments.get("limit", 1000)
        return self._ledger.tails.after(run_id, after, limit)

    def encoded(self, name: str, arguments: Mapping[str, Any]) -> bytes:
        """See ports.grid.ReadyAnswers."""
        if name == "run":
            return self._run_views.encoded(arguments["run_id"], arguments.get("since", ""))
        if name == "events" and arguments.get("job") is None:
            # one at a time: many followers begin with the same event, and the first answer is kept for them
            with self._reading_events:
                body = self.ready(name, arguments)
                return self._encoded_events(arguments) if body is None else body
        return encode(getattr(self, name)(**arguments))

    def _encoded_events(self, arguments: Mapping[str, Any]) -> bytes:
        events = self.events(**arguments)
        body = encode(events)
        run_id, limit = arguments["run_id"], arguments.get("limit", 1000)
        if len(events) == limit and run_id in self._ledger.snapshot.runs:
            self._ledger.tails.keep_page(run_id, sequence_of(arguments.get("after", "")), limit, body)
        return body

    def watch(self, watcher: Callable[[], None]) -> None:
        """See ports.grid.ReadyAnswers."""
        self._node.watchers.append(watcher)

    def _events(self, run_id: str, job: str | None, after: int, limit: int) -> tuple[Event, ...]:
        """Return the stored events after a given event: at most `limit` events, and at most as many bytes as
        a page of a list has."""
        found, left, wanted = list[Event](), PAGE_BYTES, _FIRST_EVENTS
        while True:
            wanted = min(wanted, limit - len(found))
            rows = self._ledger.store.events(run_id=run_id, job=job, after=after, limit=wanted)
            size = len(encode(rows))
            if size > left:
                return (*found, *_that_fit(rows, left, at_least=0 if found else 1))
            found, left = [*found, *rows], left - size
            if len(rows) < wanted or len(found) == limit:
                return tuple(found)
            after, wanted = sequence_of(rows[-1].id), min(4 * wanted, 1 + left * len(rows) // size)


def _first(entries: Sequence[LogEntry], limit: int) -> Iterator[LogEntry]:
    """Return the first entries up to the limit, and all further entries that end at the same position as the
    last of these entries."""
    for number, entry in enumerate(entries):
        if number >= limit and entry.id != entries[limit - 1].id:
            return
        yield entry


def _that_fit(events: Sequence[Event], size: int, *, at_least: int) -> Iterator[Event]:
    """Return as many of the first events as have a total size of at most `size` bytes, but at least
    `at_least` events."""
    for number, event in enumerate(events):
        size -= len(encode(event))
        if size < 0 and number >= at_least:
            return
        yield event
