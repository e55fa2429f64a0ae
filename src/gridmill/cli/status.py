"""`status`: how the grid or a run stands, now or until it ends."""

import time
from typing import Annotated

import typer

from gridmill.cli.complete import complete_runs
from gridmill.cli.follow import Lines, LiveTable
from gridmill.cli.nouns import run_list
from gridmill.cli.render import run_table
from gridmill.cli.session import Json, console, emit, session, show
from gridmill.model.state import FINISHED_RUNS
from gridmill.model.view import RunView
from gridmill.sdk.client import Client

_RECENT = 10


def status(
    context: typer.Context,
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]", help="A run, or a pipeline for its newest.", autocompletion=complete_runs
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until the run ends.")] = False,
    json: Json = False,
) -> None:
    """How a run stands: state, place, progress, and what each job waits for. Without RUN: the grid.

    The grid's status needs a control node that is up (exit code 8 without one).
    """
    with session(context, embed=run is not None and not watch, reading=run is not None) as client:
        if run is None:
            _grid(client, json)
        elif watch:
            _watch(client, run, json)
        else:
            view = client.status(run)
            emit(view) if json else show(run_table(view, time.time()))


def _grid(client: Client, as_json: bool) -> None:
    control, runs = client.control(), client.list_runs(limit=_RECENT)
    if as_json:
        return emit({"control": control, "runs": runs})
    kind = "embedded in another command" if control.embedded else f"at {control.address}"
    print(f"control node {control.version} (process {control.pid}, {kind}), home {control.home}")
    print(
        f"{control.active_runs} active runs: {control.running_jobs} jobs running, "
        f"{control.waiting_jobs} waiting; {control.deployments} deployments up"
    )
    for run in runs:
        if run.state not in FINISHED_RUNS:
            show(run_table(client.grid.run(run.id), time.time(), most=20))
    if runs:
        show(run_list(runs))
    return None


def _watch(client: Client, run: str, as_json: bool) -> None:
    if as_json:
        seen: RunView | None = None
        for tick in client.watch(run):
            if tick.view != seen:
                seen = tick.view
                emit(seen)
        return
    screen = console(error=True)
    after = 0 if screen.is_terminal else client.newest_event(client.status(run).run.id)
    with LiveTable(screen) if screen.is_terminal else Lines() as draw:
        for tick in client.watch(run, after=after):
            draw(tick)
    show(run_table(tick.view, time.time()))
