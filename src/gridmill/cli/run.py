"""The commands `run`, `start`, `resume`, `stop` and `report`, which start runs, stop runs and report on
runs.

After a run, a summary shows a table, the best model and the report, or the failed jobs with the reasons.
"""

import os
import sys
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Annotated

import typer

from gridmill.cli.backfill import stop_backfill
from gridmill.cli.completion import complete_jobs, complete_runs
from gridmill.cli.follow import follow
from gridmill.cli.format import (
    NODES,
    counts,
    elapsed,
    for_terminal,
    left_out_line,
    newest,
    node_rows,
    reason_lines,
)
from gridmill.cli.leases import tell_leases
from gridmill.cli.parameters import Adopt, File, Force, Set, read_set
from gridmill.cli.service_options import (
    AcceptOpen,
    Certificate,
    Cors,
    Features,
    FollowWeight,
    Host,
    KeyFile,
    LogBodies,
    LogRequests,
    MaxBatch,
    MaxBody,
    MaxWait,
    Pods,
    QueueLimit,
    RequireKeys,
    Timeout,
    Trust,
    service_settings,
)
from gridmill.cli.services import (
    Model,
    OfProject,
    OfService,
    Port,
    Rate,
    Replicas,
    StartOptions,
    WaitForService,
    refuse_service_options,
    start_service,
    stop_service,
)
from gridmill.cli.session import (
    InterruptHandler,
    Json,
    emit,
    print_error,
    print_sentence,
    session,
    show_table,
)
from gridmill.cli.up import down
from gridmill.domain.amounts import show_bytes, show_number, show_seconds
from gridmill.domain.comparison import best_models
from gridmill.domain.metrics import headline
from gridmill.domain.remarks import remarks_of
from gridmill.domain.run_failures import at_fault, failed_jobs, next_step, reason
from gridmill.domain.service_spec import read_replicas
from gridmill.domain.states import JobState, RunState
from gridmill.domain.views import JobView, RunView
from gridmill.errors import TABLE, GridmillError, InputError, InterruptedRunError, JobError
from gridmill.sdk.client import Client
from gridmill.sdk.lookup import Noun
from gridmill.sdk.project import is_name, prepare

HEAD = ("job", "state", "attempts", "time", "cpu", "peak memory", "of", "metrics")
_LEFT_OUT = ("of", "attempts", "cpu", "peak memory")
"""The columns that are hidden on a narrow screen, the least important column first."""
_TAIL = 15
_FAILED_SHOWN = 3
_REASONS = 20


def summarise(client: Client, view: RunView) -> None:
    """Print a summary of the run to standard output, and write the report if it can be written."""
    show_table(HEAD, [_row(job) for job in view.jobs], folded=("metrics",), left_out=_LEFT_OUT)
    if view.left_out:
        print(left_out_line(view, len(view.jobs)))
    began = view.run.started or view.run.created
    took = show_seconds(max(0.0, (view.run.ended or began) - began))
    for job in view.jobs:
        if rows := node_rows(job):
            print(f"\n{job.job.job.name} on each node")
            show_table(NODES, rows, folded=NODES[-1:])
    for line in reason_lines(view, _REASONS):
        print_sentence(line)
    print_sentence(f"{view.run.id} {view.run.state} in {took}: {counts(view)}")
    for remark in (remark for job in view.jobs for one in job.artifacts for remark in remarks_of(one)):
        print_sentence(remark.line)
    models = () if view.left_out else (artifact for job in view.jobs for artifact in job.artifacts)
    for best, name, of in best_models(models):
        print_sentence(f"best model{of}: {best.id} ({name} {show_number(best.output.metrics[name])})")
    failed = failed_jobs(view)
    for job in failed[:_FAILED_SHOWN]:
        explain(client, view, job)
    more = view.states.get(JobState.FAILED, 0) - _FAILED_SHOWN
    if more > 0:
        print(f"\nand {more} more failed jobs: gridmill show run {view.run.id}")
    if view.run.state != RunState.SUCCEEDED:
        print_sentence(next_step(view))
    try:
        print(f"report: {client.report(view.run.id)}", flush=True)
    except GridmillError as error:
        print_error(f"the report cannot be written: {error}")


def _row(view: JobView) -> tuple[str, ...]:
    job = view.job
    every = (*view.attempts, *(attempt for part in view.parts for attempt in part.attempts))
    uses = [attempt.use for attempt in every if attempt.use is not None]
    last = newest(view)
    return (
        job.job.name,
        job.state,
        str(len(view.attempts) or ""),
        elapsed(view, job.ended or 0.0),
        show_seconds(sum(use.cpu_seconds for use in uses)) if uses else "",
        show_bytes(max(use.peak_memory_bytes for use in uses)) if uses else "",
        show_bytes(last.given.memory_bytes) if last else "",
        headline(view.metrics),
    )


def explain(client: Client, view: RunView, failed: JobView) -> None:
    """Print the failure of a job: the error, the end of its log, a hint, and the command that prints its
    log."""
    name, attempt = failed.job.job.name, at_fault(failed)
    typer.secho(f"\n{name} failed", bold=True, fg=typer.colors.RED, nl=False)
    print_sentence(f": {reason(failed, attempt)}")
    for line in client.last_lines(view, failed, _TAIL):
        print(for_terminal(f"  | {line}", sys.stdout))
    if attempt is not None and attempt.hint:
        print_sentence(attempt.hint, "  ")
    print(f"  more: gridmill logs {view.run.id} {name}")


Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only", metavar="JOB", help="Run only this job and the jobs that it depends on. Repeatable."
    ),
]
Detach = Annotated[
    bool, typer.Option("--detach", "-d", help="Start the run and return. Needs `gridmill up`.")
]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Name of a run, for example weather-3, or of a pipeline (its newest run).",
        autocompletion=complete_runs,
    ),
]


class Startable(StrEnum):
    """The kinds of records that the command `start` can start."""

    RUN = "run"
    SCHEDULE = "schedule"
    BACKFILL = "backfill"
    SERVICE = "service"


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
    """Run a pipeline and show its progress.

    If no control node is running, the command starts one, which ends with the last command that uses it.
    Ctrl-C or the end of this command stops the run. `gridmill resume RUN` continues the run. The exit code
    is 1 if the run failed and 130 if it was interrupted.
    """

    _import_ahead()
    with session(context, permanent=detach) as client:
        with InterruptHandler(active=not detach) as interrupts:
            pipeline = prepare(file, read_set(set or ()), client.grid, client.settings, print_error)
            if pipeline.schedules and not is_name(file):
                texts = ", ".join(spec.text for spec in pipeline.schedules.values())
                print_error(
                    f"this command runs the pipeline once; its schedule ({texts}) needs `gridmill up` and "
                    f"`gridmill apply -f {file}`"
                )
            jobs = tuple(only or ())
            view = client.attend(
                lambda grid: grid.start_run(pipeline, force=force, only=jobs, adopt=adopt), detached=detach
            )
            if not detach:
                view = _to_the_end(client, view, interrupts)
        _show_result(client, view, detached=detach, as_json=json)
        if not detach:
            tell_leases(client)
    if not detach:
        _leave(view, interrupted=interrupts.requested)


def _import_ahead() -> None:
    """Import the reader of pipeline files while the control node starts, so that the user waits for both at
    the same time."""
    Thread(target=import_module, args=("gridmill.declarations",), daemon=True).start()


def start(
    context: typer.Context,
    noun: Annotated[
        Startable,
        typer.Argument(metavar="NOUN", help="run, service, schedule or backfill.", show_default=False),
    ],
    what: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|NAME", help="Pipeline file, or name of a service or a schedule.", show_default=False
        ),
    ],
    set: Set = None,
    force: Force = False,
    only: Only = None,
    adopt: Adopt = False,
    detach: Detach = False,
    model: Model = "",
    replicas: Replicas = "",
    rate: Rate = 0.0,
    resource: OfService = "",
    port: Port = 0,
    project: OfProject = "",
    host: Host = None,
    certificate: Certificate = None,
    key: KeyFile = None,
    require_keys: RequireKeys = None,
    accept_open: AcceptOpen = None,
    cors: Cors = None,
    follow_weight: FollowWeight = None,
    log_requests: LogRequests = None,
    log_bodies: LogBodies = None,
    max_batch: MaxBatch = None,
    max_wait: MaxWait = None,
    timeout: Timeout = None,
    queue_limit: QueueLimit = None,
    max_body: MaxBody = None,
    trust: Trust = None,
    pods: Pods = None,
    features: Features = None,
    wait: WaitForService = True,
    json: Json = False,
) -> None:
    """Start a run (as `gridmill run`), start a service, resume a paused schedule, or start a backfill (as
    `gridmill backfill`).

    A service serves a version of a model over HTTP until you stop it, also while the control node does not
    run. If the version is an alias (`weather/lstm@champion`), the service follows the alias: when the alias
    moves, the service serves the new version, without a failed request. Without --model, a stopped service
    starts again. The options from --model on are options of a service.
    """
    settings = service_settings(
        host=host,
        certificate=certificate,
        key=key,
        require_keys=require_keys,
        accept_open=accept_open,
        cors=cors,
        follow_weight=follow_weight,
        log_requests=log_requests,
        log_bodies=log_bodies,
        max_batch=max_batch,
        max_wait=max_wait,
        timeout=timeout,
        queue_limit=queue_limit,
        max_body=max_body,
        trust=trust,
        pods=pods,
        features=features,
    )
    if noun == Startable.SERVICE:
        _refuse_run_options(str(what), set=set, force=force, only=only, adopt=adopt, detach=detach)
        most, least = read_replicas(replicas)
        options = StartOptions(
            model=model,
            replicas=most,
            least_replicas=least,
            rate=rate,
            resource=resource,
            port=port,
            project=project,
            settings=settings,
        )
        return start_service(context, str(what), options, wait=wait, as_json=json)
    refuse_service_options(
        settings, model=model, replicas=replicas, rate=rate, resource=resource, port=port, project=project
    )
    if noun == Startable.BACKFILL:
        raise InputError("`start` has no options of a backfill", hint=f"gridmill start backfill {what} ...")
    if noun == Startable.RUN:
        return run(context, what, set, force, only, adopt, detach, json)
    with session(context) as client:
        view = client.start_schedule(str(what))
    return emit(view) if json else print(f"schedule {view.name} resumed")


def _refuse_run_options(service: str, **options: object) -> None:
    """Raise InputError if an option of a run is given with a service, where it would have no effect."""
    given = next((name for name, value in options.items() if value), None)
    if given is not None:
        hint = "gridmill start --help shows the options of services."
        if given == "detach":
            hint = f"To return at once: gridmill start service {service} --no-wait"
        raise InputError(f"--{given} is an option of runs, not of services", hint=hint)


def resume(context: typer.Context, run: RunName, detach: Detach = False, json: Json = False) -> None:
    """Continue a failed or stopped run. Succeeded jobs do not execute again."""

    with session(context, permanent=detach) as client:
        with InterruptHandler(active=not detach) as interrupts:
            if detach:
                view = client.resume(run, wait=False)
            else:
                last_event, run_id = _before_resume(client, run), client.status(run).run.id
                view = client.attend(lambda grid: grid.resume(run_id))
                view = _to_the_end(client, view, interrupts, after=last_event)
        _show_result(client, view, detached=detach, as_json=json)
    if not detach:
        _leave(view, interrupted=interrupts.requested)


def stop(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[run] RUN [JOB] | service NAME | schedule NAME | backfill NAME | lease LEASE",
            show_default=False,
            autocompletion=complete_jobs,
        ),
    ] = None,
    all: Annotated[
        bool, typer.Option("--all", help="Without a name: stop all runs and the control node.")
    ] = False,
    json: Json = False,
) -> None:
    """Stop a run or one of its jobs, a service or a backfill, pause a schedule, or end a rented machine.

    If the run has ended already, the command succeeds. Without a name, the command stops the control node
    (see `gridmill down`).
    """
    if not words:
        return down(context, all, json)
    if all:
        raise InputError("--all stops all runs and takes no name", hint="gridmill stop --all")
    if words[0] == Startable.BACKFILL and len(words) == 2:
        return stop_backfill(context, words[1], json)
    if words[0] == Startable.SCHEDULE and len(words) == 2:
        return _pause(context, words[1], json)
    if words[0] == Startable.SERVICE and len(words) == 2:
        return stop_service(context, words[1], json)
    if words[0] == Noun.LEASE and len(words) == 2:
        return _stop_lease(context, words[1], json)
    names = words[1:] if words[0] == "run" else words
    if not 1 <= len(names) <= 2:
        raise InputError("expected a run, or a run and a job", hint="gridmill stop RUN [JOB]")
    with session(context) as client:
        view = client.stop(names[0], names[1] if len(names) == 2 else None)
        if view.run.state == RunState.STOPPING and client.control().embedded:
            # waits, because the control node ends with its last client, which may be this one
            view = client.wait(view.run.id)
    return emit(view) if json else print(f"{view.run.id} {view.run.state}")


def _stop_lease(context: typer.Context, name: str, as_json: bool) -> None:
    with session(context) as client:
        view = client.stop_lease(name)
    return emit(view) if as_json else print(f"lease {name} {view.lease.state}")


def _pause(context: typer.Context, name: str, as_json: bool) -> None:
    with session(context) as client:
        view = client.stop_schedule(name)
    emit(view) if as_json else print(f"schedule {name} paused; active runs continue")


def _before_resume(client: Client, name: str) -> str:
    """Return the id of the newest event of the run before the run is resumed."""
    view = client.status(name)
    if view.run.state == RunState.SUCCEEDED:
        _nothing_to_resume(view)
    return client.newest_event(view.run.id)


def _nothing_to_resume(view: RunView) -> None:
    print_error(
        f"nothing to resume: {view.run.id} succeeded. To run the pipeline again: gridmill run "
        f"{view.run.pipeline}"
    )


def _show_result(client: Client, view: RunView, *, detached: bool, as_json: bool) -> None:
    if as_json:
        return emit(view)
    if not detached:
        return summarise(client, view)
    print(view.run.id)
    if view.run.state == RunState.SUCCEEDED:
        return _nothing_to_resume(view)
    return print_error(f"started; to follow it: gridmill status {view.run.id} --watch")


def _to_the_end(client: Client, view: RunView, interrupts: InterruptHandler, after: str = "") -> RunView:
    """Show the progress of the run until its end, and return its state at the end."""
    try:
        view = follow(client, view.run.id, interrupts, after=after)
        client.release()
        return view
    except KeyboardInterrupt:
        print_error(
            "quit without waiting; jobs of the run may still be stopping. To continue it: gridmill "
            f"resume {view.run.id}"
        )
        sys.stdout.flush()
        # closing the client would wait for the run, which the second Ctrl-C must not do
        os._exit(TABLE[InterruptedRunError.code].exit_code)


def _leave(view: RunView, *, interrupted: bool) -> None:
    if view.run.state == RunState.SUCCEEDED:
        return
    stopped = interrupted or view.run.state == RunState.STOPPED
    error = InterruptedRunError if stopped else JobError
    raise typer.Exit(TABLE[error.code].exit_code)


def report(
    context: typer.Context,
    run: RunName,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write; - is standard output. Default: HOME/reports/RUN.html.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write the report of a run and print its path. The report is one HTML file that works offline."""
    with session(context, reading=True) as client:
        if output == "-":
            sys.stdout.write(client.grid.report(client.status(run).run.id))
            return
        path = client.report(run, output)
    emit({"run": run, "path": str(path)}) if json else print(path)
