"""The commands `backup` and `restore` write pipelines with all their results into a single file, and read
such a file."""

from pathlib import Path
from typing import Annotated

import typer

from gridmill.cli.completion import complete_pipelines
from gridmill.cli.session import Json, emit, session
from gridmill.domain.amounts import show_bytes, show_count


def backup(
    context: typer.Context,
    pipelines: Annotated[
        list[str],
        typer.Argument(metavar="PIPELINE...", help="Names of pipelines.", autocompletion=complete_pipelines),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write.")],
    json: Json = False,
) -> None:
    """Write pipelines with their versions, aliases, tables, models and lineage into one archive."""
    with session(context) as client:
        moved = client.backup(*pipelines, path=output)
    if json:
        return emit(moved)
    return print(f"{show_count(len(moved.versions), 'version')} in {output}, {show_bytes(moved.size_bytes)}")


def restore(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An archive made by `gridmill backup`.")],
    json: Json = False,
) -> None:
    """Restore the pipelines of an archive into this grid. Before any pipeline is restored, all data in the
    archive is verified."""
    with session(context) as client:
        moved = client.restore(file)
    if json:
        return emit(moved)
    already = f"; {moved.already_present} existed already" if moved.already_present else ""
    return print(f"{show_count(len(moved.versions), 'version')} restored from {file}{already}")
