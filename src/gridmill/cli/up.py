"""The commands `up` and `down` run the control node of a home in the foreground, and stop it.

The control node listens on the Unix socket of the home and on a loopback port.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from gridmill.cli.farm import FarmOptions, run_until_interrupted
from gridmill.cli.session import InterruptHandler, Json, emit, host_of, print_error, session, settings_of
from gridmill.cli.sites import read_settings
from gridmill.domain.amounts import show_count
from gridmill.domain.naming import is_loopback
from gridmill.domain.naming import read_address as read_host
from gridmill.domain.states import FINISHED_RUNS, RunState
from gridmill.errors import HungNodeError, InputError, UnavailableError
from gridmill.ports.host import GRID_PORT, Host, LooseGrid
from gridmill.process_log import log_to_standard_error
from gridmill.settings import Settings

_POLL_SECONDS = 0.2
_HOST = re.compile(r"[\w.-]+|[0-9a-fA-F]*:[0-9a-fA-F:.]*:[0-9a-fA-F.]*")
"""A pattern for a host name, an IPv4 or an IPv6 address, without a port."""
_QUOTA, _RETAIN, _NAME = "50GiB", "7d", "gpu-farm"


def up(
    context: typer.Context,
    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Address of the REST API, or `off`."),
    ] = "127.0.0.1:8700",
    store: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Database of the records: postgresql://USER@HOST/DATABASE. Default: GRIDMILL_STORE. "
            "The password is read from PGPASSWORD or ~/.pgpass.",
            show_default=False,
        ),
    ] = "",
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Take over a store whose home is lost. The pods of that home count as ended.",
        ),
    ] = False,
    ray: Annotated[
        str,
        typer.Option(
            metavar="HOST[:PORT]",
            help="Start the head of a grid. Other machines join the grid at this address.",
            show_default=False,
        ),
    ] = "",
    gpu_shares: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of shares of each GPU of this machine. Default: 1.", show_default=False
        ),
    ] = None,
    light: Annotated[
        bool,
        typer.Option("--light", help="Start a farm: run jobs of the homes that join the farm."),
    ] = False,
    site: Annotated[
        str,
        typer.Option(
            metavar="KIND[:ADDRESS]", help="With --light: the site where jobs run: local, slurm or ray."
        ),
    ] = "local",
    set: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="With --light: set a setting of that site. Repeatable."
        ),
    ] = None,
    quota: Annotated[
        str,
        typer.Option(
            help="With --light: the maximum size of the transferred data that the farm keeps of each tenant."
        ),
    ] = _QUOTA,
    retain: Annotated[
        str,
        typer.Option(
            help="With --light: the time for which the farm keeps results that a tenant has not downloaded."
        ),
    ] = _RETAIN,
    tenant_disk: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="With --light: the maximum disk space of the files of a tenant. 0: no limit. "
            "Default: half of the disk.",
            show_default=False,
        ),
    ] = "",
    tenant_files: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --light: the maximum number of files of a tenant. 0: no limit. Default: half of the "
            "inodes.",
            show_default=False,
        ),
    ] = None,
    bucket_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="With --light: a bucket server that the farm may open on its own machine. Repeatable.",
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="With --light: the name of the farm in the join line.")] = _NAME,
    json: Json = False,
) -> None:
    """Start the control node in the foreground. Ctrl-C stops it.

    Jobs and pods continue without the control node, and the next control node finds them again. If commands
    of this home share a control node, that control node ends, and the new control node continues its runs.
    With --ray, this machine is the head of a grid of loose machines: the name of its site is `grid`, and
    `gridmill join` adds a machine. With
    --light, this machine is a farm.
    """
    farms = (
        site != "local",
        set,
        bucket_host,
        tenant_disk,
        tenant_files is not None,
        (quota, retain, name) != (_QUOTA, _RETAIN, _NAME),
    )
    check_light(light, control=(store, take_over, ray), farm=farms)
    host, settings = host_of(context), with_shares(settings_of(context), gpu_shares)
    if light:
        words = FarmOptions(
            listen=listen,
            site=site,
            settings=read_settings(set or ()),
            quota=quota,
            retain=retain,
            tenant_disk=tenant_disk,
            tenant_files=tenant_files,
            name=name,
        )
        return run_until_interrupted(host, with_bucket_hosts(settings, bucket_host or ()), words, json)
    log_to_standard_error(format="gridmill: %(message)s")
    address = read_address(listen)
    head = _read_head(host, ray) if ray else None
    settings = with_store(settings, store)
    with host.serve(settings, address, take_over=take_over, say=print_error) as served:
        emit(
            {
                "address": served.url,
                "socket": str(settings.home / "control.sock"),
                "control": served.control,
            }
        ) if json else None
        print_error(f"control node running, home {settings.home}")
        if served.url:
            print_error(
                f"REST API {served.url}/v1, docs {served.url}/docs, token in {settings.home / 'control.json'}"
            )
        if head is not None:
            _print_join_command(host.gather(served.grid, settings, *head))
        with InterruptHandler() as interrupts:
            while not (interrupts.requested or served.ending):
                time.sleep(_POLL_SECONDS)
        served.check_own()
    return print_error("control node stopped; running jobs continue")


def _read_head(host: Host, at: str) -> tuple[str, int]:
    """Return the address on which the head of the grid listens. Raises InputError if the address is not an
    address of this machine, UnavailableError if Ray is not installed."""
    name, number = read_host(at, port=GRID_PORT, place="--ray")
    host.check_head(name)
    return name, number


def _print_join_command(gathered: LooseGrid) -> None:
    """Print the command that the user runs on the other machines."""
    nodes = show_count(len(gathered.site.nodes), "node")
    print_error(f"site grid: {nodes}; its token is in {gathered.token}. On each other machine, run:")
    print_error(f"  GRIDMILL_TOKEN=... gridmill join {gathered.site.address}")


def check_light(light: bool, *, control: tuple[object, ...], farm: tuple[object, ...]) -> None:
    """Raise InputError if options of a farm and of a control node are mixed."""
    if light and any(control):
        raise InputError(
            "--store, --take-over and --ray cannot be combined with --light",
            hint="A farm stores no runs. Its site is set by --site, for example: gridmill up --light "
            "--site slurm",
        )
    if not light and any(farm):
        raise InputError(
            "--site, --set, --quota, --retain, --tenant-disk, --tenant-files, --bucket-host and --name "
            "need --light",
            hint="Add --light for a farm. To add a site to a control node: gridmill add site NAME "
            "--kind slurm",
        )


def with_shares(settings: Settings, gpu_shares: int | None) -> Settings:
    """Return the settings with the given number of shares of each GPU. Without a number, return the settings
    unchanged."""
    return settings if gpu_shares is None else replace(settings, gpu_shares=gpu_shares)


def with_bucket_hosts(settings: Settings, hosts: Sequence[str]) -> Settings:
    """Return the settings with these hosts of buckets added. Raises InputError for an invalid host."""
    for host in hosts:
        if not _HOST.fullmatch(host):
            hint = "Write only the name or the address, for example --bucket-host minio."
            raise InputError(f"{host!r} is not a host", hint=hint, place="--bucket-host")
    return replace(settings, bucket_hosts=(*settings.bucket_hosts, *map(str.lower, hosts)))


def with_store(settings: Settings, url: str) -> Settings:
    """Return the settings with the given store. Without a store, return the settings unchanged. Raises
    InputError if the address of the store contains a password, because every user of the machine can read
    command lines."""
    if "@" in url and ":" in url.partition("://")[2].partition("@")[0]:
        raise InputError(
            "--store contains a password, which every user of this machine can see",
            hint="Remove the password and set PGPASSWORD, write it into ~/.pgpass, or set "
            "GRIDMILL_STORE instead of --store.",
        )
    return replace(settings, store=url) if url else settings


def read_address(listen: str) -> tuple[str, int] | None:
    """Parse HOST:PORT of this machine. Return None for the text `off`. Raises InputError."""
    if listen == "off":
        return None
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InputError(f"{listen!r} is not HOST:PORT", hint="Write for example --listen 127.0.0.1:8700.")
    if not is_loopback(host):
        raise InputError(
            f"{host} is not a loopback address: on other addresses a control node would need TLS and "
            "tokens per "
            "user, which are not implemented",
            hint="Listen on 127.0.0.1 and reach it through an SSH tunnel (ssh -L 8700:127.0.0.1:8700 HOST).",
        )
    return host, int(port)


_END_SECONDS = 90.0
_UNFINISHED = [state for state in RunState if state not in FINISHED_RUNS]


def down(
    context: typer.Context,
    all: Annotated[
        bool,
        typer.Option("--all", help="First stop the active runs; `gridmill resume RUN` continues a run."),
    ] = False,
    json: Json = False,
) -> None:
    """Stop the control node.

    If the control node has active runs, the command names them and fails, unless --all is given. To stop the
    control node and leave the jobs of `gridmill up` running, stop its process with Ctrl-C or SIGTERM
    instead. Services go on, unless --all is given.
    """
    try:
        with session(context, embed=False) as client:
            control, runs = client.control(), [run.id for run in client.list_runs(states=_UNFINISHED)]
            services = [one.service for one in client.list_services() if one.service.is_meant_to_run]
            of_services = {one.run_id for one in services}
            runs = [run for run in runs if all or run not in of_services]
            client.grid.shutdown(all=all)
            ended = client.wait_for_end(_END_SECONDS)
    except HungNodeError:
        raise
    except UnavailableError as error:
        if json:
            return emit({"ended": None, "stopped": ()})
        return print(f"nothing to stop: {error.message}")
    if json:
        return emit({"ended": control.pid if ended else None, "stopped": runs})
    if services:
        names = ", ".join(f"service {one.name}" for one in services)
        hint = "; to start one again: gridmill start service NAME"
        print_error(f"stopped: {names}{hint}" if all else f"still running: {names}")
    if continued := [run for run in runs if run not in of_services]:
        print_error(f"stopped: {', '.join(continued)}; to continue a run: gridmill resume RUN")
    message = "has stopped" if ended else "is stopping"
    return print(f"the control node of {control.home} (process {control.pid}) {message}")
