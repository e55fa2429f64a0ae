"""The commands `du` and `clean` show what uses disk space, and delete what is not needed."""

from collections import Counter
from enum import StrEnum
from typing import Annotated

import typer

from gridmill.cli.session import Json, emit, session, settings_of, show
from gridmill.cli.tables import table
from gridmill.domain.amounts import show_bytes, show_count
from gridmill.domain.retention import DAY_SECONDS
from gridmill.domain.usage import DiskUsage
from gridmill.sdk.client import Client


class GroupBy(StrEnum):
    """The kinds of groups for which `du` prints total sizes."""

    KIND = "kind"
    JOB = "job"
    VERSION = "version"


def du(
    context: typer.Context,
    by: Annotated[GroupBy, typer.Option(help="Group by kind, job or version.")] = GroupBy.KIND,
    json: Json = False,
) -> None:
    """Show the disk space that versions and the folders of the home use."""
    with session(context, reading=True) as client:
        usage = client.usage()
    if json:
        return emit(usage)
    sizes, counts = Counter[str](), Counter[str]()
    for one in usage:
        name = _name(one, by)
        sizes[name] += one.size_bytes
        counts[name] += 1
    rows = [(name, counts[name], show_bytes(size)) for name, size in sizes.most_common()]
    rows.append(("total", len(usage), show_bytes(sizes.total())))
    return show(table(by.value, "entries", "size", rows=rows))


def _name(one: DiskUsage, by: GroupBy) -> str:
    match by:
        case GroupBy.JOB:
            return f"{one.kind} {one.job}".strip()
        case GroupBy.VERSION:
            return one.version or f"{one.kind} {one.job}".strip()
    return one.kind


def clean(
    context: typer.Context,
    days: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="Days for which history is kept. Default: GRIDMILL_HISTORY, else 90.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Delete versions that their jobs do not retain, leftovers, and history older than --days.

    Leftovers are files of deleted versions and failed attempts, and folders of ended pods. History is logs,
    events, reports, code bundles, environments, and records of runs that no version refers to. Files that a
    run may use are not deleted.
    """
    kept = settings_of(context).history_seconds / DAY_SECONDS if days is None else days
    with session(context, reading=dry_run) as client:
        before = _free_bytes(client)
        removed_items = client.clean(days=kept, dry_run=dry_run)
        freed = _free_bytes(client) - before
    if json:
        return emit(removed_items)
    if removed_items:
        rows = [(one.kind, one.name, show_bytes(one.size_bytes), one.why) for one in removed_items]
        show(table("", "", "size", "", rows=rows))
    size = show_bytes(sum(one.size_bytes for one in removed_items))
    print(f"{show_count(len(removed_items), 'item')} {'would be deleted' if dry_run else 'deleted'}, {size}")
    if not dry_run:
        more = f"{show_bytes(freed)} more" if freed > 0 else "no more"
        print(
            f"the disk has {more} free space than before (measured by the file system, which includes "
            "files that jobs wrote meanwhile)"
        )
    return None


def _free_bytes(client: Client) -> int:
    """Return the free bytes of the disks of the home and of the storage root."""
    return sum(space.free_bytes for space in client.control().disks)
