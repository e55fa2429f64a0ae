"""The command `logs`: shows what jobs wrote, or follows it."""

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Annotated, TypeVar

import typer

from gridmill.cli.completion import complete_run_jobs, complete_runs
from gridmill.cli.format import newest
from gridmill.cli.session import Json, emit, print_error, session
from gridmill.domain.pod_protocol import Event, EventType
from gridmill.domain.run_failures import reason
from gridmill.domain.states import JobState
from gridmill.domain.views import JobView
from gridmill.errors import NotFoundError
from gridmill.sdk.client import Client

T = TypeVar("T")


def logs(
    context: typer.Context,
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run, RUN/JOB, or a pipeline.", autocompletion=complete_runs),
    ],
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="One job.", autocompletion=complete_run_jobs)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="The last lines only.")] = None,
    after: Annotated[
        str, typer.Option(metavar="ID", help="Only what follows the event of this id, which --json shows.")
    ] = "",
    json: Json = False,
) -> None:
    """Print what the jobs of a run, or one of them, wrote. Of an unchanged job, print what the run wrote that
    made its version. With --json one event a line."""
    if job is None and "/" in run:
        run, _, job = run.partition("/")
    with session(context, reading=not follow) as client:
        own = client.events(run, job, follow=follow, after=after)
        earlier = () if after else _earlier(client, run, job)
        events = (one for one in chain(own, earlier) if one.type == EventType.LOG)
        if json:
            for event in _last(events, None if follow else tail):
                emit(event)
            return
        for line in _last(_lines(events, prefixed=job is None), None if follow else tail):
            sys.stdout.write(line)
            sys.stdout.flush()
        _print_failures(client, run, job)


def _earlier(client: Client, run: str, job: str | None) -> Iterator[Event]:
    """Events of the runs that made the versions of unchanged jobs, each after a line that names the run."""
    for view in _jobs(client, run, job, JobState.UNCHANGED):
        name = view.job.job.name
        if view.artifacts:
            maker = view.artifacts[-1].run_id
            try:
                logs = [one for one in client.events(maker, name) if one.type == EventType.LOG]
            except NotFoundError:
                print_error(
                    f"{name} is unchanged; run {maker}, which made its version, is not recorded any more"
                )
                continue
            written = "this is its log" if logs else "it wrote nothing, or its log was deleted"
            print_error(f"{name} is unchanged; run {maker} made its version: {written}")
            yield from logs


def _print_failures(client: Client, run: str, job: str | None) -> None:
    """What Gridmill itself has to say of jobs that failed: they may have written nothing."""
    for view in _jobs(client, run, job, JobState.FAILED):
        print_error(f"{view.job.job.name} failed: {reason(view, newest(view))}")


def _jobs(client: Client, run: str, job: str | None, state: JobState) -> Iterator[JobView]:
    """The jobs in that state: the named one, or all of the run."""
    if job is None:
        yield from client.list_jobs(run, states=[state])
        return
    view = client.grid.job(client.status(run).run.id, job)
    if view.job.state == state:
        yield view


def _lines(events: Iterable[Event], *, prefixed: bool) -> Iterator[str]:
    for event in events:
        prefix = f"{event.job} | " if prefixed else ""
        for line in str(event.body.get("text", "")).splitlines():
            yield f"{prefix}{line}\n"


def _last(items: Iterable[T], count: int | None) -> Iterable[T]:
    return items if count is None else deque(items, maxlen=count)
