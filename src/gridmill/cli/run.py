"""`run`, `start`, `resume`, `stop`: runs from beginning to end."""

import os
import sys
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from gridmill.cli.backfilling import stop_backfill
from gridmill.cli.complete import complete_jobs, complete_runs
from gridmill.cli.interrupts import Interrupts
from gridmill.cli.parameters import Adopt, File, Force, Set, read_set
from gridmill.cli.session import Json, emit, say, session
from gridmill.errors import TABLE, InputError, InterruptedRunError, JobError
from gridmill.model.state import RunState
from gridmill.model.view import RunView
from gridmill.sdk.client import Client
from gridmill.sdk.project import is_name

_SERVE_AFTER_SECONDS = 2.0
"""An embedded control node listens only once a run has taken this long: short runs do not pay for it."""

_SWITCH_SECONDS = 0.0005
"""Threads that import must not keep the control node beside them waiting (Python's default is 0.005)."""

Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="JOB", help="Run this job and what it needs; repeatable."),
]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Start it and return (needs `gridmill up`).")]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run (weather-3), or a pipeline for its newest.", autocompletion=complete_runs
    ),
]


class Started(StrEnum):
    """What can be started."""

    RUN = "run"
    SCHEDULE = "schedule"
    BACKFILL = "backfill"


def run(
    context: typer.Context,
    file: File,
    set: Set = None,
    force: Force = False,
    only: Only = None,
    adopt: Adopt = False,
    detach: Detach = False,
    json: Json = False,
) -> None:
    """Run a pipeline and show its progress. Without a control node up, one is embedded for the run.

    Ctrl-C stops the run cleanly; `gridmill resume RUN` continues it. Exits 1 when the run failed, 130 when
    it was interrupted.
    """

    def begin(client: Client) -> RunView:
        pipeline = client.prepare(file, read_set(set or ()), note=say)
        if pipeline.schedules and not is_name(file):
            texts = ", ".join(spec.text for spec in pipeline.schedules.values())
            say(
                f"this runs it once: its schedule ({texts}) needs `gridmill up` and "
                f"`gridmill apply -f {file}`"
            )
        return client.run(pipeline, force=force, only=tuple(only or ()), adopt=adopt, wait=False)

    _run(context, begin, detach=detach, as_json=json)


def start(
    context: typer.Context,
    noun: Annotated[
        Started,
        typer.Argument(
            metavar="NOUN", help="run, schedule, or backfill (see `gridmill backfill`).", show_default=False
        ),
    ],
    what: Annotated[
        Path, typer.Argument(metavar="FILE|NAME", help="A pipeline file, or a schedule.", show_default=False)
    ],
    set: Set = None,
    force: Force = False,
    only: Only = None,
    adopt: Adopt = False,
    detach: Detach = False,
    json: Json = False,
) -> None:
    """Start a run (the same as run), let a paused schedule go on, or run a pipeline over a range of time,
    chunk by chunk (the same as backfill, with its options).
    """
    if noun == Started.BACKFILL:
        raise InputError("options of a backfill stand behind it", hint=f"gridmill start backfill {what} ...")
    if noun == Started.RUN:
        return run(context, what, set, force, only, adopt, detach, json)
    with session(context) as client:
        view = client.start_schedule(str(what))
    return emit(view) if json else print(f"schedule {view.name} goes on")


def resume(context: typer.Context, run: RunName, detach: Detach = False, json: Json = False) -> None:
    """Continue a failed or stopped run: what succeeded stands, the rest runs."""
    _run(context, lambda client: client.resume(run, wait=False), detach=detach, as_json=json, again=run)


def stop(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[run] RUN [JOB] | schedule NAME | backfill NAME",
            show_default=False,
            autocompletion=complete_jobs,
        ),
    ],
    json: Json = False,
) -> None:
    """Stop a run, or one job of it; pause a schedule; start no more of a backfill. What has ended is fine."""
    if words[0] == Started.BACKFILL and len(words) == 2:
        return stop_backfill(context, words[1], json)
    if words[0] == Started.SCHEDULE and len(words) == 2:
        return _pause(context, words[1], json)
    names = words[1:] if words[0] == "run" else words
    if not 1 <= len(names) <= 2:
        raise InputError("say which run, and perhaps which job", hint="gridmill stop RUN [JOB]")
    with session(context) as client:
        view = client.stop(names[0], names[1] if len(names) == 2 else None)
        if client.embedded and view.run.state == RunState.STOPPING:  # nobody else would see it to its end
            view = client.wait(view.run.id)
    return emit(view) if json else print(f"{view.run.id} {view.run.state}")


def _pause(context: typer.Context, name: str, as_json: bool) -> None:
    with session(context) as client:
        view = client.stop_schedule(name)
    emit(view) if as_json else print(f"schedule {name} paused; runs that are active go on")


Follow = Callable[..., RunView]


def _run(
    context: typer.Context,
    begin: Callable[[Client], RunView],
    *,
    detach: bool,
    as_json: bool,
    again: str | None = None,
) -> None:
    with session(context, embed=not detach) as client:
        if detach:
            return _started(begin(client), as_json)
        with Interrupts() as interrupts:
            after = client.newest_event(client.status(again).run.id) if again else 0
            view = begin(client)  # what shows it is imported while the first pod comes up
            _prepare_report(client)
            view = _to_the_end(client, view, interrupts, after)
            client.release()
            interrupted = interrupts.asked
        emit(view) if as_json else import_module("gridmill.cli.summary").summarise(client, view)
    return _leave(view, interrupted=interrupted)


def _prepare_report(client: Client) -> None:
    """Import and compile what writes the report while the jobs run: at the end it would be waited for."""
    if client.embedded:
        sys.setswitchinterval(_SWITCH_SECONDS)
        threading.Thread(target=_compile_report, daemon=True).start()


def _compile_report() -> None:
    import_module("gridmill.report.render").compile_template()


def _started(view: RunView, as_json: bool) -> None:
    if as_json:
        return emit(view)
    print(view.run.id)
    return say(f"started; follow it with: gridmill status {view.run.id} --watch")


def _to_the_end(client: Client, view: RunView, interrupts: Interrupts, after: int) -> RunView:
    follow: Follow = import_module("gridmill.cli.follow").follow
    try:
        return follow(client, view.run.id, interrupts, after=after, on_tick=_listen_later(client))
    except KeyboardInterrupt:
        say(f"quit at once; its jobs may still be ending. `gridmill resume {view.run.id}` continues it.")
        sys.stdout.flush()
        os._exit(
            TABLE[InterruptedRunError.code].exit_code
        )  # closing would wait for what was not to be waited for


def _listen_later(client: Client) -> Callable[[], None]:
    """Makes an embedded control node reachable for `status` and `logs` once the run takes its time."""
    began = time.monotonic()
    listening = False

    def look() -> None:
        nonlocal listening
        listening = listening and client.embedded  # it may have given way, and be one again later
        if client.embedded and not listening and time.monotonic() - began > _SERVE_AFTER_SECONDS:
            listening = True
            threading.Thread(target=_serve, args=(client,), name="listen", daemon=True).start()

    return look


def _serve(client: Client) -> None:
    """In a thread of its own: the server takes a second to import, and the run goes on meanwhile."""
    import_module("gridmill.cli.serving").make_reachable(client)


def _leave(view: RunView, *, interrupted: bool) -> None:
    if view.run.state == RunState.SUCCEEDED:
        return
    stopped = interrupted or view.run.state == RunState.STOPPED
    error = InterruptedRunError if stopped else JobError
    raise typer.Exit(TABLE[error.code].exit_code)
