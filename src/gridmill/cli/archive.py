"""The commands `backup` and `restore`: pipelines with everything they made, as one file."""

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
        typer.Argument(metavar="PIPELINE...", help="Their names.", autocompletion=complete_pipelines),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The archive to write.")],
    json: Json = False,
) -> None:
    """Write pipelines, their versions with lineage, aliases, tables and models into one archive."""
    with session(context) as client:
        moved = client.backup(*pipelines, path=output)
    if json:
        return emit(moved)
    return print(f"{show_count(len(moved.versions), 'version')} in {output}, {show_bytes(moved.size_bytes)}")


def restore(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An archive that `gridmill backup` wrote.")],
    json: Json = False,
) -> None:
    """Restore the pipelines of an archive into this grid: all of it, after everything is verified."""
    with session(context) as client:
        moved = client.restore(file)
    if json:
        return emit(moved)
    already = f"; {moved.already_present} were there already" if moved.already_present else ""
    return print(f"{show_count(len(moved.versions), 'version')} restored from {file}{already}")
