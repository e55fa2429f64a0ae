"""The commands `backfill` (or `start backfill`) and `stop backfill`."""

from pathlib import Path
from typing import Annotated

import typer

from gridmill.cli.parameters import Force, Set, read_set
from gridmill.cli.session import Json, emit, print_error, session
from gridmill.domain.backfill import BackfillView, ChunkState
from gridmill.errors import InputError
from gridmill.sdk.project import is_name


def backfill(
    context: typer.Context,
    pipeline: Annotated[
        Path,
        typer.Argument(
            metavar="NAME|FILE",
            help="Name of a pipeline that was applied or run, or a pipeline file (YAML).",
            show_default=False,
        ),
    ],
    set: Set = None,
    force: Force = False,
    begins: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Start of the range, for example 2013-01-01.")
    ] = None,
    ends: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="End of the range (exclusive).")
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Length of a chunk: 6h, 7d, 1mo. Default: the whole range."),
    ] = None,
    zone: Annotated[
        str, typer.Option(help="Time zone of --from and --to, and of the days and months of the chunks.")
    ] = "UTC",
    parallel: Annotated[int, typer.Option(help="Number of chunks that run at the same time.")] = 1,
    newest_first: Annotated[bool, typer.Option("--newest-first", help="Run the newest chunk first.")] = False,
    json: Json = False,
) -> None:
    """Run a pipeline over a range of time, one run for each chunk of the range. Needs `gridmill up`.

    Each run gets the start and the end of its chunk as the parameters `from` and `to`. If PIPELINE is a
    name, the pipeline is used as it was applied last, or as it was run last if it was never applied. With a
    name and without a range, the command continues the backfill of that pipeline and repeats its failed
    chunks.
    """
    if begins is None and ends is None and every is None and is_name(pipeline):
        with session(context, permanent=True) as client:
            return _print_backfill(client.resume_backfill(str(pipeline)), json)
    if begins is None or ends is None:
        raise _needs_range(pipeline)
    with session(context, permanent=True) as client:
        view = client.start_backfill(
            pipeline,
            begins=begins,
            ends=ends,
            every=every,
            zone=zone,
            parallel=parallel,
            newest_first=newest_first,
            set=read_set(set or ()),
            force=force,
        )
    return _print_backfill(view, json)


def _needs_range(what: Path) -> InputError:
    return InputError(
        "a backfill needs --from and --to",
        hint=f"gridmill start backfill {what} --from 2013-01-01 --to 2013-06-01 --every 7d",
    )


def _print_backfill(view: BackfillView, as_json: bool) -> None:
    if as_json:
        return emit(view)
    print(f"backfill {view.name}: {backfill_summary(view)}")
    return print_error(f"to follow it: gridmill show backfill {view.name}")


def stop_backfill(context: typer.Context, name: str, as_json: bool) -> None:
    """Stop a backfill: start no further chunk."""
    with session(context, embed=False) as client:
        view = client.stop_backfill(name)
    if as_json:
        return emit(view)
    print(f"backfill {name} stopped: {backfill_summary(view)}; active runs continue")
    return print_error(f"to continue it: gridmill start backfill {name}")


def backfill_summary(view: BackfillView) -> str:
    """Return a summary of a backfill, such as `21 chunks: 3 done, 18 left`."""
    counts = [f"{count} {state.value}" for state in ChunkState if (count := view.counts.get(state))]
    chunks = "1 chunk" if len(view.chunks) == 1 else f"{len(view.chunks)} chunks"
    return f"{chunks}: {', '.join(counts)}"
