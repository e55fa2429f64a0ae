"""The command `verify` checks that the files of versions did not change after they were made."""

from collections.abc import Iterator
from typing import Annotated

import typer

from gridmill.cli.completion import complete_versions
from gridmill.cli.session import Json, emit, session, show
from gridmill.cli.tables import table
from gridmill.domain.amounts import show_bytes, show_count
from gridmill.domain.version_manifest import FileProblemKind, VerificationResult

_MOST_FILES = 20


def verify(
    context: typer.Context,
    reference: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            autocompletion=complete_versions,
            help="PIPELINE/JOB@N or @ALIAS, PIPELINE/JOB (all its versions) or PIPELINE. Default: all "
            "versions.",
            show_default=False,
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Compare all files of versions with the hashes that were stored when the versions were made.

    The exit code is 1 if a file is missing, changed or added.
    """
    with session(context, reading=True) as client:
        results = client.verify(reference)
    if json:
        emit(results)
    else:
        rows = [(one.version, f"{one.files:,}", show_bytes(one.size_bytes), _state(one)) for one in results]
        show(table("version", "files", "size", "", rows=rows))
        for line in (line for one in results for line in _files(one)):
            print(line)
        print(_summary(results))
    if any(one.is_wrong for one in results):
        raise typer.Exit(1)


def _state(one: VerificationResult) -> str:
    if one.problem:
        return one.problem
    counts = [(sum(each.kind == kind for each in one.file_problems), kind) for kind in FileProblemKind]
    return ", ".join(f"{count:,} {kind}" for count, kind in counts if count) or "ok"


def _files(one: VerificationResult) -> Iterator[str]:
    for each in one.file_problems[:_MOST_FILES]:
        yield f"{one.version}: {each.text}"
    if len(one.file_problems) > _MOST_FILES:
        yield f"{one.version}: and {len(one.file_problems) - _MOST_FILES:,} more: --json"


def _summary(found: tuple[VerificationResult, ...]) -> str:
    wrong = sum(one.is_wrong for one in found)
    unknown = sum(not one.known for one in found)
    size = show_bytes(sum(one.size_bytes for one in found))
    message = f"{show_count(len(found), 'version')} verified, {size}: "
    message += f"{wrong:,} changed" if wrong else "all unchanged"
    return message + (f"; {unknown:,} without stored hashes" if unknown else "")
