"""The command `reap` finds and ends the machines of Gridmill at a provider, without a home."""

from collections.abc import Iterator
from typing import Annotated

import typer

from gridmill.cli.parameters import read_set
from gridmill.cli.session import Json, emit, host_of, print_error, show
from gridmill.cli.tables import table
from gridmill.domain.amounts import about, parse_seconds, show_count
from gridmill.domain.reaping import ReapItem, ReapOrder, ReapReport, ReapResult
from gridmill.domain.rental_estimate import show_money
from gridmill.errors import InputError


def reap(
    context: typer.Context,
    provider: Annotated[
        str, typer.Argument(metavar="PROVIDER", help="Kind of the provider, for example aws.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set a setting of the account. Repeatable."),
    ] = None,
    owner: Annotated[
        str, typer.Option(metavar="GRID", help="Only machines of the grid with this id.", show_default=False)
    ] = "",
    every: Annotated[bool, typer.Option("--all", help="Machines of all grids.")] = False,
    lease: Annotated[
        str, typer.Option(metavar="LEASE", help="Only what belongs to this lease.", show_default=False)
    ] = "",
    older_than: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Only machines older than this, for example 6h.", show_default=False
        ),
    ] = "",
    images: Annotated[
        bool, typer.Option("--images", help="Also images that were built. Default: they are kept.")
    ] = False,
    bucket: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Also search this bucket for results of machines. Default: it is not searched.",
            show_default=False,
        ),
    ] = "",
    bucket_endpoint: Annotated[
        str,
        typer.Option(
            metavar="URL", help="Address of the bucket's server. Default: the cloud.", show_default=False
        ),
    ] = "",
    results: Annotated[
        bool, typer.Option("--results", help="Also results in the bucket. Default: they are kept.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="End what is found. Default: only list it.")] = False,
    wait: Annotated[
        str, typer.Option(metavar="TIME", help="How long to wait until the provider confirms the end.")
    ] = "5m",
    json: Json = False,
) -> None:
    """List the machines and other resources that Gridmill has created at a provider, and end them.

    The command finds machines by their tags. It needs neither a home nor a control node, and reads the
    credentials from the environment, so that it can run from cron or in a CI system on another machine.

    Images that `gridmill build image` has made are shown as kept. With --images, they are ended like other
    resources. The snapshots of an image are deleted together with it.

    With --bucket, the command searches the bucket to which machines upload results while their control node
    is away. Results are shown as kept, because the control node may still take them. With --results, the
    results of leases whose machines have ended are deleted.

    Without --yes, nothing is changed, and the exit code is 1 if something was found. With --yes, the exit
    code is 1 if the provider has not confirmed the end of everything in time. The exit code is 8 if the
    provider does not answer or refuses the credentials.
    """
    if yes and not (owner or every):
        what = f"what belongs to {lease} of every grid" if lease else "the machines of all grids"
        raise InputError(
            f"`gridmill reap --yes` would end {what}",
            hint="Add `--owner GRID`, or `--all` if you mean all grids. Each grid numbers its leases from 1.",
        )
    if (results or bucket_endpoint) and not bucket:
        raise InputError(
            "`--results` and `--bucket-endpoint` need the URL of a bucket",
            hint="Add `--bucket s3://BUCKET/PREFIX`.",
        )
    order = ReapOrder(
        kind=provider,
        settings=read_set(settings or ()),
        owner=owner,
        lease=lease,
        older_than_seconds=parse_seconds(older_than) if older_than else None,
        end=yes,
        with_images=images,
        bucket=bucket,
        endpoint=bucket_endpoint,
        with_results=results,
        wait_seconds=parse_seconds(wait),
    )
    report = host_of(context).reap(order)
    if json:
        emit(report)
    else:
        _print(report, "--yes" if owner or every else "--owner GRID --yes` or `--all --yes")
    if report.count(ReapResult.FOUND) + report.count(ReapResult.REMAINS):
        raise typer.Exit(1)


def _print(report: ReapReport, ending: str) -> None:
    if report.items:
        names = ("", "id", "region", "type", "grid", "lease", "age", "per hour", "state", "result")
        show(table(*names, rows=[_row(item) for item in report.items]))
    print(_summary(report))
    for line in _problems(report):
        print_error(line)
    if report.count(ReapResult.FOUND):
        print(f"Repeat the command with `{ending}` to end what was found.")


def _row(item: ReapItem) -> tuple[str, ...]:
    is_machine = item.kind == "machine"
    price = "unknown" if item.price_micros is None else show_money(item.price_micros, item.currency)
    age = "unknown" if item.age_seconds is None else about(item.age_seconds)
    return (
        item.kind,
        item.id,
        item.region,
        item.instance_type,
        item.owner,
        item.lease,
        age if is_machine else "",
        price if is_machine else "",
        item.state,
        item.result,
    )


def _summary(report: ReapReport) -> str:
    counts = ((report.count(result), result) for result in ReapResult)
    text = ", ".join(f"{count:,} {result}" for count, result in counts if count)
    machines = sum(item.kind == "machine" for item in report.items)
    others = len(report.items) - machines
    what = f"{show_count(machines, 'machine')} and {show_count(others, 'other resource')}"
    return f"{what} at {report.kind}" + (f": {text}" if text else "")


def _problems(report: ReapReport) -> Iterator[str]:
    for item in report.items:
        if item.problem:
            yield f"{item.kind} {item.id} in {item.region} remains: {item.problem}"
