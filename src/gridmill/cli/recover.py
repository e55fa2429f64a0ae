"""The command `recover`: makes lost records again from what lies in the storage root."""

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

    They are made again from the manifests and copies in the storage root, and from what can be read of a
    damaged store, which is kept beside the new one. Nothing is deleted, and what the store has is not
    changed: the command can be repeated. It needs the control node to be down (`gridmill down`).
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
        yield f"it is kept as {report.kept_at}"
    for noun, count in report.salvaged.items():
        yield f"read from it: {show_count(count, 'record')} of class {noun}"
    yield from _some([f"{would}restored: {name}" for name in report.restored])
    yield f"{show_count(len(report.restored), 'record')} {would}restored; {report.present:,} were there"
    yield from _some([f"NOT restored: {what}: {why}" for what, why in report.problems])
    for what in report.lost:
        yield f"nothing has but the store: {what}"


def _some(lines: list[str]) -> Iterator[str]:
    yield from lines[:_MOST]
    if len(lines) > _MOST:
        yield f"and {len(lines) - _MOST:,} more: --json"
