"""The command `down`: stops the control node of a home."""

from typing import Annotated

import typer

from gridmill.cli.session import Json, emit, say, session
from gridmill.errors import UnavailableError

_END_SECONDS = 90.0


def down(
    context: typer.Context,
    all: Annotated[
        bool,
        typer.Option(
            "--all", help="Stop the runs that it works for first; `gridmill resume` continues them."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """End the control node that is up, whoever started it. While it works for runs it is not ended without
    --all: the runs are named instead. To leave the jobs of `gridmill up` running, end that by Ctrl-C or
    SIGTERM.
    """
    try:
        with session(context, embed=False) as client:
            control, runs = client.control(), [run.id for run in client.list_runs() if run.ended is None]
            client.grid.shutdown(all=all)
            ended = client.wait_for_end(_END_SECONDS)
    except UnavailableError as error:
        if json:
            return emit({"ended": None, "stopped": ()})
        return print(f"nothing to end: {error.message}")
    if json:
        return emit({"ended": control.pid if ended else None, "stopped": runs})
    say(f"stopped: {', '.join(runs)}; `gridmill resume RUN` continues one") if runs else None
    told = "has ended" if ended else "is ending"
    return print(f"the control node of {control.home} (process {control.pid}) {told}")
