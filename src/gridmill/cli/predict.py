"""The command `predict` answers a large request to a service by a prediction job."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from gridmill.cli.completion import complete_services
from gridmill.cli.format import progress
from gridmill.cli.session import Json, emit, print_error, session
from gridmill.domain.amounts import about, show_count
from gridmill.domain.views import JobView
from gridmill.sdk.predictions import PREDICTIONS, RowProgress
from gridmill.sdk.runs import Tick

_EVERY_SECONDS = 1.0
"""The time between two lines of progress, if no job has changed its state."""


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
    features: Annotated[
        str,
        typer.Option(
            metavar="status|values",
            help="Write the status, or the value and the status, of each feature computed by key.",
        ),
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    json: Json = False,
) -> None:
    """Predict all rows of a file or a table with the version that a service serves now.

    Workers are started for the request, and end with it. The service gets no requests. The answer has the
    rows of the request in their order, with the predictions. If the service computes features by key, the
    rows have the keys, as in a request. Ctrl-C stops the workers, and writes no file.
    """
    lines = _Progress()
    with session(context) as client, _interruptible():
        answer = client.predict(
            service,
            data,
            output,
            overwrite=force,
            features=features,
            on_tick=lines.show,
            on_rows=lines.show_rows,
        )
    if json:
        return emit(answer)
    print(
        f"{show_count(answer.rows, 'prediction')} of {answer.version}, which service {service} serves, in "
        f"{output} ({answer.run})"
    )
    if answer.tables:
        print(f"features computed by key from {', '.join(answer.tables)}")
    for name, counted in answer.not_present.items():
        print(f"{name}: {', '.join(f'{number:,} {status}' for status, number in counted.items())}")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Handle SIGTERM and the loss of the terminal like Ctrl-C, so that the workers end and no file stays."""
    signals = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(one, _interrupt) for one in signals]
    try:
        yield
    except KeyboardInterrupt:
        print_error("stopped; no file was written")
        raise
    finally:
        for one, handler in zip(signals, before, strict=True):
            signal.signal(one, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class _Progress:
    """Prints the progress of the request to standard error: a line when a job changes its state, and at most
    one line per second while rows are counted."""

    def __init__(self) -> None:
        self._printed = ""
        self._states: tuple[str, ...] = ()
        self._printed_at = 0.0
        self._began: dict[str, tuple[float, float]] = {}

    def show(self, tick: Tick) -> None:
        """Print the states of the jobs and the progress of the running job."""
        parts = (
            f"{one.job.job.name} {one.job.state} {progress(one)}{self._pace_of(one)}".rstrip()
            for one in tick.view.jobs
        )
        states = tuple(str(one.job.state) for one in tick.view.jobs)
        self._print(f"{tick.view.run.id}: {', '.join(parts)}", at_once=states != self._states)
        self._states = states

    def show_rows(self, rows: RowProgress) -> None:
        """Print the progress of the client, which checks or writes rows."""
        done, total = (rows.rows, rows.total_rows) if rows.total_rows else (rows.bytes_read, rows.total_bytes)
        share = f" ({min(done / total, 1.0):.0%})" if total else ""
        pace = self._pace(rows.step, rows.rows, rows.rows * total / done if total and done else 0.0)
        self._print(f"{rows.step}: {rows.rows:,}{share}{pace}", at_once=bool(total) and done >= total)

    def _pace_of(self, view: JobView) -> str:
        done, total = view.progress.get("done"), view.progress.get("total")
        is_swarm = view.job.job.name == PREDICTIONS and view.progress.get("unit") == "rows"
        if not (is_swarm and isinstance(done, int | float) and isinstance(total, int | float)):
            return ""
        return f", {done:,.0f} of {total:,.0f} rows{self._pace(PREDICTIONS, done, total)}"

    def _pace(self, step: str, done: float, total: float) -> str:
        """Return the rows per second since the first call for this step, and the time left."""
        now = time.monotonic()
        at, first = self._began.setdefault(step, (now, done))
        if done <= first or now <= at:
            return ""
        rate = (done - first) / (now - at)
        left = f", {about((total - done) / rate)} left" if total > done else ""
        return f", {rate:,.0f} rows/s{left}"

    def _print(self, line: str, *, at_once: bool) -> None:
        now = time.monotonic()
        if line != self._printed and (at_once or now - self._printed_at >= _EVERY_SECONDS):
            print_error(line)
            self._printed, self._printed_at = line, now
