"""The command `verify`: checks that versions are unchanged since they were made."""

from collections.abc import Iterator
from typing import Annotated

import typer

from gridmill.cli.completion import complete_versions
from gridmill.cli.session import Json, emit, session, show
from gridmill.cli.tables import table
from gridmill.domain.amounts import show_bytes, show_count
from gridmill.domain.manifest import Trouble, Verified

_MOST_FILES = 20


def verify(
    context: typer.Context,
    reference: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            autocompletion=complete_versions,
            help="PIPELINE/JOB@N or @ALIAS, PIPELINE/JOB (all versions) or PIPELINE; none: all there are.",
            show_default=False,
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Read all files of versions, and compare them with what they were when the versions were made.

    Ends with exit code 1 if a file is missing, was changed or was added.
    """
    with session(context, reading=True) as client:
        found = client.verify(reference)
    if json:
        emit(found)
    else:
        rows = [(one.version, f"{one.files:,}", show_bytes(one.size_bytes), _state(one)) for one in found]
        show(table("version", "files", "size", "", rows=rows))
        for line in (line for one in found for line in _files(one)):
            print(line)
        print(_summary(found))
    if any(one.is_wrong for one in found):
        raise typer.Exit(1)


def _state(one: Verified) -> str:
    if one.problem:
        return one.problem
    counts = [(sum(each.trouble == kind for each in one.troubles), kind) for kind in Trouble]
    return ", ".join(f"{count:,} {kind}" for count, kind in counts if count) or "ok"


def _files(one: Verified) -> Iterator[str]:
    for each in one.troubles[:_MOST_FILES]:
        yield f"{one.version}: {each.told}"
    if len(one.troubles) > _MOST_FILES:
        yield f"{one.version}: and {len(one.troubles) - _MOST_FILES:,} more: --json"


def _summary(found: tuple[Verified, ...]) -> str:
    wrong = sum(one.is_wrong for one in found)
    unknown = sum(not one.known for one in found)
    size = show_bytes(sum(one.size_bytes for one in found))
    said = f"{show_count(len(found), 'version')} verified, {size}: "
    said += f"{wrong:,} not what they were" if wrong else "all are what they were"
    return said + (f"; of {unknown:,} it is not known" if unknown else "")
