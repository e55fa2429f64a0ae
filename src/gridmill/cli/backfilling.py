"""`start backfill`, `stop backfill`."""

from pathlib import Path

import typer

from gridmill.cli.session import emit, say, session
from gridmill.errors import InputError
from gridmill.model.backfill import BackfillView, ChunkState
from gridmill.sdk.backfills import is_name


def start_backfill(
    context: typer.Context,
    what: Path,
    bounds: tuple[str | None, str | None, str | None],
    *,
    parallel: int,
    newest_first: bool,
    values: dict[str, str],
    force: bool,
    as_json: bool,
) -> None:
    """Start one over a range (from, to, every); without a range, the known one of that name again."""
    begins, ends, every = bounds
    if begins is None and ends is None and every is None and is_name(what):
        with session(context, embed=False) as client:
            return _tell(client.resume_backfill(str(what)), as_json)
    if begins is None or ends is None:
        raise _needs_range(what)
    with session(context, embed=False) as client:
        view = client.start_backfill(
            what,
            begins=begins,
            ends=ends,
            every=every,
            parallel=parallel,
            newest_first=newest_first,
            set=values,
            force=force,
        )
    return _tell(view, as_json)


def _needs_range(what: Path) -> InputError:
    return InputError(
        "a backfill needs --from and --to",
        hint=f"gridmill start backfill {what} --from 2013-01-01 --to 2013-06-01 --every 7d",
    )


def _tell(view: BackfillView, as_json: bool) -> None:
    if as_json:
        return emit(view)
    print(f"backfill {view.name}: {told(view)}")
    return say(f"follow it with: gridmill show backfill {view.name}")


def stop_backfill(context: typer.Context, name: str, as_json: bool) -> None:
    """Start no further chunk of it."""
    with session(context, embed=False) as client:
        view = client.stop_backfill(name)
    if as_json:
        return emit(view)
    print(f"backfill {name} stopped: {told(view)}; runs that are active go on")
    return say(f"`gridmill start backfill {name}` goes on")


def told(view: BackfillView) -> str:
    """`21 chunks: 3 done, 18 left`."""
    counts = [f"{count} {state.value}" for state in ChunkState if (count := view.counts.get(state))]
    chunks = "1 chunk" if len(view.chunks) == 1 else f"{len(view.chunks)} chunks"
    return f"{chunks}: {', '.join(counts)}"
