"""The command `status` shows the state of the grid or of a run, once or until the run ends."""

import os
import sys
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from gridmill.cli.completion import complete_runs
from gridmill.cli.configure import status_sinks
from gridmill.cli.describe import backfill_list
from gridmill.cli.farm_status import farm_line
from gridmill.cli.follow import display
from gridmill.cli.invocation import invocation
from gridmill.cli.leases import lease_line
from gridmill.cli.render import run_table
from gridmill.cli.service_texts import promotion_text, service_list
from gridmill.cli.session import Json, emit, print_sentence, session, settings_of, show
from gridmill.cli.show import run_list, schedule_list
from gridmill.domain.amounts import show_count
from gridmill.domain.lease_cost import LeaseView
from gridmill.domain.run import Run
from gridmill.domain.service import ServiceState, ServiceView
from gridmill.domain.states import FINISHED_RUNS
from gridmill.domain.views import ClientView, RunView
from gridmill.errors import InputError
from gridmill.sdk.client import Client
from gridmill.settings import is_farm

_RECENT = 10


def status(
    context: typer.Context,
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="Name of a run, or of a pipeline (its newest run). Default: the state of the grid.",
            autocompletion=complete_runs,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="After `sink`: PIPELINE/JOB. Default: all sinks.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Continue until the run ends.")] = False,
    json: Json = False,
) -> None:
    """Show the state of a run: state, place and progress of each job, and why a job waits. Without RUN, show
    the grid.

    `gridmill status sink` shows for each source of each sink the last load, rows, rejected rows, position and
    next check. If no control node is running, the state of the grid is read from the records of the home.
    """
    if watch and run is None:
        raise InputError("the run to watch is missing", hint="Pass a run; to list all: gridmill list runs")
    if run is None and _nothing_yet(context):
        return _print_no_home(context, json)
    with session(context, embed=not watch, reading=True) as client:
        if run in ("sink", "sinks"):
            status_sinks(client, name, as_json=json)
        elif run is None:
            _grid(client, json)
        elif watch:
            _watch(client, run, json)
        else:
            view = client.status(run)
            emit(view) if json else show(run_table(view, time.time()))


def _grid(client: Client, as_json: bool) -> None:
    control, runs = client.control(), client.list_runs(limit=_RECENT)
    leases = [one for one in client.list_leases(limit=_RECENT) if one.lease.is_open]
    if client.reading:
        return _records(client, runs, leases, control.problems, as_json)
    schedules, backfills = client.list_schedules(), client.list_backfills()
    farms, services = client.list_farms(), _started(client)
    compared = tuple(one for one in client.list_aliases() if one.promotion is not None)
    if as_json:
        output = {"control": control, "runs": runs, "schedules": schedules, "backfills": backfills}
        output = {**output, "services": services, "aliases": compared}
        return emit({**output, "farms": farms, "leases": leases})
    kind = "ends when its last client ends" if control.embedded else f"at {control.address}"
    print_sentence(f"control node {control.version} (process {control.pid}, {kind}), home {control.home}")
    print_sentence(
        f"{show_count(control.active_runs, 'active run')}: {show_count(control.running_jobs, 'job')} running"
        f", {control.waiting_jobs} waiting; {show_count(control.deployments, 'deployment')} running"
    )
    for one in control.clients:
        if one.pid != os.getpid():
            print_sentence(f"client: process {one.pid}, {one.command}{_attends(one)}")
    for trouble in control.problems:
        print_sentence(trouble)
    for farm in farms:
        print(f"farm {farm_line(farm)}")
    for lease in leases:
        print_sentence(lease_line(lease))
    for run in runs:
        if run.state not in FINISHED_RUNS:
            show(run_table(client.grid.run(run.id), time.time(), most=20))
    if runs:
        show(run_list(runs))
    if schedules:
        show(schedule_list(schedules))
    if backfills:
        show(backfill_list(backfills))
    if services:
        show(service_list(services))
    for alias in compared:
        print_sentence(f"alias {alias.id} {promotion_text(alias.id, alias.promotion)}")


def _started(client: Client) -> tuple[ServiceView, ...]:
    """Return the services that run or should run."""
    return tuple(one for one in client.list_services() if one.state is not ServiceState.STOPPED)


def _attends(client: ClientView) -> str:
    return f" (waits for {', '.join(client.runs)})" if client.runs else ""


def _records(
    client: Client, runs: Sequence[Run], leases: Sequence[LeaseView], problems: Sequence[str], as_json: bool
) -> None:
    """Print the state that the records show if no control node is running."""
    if as_json:
        return emit({"control": None, "runs": runs, "problems": problems, "leases": leases})
    print(f"no control node is running for {client.settings.home}; to start one: gridmill up")
    for trouble in problems:
        print_sentence(trouble)
    for lease in leases:
        print_sentence(lease_line(lease))
    if leases:
        print("these leases stay open until a control node ends the machines and confirms it: gridmill up")
    if any(run.state not in FINISHED_RUNS for run in runs):
        print("unfinished runs continue when a control node starts, or with: gridmill resume RUN")
    return show(run_list(runs)) if runs else print("no runs yet")


def _nothing_yet(context: typer.Context) -> bool:
    given = invocation(context)
    if given.client is not None or given.url is not None:
        return False
    settings = settings_of(context)
    home = settings.home
    used = any((home / name).exists() for name in ("store.db", "client.sock", "control.lock"))
    return not settings.store and (is_farm(home) or not used)


def _print_no_home(context: typer.Context, as_json: bool) -> None:
    if as_json:
        return emit({"control": None, "runs": ()})
    home = settings_of(context).home
    if is_farm(home):
        return print(f"{home} is the home of a farm; to list its tenants: gridmill farm tenants")
    return print(f"no control node is running for {home}, and it has no runs yet")


def _watch(client: Client, run: str, as_json: bool) -> None:
    if as_json:
        seen: RunView | None = None
        for tick in client.watch(run):
            if seen is None or (tick.view.run, tick.view.counts, tick.view.jobs) != (
                seen.run,
                seen.counts,
                seen.jobs,
            ):
                seen = tick.view
                emit(seen)
        return
    after = "" if sys.stderr.isatty() else client.newest_event(client.status(run).run.id)
    with display() as draw:
        for tick in client.watch(run, after=after):
            draw(tick)
    show(run_table(tick.view, time.time()))
