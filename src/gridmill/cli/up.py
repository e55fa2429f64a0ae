"""The commands `up` and `down`: run the control node in the foreground, and stop that of a home.

It listens on the home's Unix socket and on a loopback port.
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

_LOOK_SECONDS = 0.2
_HOST = re.compile(r"[\w.-]+|[0-9a-fA-F]*:[0-9a-fA-F:.]*:[0-9a-fA-F.]*")
"""A name, an IPv4 or an IPv6 address; no port."""
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
            help="Take over a store whose home is lost. Pods that ran there count as ended.",
        ),
    ] = False,
    ray: Annotated[
        str,
        typer.Option(
            metavar="HOST[:PORT]",
            help="Be the head of a grid of loose machines, which join at this address.",
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
        typer.Option("--light", help="Be a farm: run jobs of the homes that join it."),
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
        str, typer.Option(help="With --light: the most transferred data that is kept of each tenant.")
    ] = _QUOTA,
    retain: Annotated[
        str, typer.Option(help="With --light: the time for which results are kept for a tenant.")
    ] = _RETAIN,
    tenant_disk: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="With --light: the most disk space that the files of a tenant may use. 0: no limit. "
            "Default: half of the disk.",
            show_default=False,
        ),
    ] = "",
    tenant_files: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --light: the most files of a tenant. 0: no limit. Default: half of the inodes.",
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
    """Start the control node in the foreground. Ctrl-C ends it.

    Jobs and pods continue without the control node, and its next start finds them again. If commands of this
    home share a control node, that one ends and its runs continue here. With --ray, this machine is the head
    of a grid of loose machines: the name of its site is `grid`, and `gridmill join` adds a machine. With
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
        print_error(f"control node up, home {settings.home}")
        if served.url:
            print_error(
                f"REST API {served.url}/v1, docs {served.url}/docs, token in {settings.home / 'control.json'}"
            )
        if head is not None:
            _print_join_command(host.gather(served.grid, settings, *head))
        with InterruptHandler() as interrupts:
            while not (interrupts.requested or served.ending):
                time.sleep(_LOOK_SECONDS)
        served.check_own()
    return print_error("control node down; jobs that run go on")


def _read_head(host: Host, at: str) -> tuple[str, int]:
    """Where the head is to listen. Raises InputError where that is not on this machine, UnavailableError
    without Ray."""
    name, number = read_host(at, port=GRID_PORT, place="--ray")
    host.check_head(name)
    return name, number


def _print_join_command(gathered: LooseGrid) -> None:
    """What to type on the other machines."""
    nodes = show_count(len(gathered.site.nodes), "node")
    print_error(f"site grid: {nodes}; its token is in {gathered.token}. On each further machine:")
    print_error(f"  GRIDMILL_TOKEN=... gridmill join {gathered.site.address}")


def check_light(light: bool, *, control: tuple[object, ...], farm: tuple[object, ...]) -> None:
    """Raises InputError for options of the one together with the other."""
    if light and any(control):
        raise InputError(
            "--store, --take-over and --ray do not go with --light",
            hint="A farm keeps no runs, and has a site of its own: --site says which.",
        )
    if not light and any(farm):
        raise InputError(
            "--site, --set, --quota, --retain, --tenant-disk, --tenant-files, --bucket-host and --name "
            "go with --light",
            hint="A control node takes its sites from `gridmill add site`.",
        )


def with_shares(settings: Settings, gpu_shares: int | None) -> Settings:
    """The settings with that many jobs to a GPU, if it is said."""
    return settings if gpu_shares is None else replace(settings, gpu_shares=gpu_shares)


def with_bucket_hosts(settings: Settings, hosts: Sequence[str]) -> Settings:
    """The settings with these hosts too. Raises InputError for what is no host."""
    for host in hosts:
        if not _HOST.fullmatch(host):
            hint = "Only the name or address: minio, 10.1.0.9."
            raise InputError(f"{host!r} is no host", hint=hint, place="--bucket-host")
    return replace(settings, bucket_hosts=(*settings.bucket_hosts, *map(str.lower, hosts)))


def with_store(settings: Settings, url: str) -> Settings:
    """The settings with that store, if one is given. Raises InputError: everybody sees a command's words."""
    if "@" in url and ":" in url.partition("://")[2].partition("@")[0]:
        raise InputError(
            "--store carries a password, which everybody on this machine can see",
            hint="Leave it out and set PGPASSWORD, write it into ~/.pgpass, or set GRIDMILL_STORE instead.",
        )
    return replace(settings, store=url) if url else settings


def read_address(listen: str) -> tuple[str, int] | None:
    """HOST and PORT on this machine; None for `off`. Raises InputError."""
    if listen == "off":
        return None
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InputError(f"{listen!r} is not HOST:PORT", hint="Write for example 127.0.0.1:8700.")
    if not is_loopback(host):
        raise InputError(
            f"{host} is not this machine alone: off loopback a control node needs TLS and tokens per user, "
            "which are not built yet",
            hint="Listen on 127.0.0.1 and reach it through an SSH tunnel (ssh -L 8700:127.0.0.1:8700 HOST).",
        )
    return host, int(port)


_END_SECONDS = 90.0
_UNFINISHED = [state for state in RunState if state not in FINISHED_RUNS]


def down(
    context: typer.Context,
    all: Annotated[
        bool,
        typer.Option(
            "--all", help="Stop the runs that it works for first; `gridmill resume` continues them."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """End the control node.

    If it works for runs, the command names them and fails, unless --all is given. To leave the jobs of
    `gridmill up` running, end that process with Ctrl-C or SIGTERM instead.
    """
    try:
        with session(context, embed=False) as client:
            control, runs = client.control(), [run.id for run in client.list_runs(states=_UNFINISHED)]
            client.grid.shutdown(all=all)
            ended = client.wait_for_end(_END_SECONDS)
    except HungNodeError:
        raise
    except UnavailableError as error:
        if json:
            return emit({"ended": None, "stopped": ()})
        return print(f"nothing to end: {error.message}")
    if json:
        return emit({"ended": control.pid if ended else None, "stopped": runs})
    print_error(f"stopped: {', '.join(runs)}; `gridmill resume RUN` continues one") if runs else None
    message = "has ended" if ended else "is ending"
    return print(f"the control node of {control.home} (process {control.pid}) {message}")
