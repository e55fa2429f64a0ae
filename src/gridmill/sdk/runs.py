"""Client methods for runs (plan, run, watch, stop, resume, logs), and the error of a failed run.

The error of a failed run contains the name of the failed job, its exit code, the last lines of its log, and
a hint.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from gridmill.domain.frozen import dataclass
from gridmill.domain.job_log import LogEntry, LogLine, last_lines, lines_of
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import Event
from gridmill.domain.resource import Resource
from gridmill.domain.run import Run
from gridmill.domain.run_failures import at_fault, failed_jobs, failed_parts, next_step, reason
from gridmill.domain.site import Site
from gridmill.domain.states import FINISHED_RUNS, Cause, JobState, RunState
from gridmill.domain.views import DryRun, JobView, RunRemovalPreview, RunView
from gridmill.errors import (
    InputError,
    InternalError,
    InterruptedRunError,
    JobError,
    MemoryExceededError,
    TimeLimitError,
)
from gridmill.ports.grid import Grid
from gridmill.sdk.base import Connected
from gridmill.sdk.listing import Listing
from gridmill.sdk.lookup import find_run
from gridmill.sdk.notebook import progress
from gridmill.sdk.project import Source, prepare, read_all

LINES = 15
"""The number of last lines of a log that an error contains."""
_ERRORS: Mapping[Cause, type[JobError]] = {Cause.MEMORY: MemoryExceededError, Cause.TIMEOUT: TimeLimitError}


def run_error(view: RunView, logs: Callable[[JobView], Iterable[str]]) -> JobError:
    """Return the error for a run that ended without success. `logs` is a function that returns the last
    lines of a job's log."""
    failed = failed_jobs(view)
    if not failed:
        return _of_run(view)
    job, others = failed[0], [one.job.job.name for one in failed[1:]]
    name, attempt = job.job.job.name, at_fault(job)
    lines = tuple(logs(job))
    also = f" (and {', '.join(others)})" if others else ""
    kind = _ERRORS.get(attempt.cause, JobError) if attempt is not None and attempt.cause else JobError
    code = attempt.exit_code if attempt is not None else None
    return kind(
        "\n".join((f"run {view.run.id} failed: job {name}{also}: {_why(job, code)}", *_indented(lines))),
        hint=" ".join(
            filter(None, [attempt.hint if attempt else "", _more(view.run, name), next_step(view)])
        ),
        run=view.run.id,
        job=name,
        exit_code=code,
        log=lines,
    )


def _why(job: JobView, exit_code: int | None) -> str:
    reason_text = reason(job, at_fault(job))
    has_exit_code = exit_code is None or f"exit code {exit_code}" in reason_text
    return reason_text if has_exit_code else f"{reason_text} (exit code {exit_code})"


def _indented(lines: Iterable[str]) -> Iterable[str]:
    return (f"  | {line}" for line in lines)


def _more(run: Run, job: str) -> str:
    return f"To see its log: gridmill logs {run.id} {job}"


def _of_run(view: RunView) -> JobError:
    """Return the error for a run without a failed job, which was stopped or could not start."""
    run = view.run
    message = f"run {run.id} {run.state}" + (f": {run.message}" if run.message else "")
    if run.state == RunState.STOPPED:
        return InterruptedRunError(message, hint=next_step(view), run=run.id)
    return JobError(message, hint=f"To see its jobs: gridmill show run {run.id}", run=run.id)


S = TypeVar("S", RunState, JobState)
Kept: TypeAlias = Pipeline | Resource | Site

_LONGEST_LINE = 10_000
"""The largest number of characters of a log line in an error."""
_LOG_WAIT_SECONDS = 5.0
_PAGE = 1000
_HELD = 10 * _PAGE
_VIEW_SECONDS = 0.1
_VIEW_SHARE = 20
"""The largest fraction of the time that reading a watched run may take. The run is read at most every
`_VIEW_SECONDS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The state of a watched run at one moment, and the events since the previous tick."""

    view: RunView
    events: tuple[Event, ...]

    @property
    def finished(self) -> bool:
        """True if the run has ended. If the run has ended and no events remain, this tick is the last
        tick."""
        return self.view.run.state in FINISHED_RUNS


class RunVerbs(Connected):
    """Client methods for runs. Methods that take a run also accept the name of a pipeline, which selects its
    newest run."""

    def run(
        self,
        pipeline: Source,
        *,
        set: Mapping[str, Any] | None = None,
        force: bool = False,
        only: tuple[str, ...] = (),
        adopt: bool = False,
        wait: bool = True,
        check: bool = False,
        on_tick: Callable[[Tick], None] | None = None,
    ) -> RunView:
        """Run a pipeline. `pipeline` is a file, the name of a known pipeline, or a Pipeline. With `wait`,
        the method returns after the end of the run. If this process ends before the run, the run is stopped.
        `set` sets the values of parameters.

        With `adopt`, if the name of the pipeline belongs to another folder, the name is assigned to the
        folder of this file. The function `on_tick` is called several times per second. With `check`,
        JobError is raised if the run does not succeed.
        """
        prepared = self.prepare(pipeline, set)

        def start(grid: Grid) -> RunView:
            return grid.start_run(prepared, force=force, only=only, adopt=adopt)

        if not wait:
            return self.attend(start, detached=True)
        return self.wait(self.attend(start).run.id, on_tick=on_tick, check=check)

    def prepare(
        self,
        pipeline: Source,
        set: Mapping[str, Any] | None = None,
        *,
        note: Callable[[str], None] | None = None,
    ) -> Pipeline:
        """Return the pipeline in the form in which the control node accepts it: the file is read, the
        parameters are filled in, and the code bundle is uploaded.

        If `pipeline` is the name of an applied pipeline, the method uses the declaration that was applied
        last. If the pipeline was run but never applied, the method reads its file again. If the file does
        not declare the pipeline any more, the method uses the declaration of the last run and issues a
        warning. If the function `note` is given, the method calls it with a text that states which
        declaration is used, and issues no warning. Raises PipelineError, InputError, NotFoundError.
        """
        return prepare(pipeline, set, self.grid, self.settings, note)

    def plan(self, pipeline: Source, *, set: Mapping[str, Any] | None = None) -> DryRun:
        """Return what a run would do: the sizes of its jobs with the reasons, the order of the jobs, and the
        expected memory and time. This method starts nothing."""
        return self.grid.plan_run(self.prepare(pipeline, set))

    def apply(
        self, file: Source, *, set: Mapping[str, Any] | None = None, adopt: bool = False
    ) -> tuple[Kept, ...]:
        """Store the records of a file (pipelines, resources, sites) without running anything, and return
        these records. With `adopt`, if the name of a pipeline belongs to another folder, the name is
        assigned to the folder of the file. Without `adopt`, such a name raises ConflictError."""
        if isinstance(file, Pipeline):
            return (self.grid.apply(self.prepare(file), adopt=adopt),)
        return tuple(self._keep(noun, adopt=adopt) for noun in read_all(Path(file), set))

    def _keep(self, noun: object, *, adopt: bool) -> Kept:
        if isinstance(noun, Pipeline):
            return self.grid.apply(self.prepare(noun), adopt=adopt)
        if isinstance(noun, Resource):
            return self.grid.configure_resource(noun)[0]
        if isinstance(noun, Site):
            return self.grid.add_site(noun, replace=True)
        raise InternalError(f"{type(noun).__name__} cannot be applied")

    def resume(self, run: str, *, wait: bool = True, check: bool = False) -> RunView:
        """Continue a failed or stopped run. Jobs that succeeded do not run again. With `check`, raises
        JobError."""
        run_id = self.status(run).run.id
        if not wait:
            return self._ask(lambda grid: grid.resume(run_id))
        return self.wait(self.attend(lambda grid: grid.resume(run_id)).run.id, check=check)

    def stop(self, run: str, job: str | None = None) -> RunView:
        """Stop a run, or a single job of it. The call returns immediately, before the jobs have ended."""
        run_id = self.status(run).run.id
        return self._ask(lambda grid: grid.stop_run(run_id, job=job))

    def status(self, run: str) -> RunView:
        """Return the state of a run: the number of jobs in each state, and the jobs. If the run has more
        than 100 jobs, the result contains only the most important jobs, failed and running jobs first.
        The method `list_jobs` returns all jobs. Raises NotFoundError."""
        return self._ask(lambda grid: find_run(grid, run))

    def wait(
        self, run: str, *, on_tick: Callable[[Tick], None] | None = None, check: bool = False
    ) -> RunView:
        """Wait for the end of a run. In a notebook, this method shows the progress of the run. With `check`,
        raises JobError."""
        show = on_tick or progress()
        tick = None
        for tick in self.watch(run):
            if show is not None:
                show(tick)
        assert tick is not None  # never None, because `watch` yields at least one tick
        if check and tick.view.run.state != RunState.SUCCEEDED:
            view = tick.view
            raise run_error(view, lambda job: self.last_lines(view, job, LINES))
        return tick.view

    def watch(self, run: str, *, after: str = "", every_seconds: float = 0.5) -> Iterator[Tick]:
        """Yield ticks, at least one tick each `every_seconds`, until the run has ended and all its events
        were yielded. `after` is the id of an event; the ticks contain only later events.

        If the control node ends before the run, the next control node of the home continues the run. This
        client starts it if necessary.
        """
        view = self.status(run)
        run_id, look_again, held = view.run.id, 0.0, tuple[Event, ...]()
        while True:
            over = view.run.state in FINISHED_RUNS
            left = max(0.0, look_again - time.monotonic()) if held else every_seconds
            events = self._ask(_page(run_id, after, 0.0 if over else min(left, every_seconds)))
            held, after = held + events, events[-1].id if events else after
            now = time.monotonic()
            if over:
                self._has_ended(run_id)
            if over and not events:
                yield Tick(view=view, events=held)
                return
            if held and now < look_again and len(held) < _HELD and not _says_end(events):
                continue  # the state of the run in a tick must be newer than the tick's events
            if not over and (now >= look_again or _says_end(events)):
                view = self._looked_again(view)
                look_again = now + max(_VIEW_SECONDS, _VIEW_SHARE * (time.monotonic() - now))
            yield Tick(view=view, events=held)
            held = ()

    def newest_event(self, run: str) -> str:
        """Return the id of the newest event of a run, for `watch(after=...)`. If the run has no event yet,
        the method returns an empty text."""
        return self.status(run).last_event

    def _looked_again(self, view: RunView) -> RunView:
        """Return the current state of the run. If the state of the run has not changed, the result is the
        same object as in the previous call."""
        newer = self._ask(lambda grid: grid.run(view.run.id, since=view.version))
        return view if newer.unchanged else newer

    def events(
        self, run: str, job: str | None = None, *, follow: bool = False, after: str = ""
    ) -> Iterator[Event]:
        """Yield the stored events of a run or of a single job, in order. With `follow`, the method yields
        further events until the run ends.

        `after` is the id of an event, and only later events are yielded. An interrupted program can
        therefore continue after the last event that it read. Raises InputError for an invalid event id.
        """
        view = self.status(run)
        if job is not None:
            self.grid.job(view.run.id, job)
        while True:
            view = self._looked_again(view)
            over = view.run.state in FINISHED_RUNS or not follow
            wait = 0.0 if over else 5.0
            page = self._ask(_page(view.run.id, after, wait, job))
            yield from page
            after = page[-1].id if page else after
            if over and not page:
                return

    def logs(
        self,
        run: str,
        job: str | None = None,
        *,
        follow: bool = False,
        tail: int | None = None,
        after: str = "",
        until: int | None = None,
        search: str = "",
    ) -> Iterator[str]:
        """Yield log lines without newlines. If several jobs are selected, the lines have the form `JOB |
        line`. A line of a log ends only at a newline character.

        With `tail`, only the last `tail` lines are yielded. With `search`, only lines that contain this text
        are yielded. If `after` or `until` is given, only the lines between these offsets in the log are
        yielded. If text of the log was dropped, a line in brackets with the size of this text is yielded in
        its place.
        """
        entries = self.log_entries(
            run, job, follow=follow, tail=tail, after=after, until=until, search=search
        )
        lines: Iterable[LogLine] = lines_of(entries)
        for line in lines if tail is None or follow else last_lines(lines, tail):
            prefix = "" if job or line.note else f"{line.job} | "
            yield f"{prefix}{line.mark}{line.text}"

    def log_entries(
        self,
        run: str,
        job: str | None = None,
        *,
        attempt: str | None = None,
        follow: bool = False,
        tail: int | None = None,
        after: str = "",
        until: int | None = None,
        search: str = "",
    ) -> Iterator[LogEntry]:
        """Yield the log entries of jobs, in order. With `follow`, the method yields further entries until
        the run ends.

        With `tail`, only the last entries are yielded, as many as contain at least `tail` lines. `after`
        is the id of an entry, or any offset in bytes. `until` is an offset. With `search`, only lines that
        contain this text are yielded. Raises InputError.
        """
        view = self.status(run)
        if job is not None:
            self.grid.job(view.run.id, job)
        while True:
            view = self._looked_again(view) if follow else view
            over = not follow or view.run.state in FINISHED_RUNS
            request = partial(
                _logs_of,
                run_id=view.run.id,
                job=job,
                attempt=attempt,
                after=after,
                until=until,
                tail=tail,
                search=search,
                wait_seconds=0.0 if over else _LOG_WAIT_SECONDS,
            )
            page = self._ask(request)
            yield from page
            after, tail = (page[-1].id, None) if page else (after, tail)
            if over and not page:
                return

    def last_lines(self, view: RunView, failed: JobView, count: int) -> tuple[str, ...]:
        """Return the last lines of the log of a job. For a command on each node, return the last lines of
        the nodes on which the command failed."""
        last = list[LogLine]()
        parts = [part.attempts[-1].id for part in failed_parts(failed) if part.attempts]
        for attempt in parts[:count] if failed.job.job.each is not None else (None,):
            entries = self.log_entries(view.run.id, failed.job.job.name, attempt=attempt, tail=count)
            last += last_lines(lines_of(entries, longest=_LONGEST_LINE), count)
        return tuple(line.mark + line.text for line in last_lines(last, count))

    def report(self, run: str, path: str | Path | None = None) -> Path:
        """Write the report of a run as a single HTML file (by default HOME/reports/RUN.html) and return the
        path of the file."""
        run_id = self.status(run).run.id
        target = Path(path) if path is not None else self.settings.home / "reports" / f"{run_id}.html"
        text = self.grid.report(run_id)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = target.with_name(f".{target.name}.draft")
            draft.write_text(text)
            draft.replace(target)
        except OSError as error:
            raise InputError(f"the report cannot be written: {error.strerror}", place=str(target)) from error
        return target

    def remove_run(self, run: str, *, dry_run: bool = False) -> RunRemovalPreview:
        """Delete the records, logs and report of a finished run. The versions that the run made are not
        deleted.

        With `dry_run`, nothing is deleted. Raises NotFoundError, and ConflictError while the run is active.
        """
        return self.grid.remove_run(run, dry_run=dry_run)

    def list_runs(
        self, *, limit: int | None = None, pipeline: str | None = None, states: Sequence[RunState | str] = ()
    ) -> Listing[Run]:
        """List runs, newest first. With `states` (`["failed"]`), list only runs in these states. Raises
        InputError."""
        chosen = tuple(_state(RunState, "runs", word) for word in states)
        return Listing(partial(self.grid.runs, pipeline=pipeline, states=chosen), limit=limit)

    def list_jobs(
        self, run: str, *, limit: int | None = None, states: Sequence[JobState | str] = ()
    ) -> Listing[JobView]:
        """List all jobs of a run in the order of their declaration. With `states` (`["failed"]`), list only
        jobs in these states.

        The method `status` returns only the most important jobs. Raises InputError, NotFoundError.
        """
        chosen = tuple(_state(JobState, "jobs", word) for word in states)
        return Listing(partial(self.grid.jobs, self.status(run).run.id, states=chosen), limit=limit)


def _state(kind: type[S], whose: str, word: str) -> S:
    if word not in list(kind):
        raise InputError(f"{word!r} is not a state of {whose}", hint=f"The states are {', '.join(kind)}.")
    return kind(word)


def _page(
    run_id: str, after: str, wait: float, job: str | None = None
) -> Callable[[Grid], tuple[Event, ...]]:
    return lambda grid: grid.events(run_id, job=job, after=after, limit=_PAGE, wait_seconds=wait)


def _logs_of(grid: Grid, **arguments: Any) -> tuple[LogEntry, ...]:  # noqa: ANN401  as the use case has them
    return grid.logs(**arguments)


def _says_end(events: tuple[Event, ...]) -> bool:
    return any(
        event.type == "state" and event.body.get("what") == "run" and event.body.get("state") in FINISHED_RUNS
        for event in events
    )
