"""The commands `export` and `path` give results to other programs as files."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gridmill.cli.completion import complete_versions
from gridmill.cli.session import Json, emit, print_error, session
from gridmill.domain.amounts import show_bytes, show_count
from gridmill.errors import InputError

_VERSION = typer.Argument(
    metavar="VERSION",
    autocompletion=complete_versions,
    help="PIPELINE/JOB@N or PIPELINE/JOB@ALIAS. PIPELINE/JOB is the newest version.",
)
_STDOUT = "-"


def export(
    context: typer.Context,
    versions: Annotated[list[str], _VERSION],
    to: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="NAME.csv, .parquet or .jsonl; for a model .onnx; - is standard output."
        ),
    ] = "",
    format: Annotated[
        str, typer.Option(help="csv, parquet, jsonl or onnx. Default: from the file name; for -: csv.")
    ] = "",
    columns: Annotated[
        str, typer.Option(metavar="COLUMN,...", help="Write only these columns. Default: all.")
    ] = "",
    split: Annotated[
        str,
        typer.Option(
            help="Write only this split of a dataset: train, validation or test. Default: all rows."
        ),
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    output: Annotated[str, typer.Option("--output", "-o", hidden=True)] = "",
    json: Json = False,
) -> None:
    """Write the rows of a sink, dataset or prediction, or the graph of a model, to a file."""
    version = _one(versions, to, output)
    names = [name.strip() for name in columns.split(",") if name.strip()] or None
    with session(context, reading=True) as client:
        loaded = client.load(version)
    if to == _STDOUT:
        loaded.write(sys.stdout.buffer, format=format or "csv", columns=names, split=split or None)
        return
    rows = loaded.write(Path(to), format=format or None, columns=names, split=split or None, replace=force)
    size = Path(to).stat().st_size  # taken from the file system, which reports the size 0 for a pipe
    if json:
        return emit(
            {"version": loaded.id, "path": str(Path(to).absolute()), "rows": rows, "size_bytes": size}
        )
    what = (
        f"{show_count(rows, 'row')} of {loaded.id}"
        if loaded.kind != "model"
        else f"the ONNX graph of {loaded.id}"
    )
    print_error(f"{what} in {to}, {show_bytes(size)}")


def _one(versions: list[str], to: str, output: str) -> str:
    """Return the version whose rows or graph the command writes to a file. Raises InputError for the former
    usage of `export`, which is now the command `backup`."""
    if output:
        again = f"gridmill backup {' '.join(versions)} -o {output}"
        raise InputError(
            "`gridmill backup` writes archives of pipelines, not `gridmill export`",
            hint=f"Write `{again}`.",
        )
    if len(versions) > 1:
        raise InputError(
            "`gridmill export` writes only one version at a time",
            hint="Run the command once for each version.",
        )
    if not to:
        name = versions[0].partition("@")[0].rpartition("/")[2]
        raise InputError(
            "the option --to is missing", hint=f"--to {name}.csv, {name}.parquet, ..., or --to -"
        )
    return versions[0]


def path(context: typer.Context, version: Annotated[str, _VERSION], json: Json = False) -> None:
    """Print the folder of a version. For a sink, the folder is the Delta table, which contains all
    versions."""
    with session(context, reading=True) as client:
        loaded = client.load(version)
    if json:
        output = loaded.artifact.output
        told = {"version": loaded.id, "kind": loaded.kind, "path": str(loaded.path)}
        return emit(told | {"table_version": output.table_version})
    return print(loaded.path)
