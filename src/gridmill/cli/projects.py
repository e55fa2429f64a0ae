"""`export` and `import`: whole projects as one file."""

from pathlib import Path
from typing import Annotated

import typer

from gridmill.cli.session import Json, emit, session
from gridmill.model.amounts import show_bytes, show_count


def export(
    context: typer.Context,
    pipelines: Annotated[list[str], typer.Argument(metavar="PIPELINE...", help="Their names.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The archive to write.")],
    json: Json = False,
) -> None:
    """Write pipelines, their versions with lineage, aliases, tables and models into one archive."""
    with session(context) as client:
        moved = client.export_project(*pipelines, path=output)
    if json:
        return emit(moved)
    return print(f"{show_count(len(moved.versions), 'version')} in {output}, {show_bytes(moved.size_bytes)}")


def import_archive(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An archive that `gridmill export` wrote.")],
    json: Json = False,
) -> None:
    """Take the pipelines of an archive into this grid: all of it, once everything was verified."""
    with session(context) as client:
        moved = client.import_project(file)
    if json:
        return emit(moved)
    already = f"; {moved.there_already} were there already" if moved.there_already else ""
    return print(f"{show_count(len(moved.versions), 'version')} imported from {file}{already}")
