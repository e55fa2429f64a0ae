"""The command `recover` restores lost records from the files in the storage root."""

from collections.abc import Iterator
from typing import Annotated

import typer

from gridmill.cli.session import Json, emit, host_of, settings_of
from gridmill.domain.amounts import show_count
from gridmill.domain.recovery import RecoveryReport

_MOST = 20


def recover(
    context: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be restored; change nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Restore versions, aliases, lineage and declarations that the store of this home lost.

    The sources are the manifests and copies in the storage root, and the readable part of a damaged store,
    which is kept beside the new store. Nothing is deleted, and existing records are not changed, so the
    command can be repeated. The control node must be stopped (`gridmill down`).
    """
    report = host_of(context).recover(settings_of(context), dry_run=dry_run)
    if json:
        return emit(report)
    for line in _lines(report):
        print(line)
    return None


def _lines(report: RecoveryReport) -> Iterator[str]:
    would = "would be " if report.dry_run else ""
    yield report.found
    if report.kept_at:
        yield f"the damaged store is kept as {report.kept_at}"
    for noun, count in report.salvaged.items():
        yield f"read from the damaged store: {show_count(count, 'record')} of class {noun}"
    yield from _some([f"{would}restored: {name}" for name in report.restored])
    yield f"{show_count(len(report.restored), 'record')} {would}restored; {report.present:,} existed already"
    yield from _some([f"NOT restored: {what}: {why}" for what, why in report.problems])
    for what in report.lost:
        yield f"only stored in the lost store: {what}"


def _some(lines: list[str]) -> Iterator[str]:
    yield from lines[:_MOST]
    if len(lines) > _MOST:
        yield f"and {len(lines) - _MOST:,} more: --json"
