"""The command `report`: writes the report of a run as one HTML file."""

import sys
from typing import Annotated

import typer

from gridmill.cli.run import RunName
from gridmill.cli.session import Json, emit, session


def report(
    context: typer.Context,
    run: RunName,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write it; - is standard output."),
    ] = None,
    json: Json = False,
) -> None:
    """Write a run's report and print where: DAG, timeline, metrics, sizes and what was really used."""
    with session(context, reading=True) as client:
        if output == "-":
            sys.stdout.write(client.grid.report(client.status(run).run.id))
            return
        path = client.report(run, output)
    emit({"run": run, "path": str(path)}) if json else print(path)
