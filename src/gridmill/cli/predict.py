"""The command `predict` answers a large request to a service by a prediction job."""

from pathlib import Path
from typing import Annotated

import typer

from gridmill.cli.completion import complete_services
from gridmill.cli.format import progress
from gridmill.cli.session import Json, emit, print_error, session
from gridmill.domain.amounts import show_count
from gridmill.sdk.runs import Tick


def predict(
    context: typer.Context,
    service: Annotated[
        str, typer.Argument(metavar="SERVICE", help="Name of the service.", autocompletion=complete_services)
    ],
    data: Annotated[
        str,
        typer.Option(
            metavar="FILE|VERSION", help="Rows: a .csv, .jsonl or .parquet file, or PIPELINE/JOB[@N]."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="File for the answer: .csv, .jsonl or .parquet."),
    ],
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    json: Json = False,
) -> None:
    """Predict all rows of a file or a table with the version that a service serves now.

    Workers are started for the request, and end with it. The service gets no requests. The answer has the
    rows of the request in their order, with the predictions.
    """
    with session(context) as client:
        answer = client.predict(service, data, output, overwrite=force, on_tick=_Progress().show)
    if json:
        return emit(answer)
    return print(
        f"{show_count(answer.rows, 'prediction')} of {answer.version}, which service {service} serves, in "
        f"{output} ({answer.run})"
    )


class _Progress:
    """Prints the progress of the run to standard error, whenever it changes."""

    def __init__(self) -> None:
        self._printed = ""

    def show(self, tick: Tick) -> None:
        """Print the states of the jobs and the progress of the running job."""
        parts = (f"{one.job.job.name} {one.job.state} {progress(one)}".rstrip() for one in tick.view.jobs)
        line = f"{tick.view.run.id}: {', '.join(parts)}"
        if line != self._printed:
            print_error(line)
        self._printed = line
