"""The command `logs` prints the logs of jobs, or follows them."""

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Annotated, TypeVar

import typer

from gridmill.cli.completion import complete_run_jobs, complete_runs
from gridmill.cli.format import for_terminal, newest
from gridmill.cli.session import Json, emit, print_error, session
from gridmill.domain.job_log import LineAssembly, LogEntry, LogLine, last_lines, lines_of
from gridmill.domain.run_failures import reason
from gridmill.domain.service import run_name
from gridmill.domain.states import JobState
from gridmill.domain.views import JobView, RunView
from gridmill.errors import NotFoundError
from gridmill.sdk.client import Client

T = TypeVar("T")


def logs(
    context: typer.Context,
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Name of a run, RUN/JOB, name of a pipeline (its newest run), or: service NAME.",
            autocompletion=complete_runs,
        ),
    ],
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]", help="Name of a job. Default: all jobs.", autocompletion=complete_run_jobs
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the run ends.")] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, help="Print only the last lines.")
    ] = None,
    search: Annotated[
        str, typer.Option(metavar="TEXT", help="Print only lines that contain this text.")
    ] = "",
    after: Annotated[
        str,
        typer.Option(
            "--since-offset",
            "--after",
            metavar="OFFSET",
            help="Print only entries after this offset (bytes in the log of the run; `id` in --json).",
        ),
    ] = "",
    until: Annotated[
        int | None,
        typer.Option(
            "--until-offset",
            metavar="OFFSET",
            min=0,
            help="Print only entries before this offset (bytes in the log of the run).",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Print the logs of a run or of one job.

    For an unchanged job, print the log of the run that made its version. With --json, print one entry per
    line. On a terminal, control characters are shown as text.
    """
    service = job if run == "service" else None
    if service is not None:
        run, job = run_name(service), None
    if job is None and "/" in run:
        run, _, job = run.partition("/")
    with session(context, reading=not follow) as client:
        if service is not None:
            client.service(service)  # its error names the service and not a run
        view = client.status(run)
        own = client.log_entries(
            view.run.id, job, follow=follow, after=after, until=until, tail=tail, search=search
        )
        earlier = () if after or until is not None else _earlier(client, view, job, tail, search)
        counted = _Counted(chain(own, earlier))
        entries = iter(counted)
        if json:
            for entry in _last(_with_lines(entries), None if follow else tail):
                emit(entry)
        elif tail is None or follow:
            _print_as_they_come(entries, prefixed=job is None)
        else:
            _print_lines(last_lines(lines_of(entries), tail), prefixed=job is None)
        now = client.status(view.run.id) if follow else view
        whole = not (after or search or until is not None or tail == 0)
        if whole and not counted.count and not now.states.get(JobState.UNCHANGED):
            print_error(_nothing_printed(client, now, job))
        if not json:
            _print_failures(client, now, job)


class _Counted:
    """An iterable of log entries that counts the entries with text while they are read."""

    def __init__(self, entries: Iterable[LogEntry]) -> None:
        self.count = 0
        self._entries = entries

    def __iter__(self) -> Iterator[LogEntry]:
        for entry in self._entries:
            self.count += bool(entry.text or entry.dropped_bytes)
            yield entry


_NOT_STARTED = (JobState.BLOCKED, JobState.WAITING, JobState.SKIPPED)


def _nothing_printed(client: Client, view: RunView, job: str | None) -> str:
    """Return the line that is printed for a log without text, because the job has not started or has printed
    nothing."""
    if job is None:
        return f"no job of {view.run.id} has printed anything"
    named = client.grid.job(view.run.id, job)
    state = named.job.state
    if not named.attempts and not named.parts and state in _NOT_STARTED:
        return f"{job} has printed nothing: it has not started ({state})"
    return f"{job} has printed nothing ({state})"


def _earlier(
    client: Client, view: RunView, job: str | None, tail: int | None, search: str
) -> Iterator[LogEntry]:
    """Yield the log entries of unchanged jobs, from the runs that made their versions. Each log begins with
    a line that names the run."""
    for unchanged in _jobs(client, view, job, JobState.UNCHANGED):
        name = unchanged.job.job.name
        if unchanged.artifacts:
            maker = unchanged.artifacts[-1].run_id
            try:
                entries = client.log_entries(maker, name, tail=tail, search=search)
                first = next(entries, None)
            except NotFoundError:
                print_error(f"{name} is unchanged; run {maker}, which made its version, was removed")
                continue
            written = (
                "its log follows" if first else "the job wrote nothing in that run, or its log was deleted"
            )
            print_error(f"{name} is unchanged; run {maker} made its version: {written}")
            yield from () if first is None else chain((first,), entries)


def _print_failures(client: Client, view: RunView, job: str | None) -> None:
    """Print the messages of Gridmill about failed jobs, because these jobs may have written nothing to their
    logs."""
    for failed in _jobs(client, view, job, JobState.FAILED):
        print_error(f"{failed.job.job.name} failed: {reason(failed, newest(failed))}")


def _jobs(client: Client, view: RunView, job: str | None, state: JobState) -> Iterator[JobView]:
    """Yield the jobs in the given state: the named job, or all jobs of the run. If the client already knows
    that no job of the run is in the given state, the control node is not called."""
    if not view.states.get(state):
        return
    if job is None:
        yield from client.list_jobs(view.run.id, states=[state])
        return
    named = client.grid.job(view.run.id, job)
    if named.job.state == state:
        yield named


def _print_as_they_come(entries: Iterable[LogEntry], *, prefixed: bool) -> None:
    lines = LineAssembly()
    for entry in entries:
        _print_lines(lines.take(entry), prefixed=prefixed)
    _print_lines(lines.end(), prefixed=prefixed)


def _print_lines(lines: Iterable[LogLine], *, prefixed: bool) -> None:
    """Print lines of jobs to standard output in a single write, because there may be millions of lines.
    Print the notes of Gridmill to standard error."""
    texts = list[str]()
    for line in lines:
        if line.note:
            print_error(line.text)
        else:
            texts.append(
                f"{line.job} | {line.mark}{line.text}\n" if prefixed else f"{line.mark}{line.text}\n"
            )
    sys.stdout.write(for_terminal("".join(texts), sys.stdout))
    sys.stdout.flush()


def _with_lines(entries: Iterable[LogEntry]) -> Iterator[LogEntry]:
    """Yield the entries, without entries that only report the progress of a search."""
    return (entry for entry in entries if entry.text or entry.dropped_bytes)


def _last(items: Iterable[T], count: int | None) -> Iterable[T]:
    return items if count is None else deque(items, maxlen=count)
