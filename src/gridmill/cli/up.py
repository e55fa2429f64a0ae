"""`up`: the control node in the foreground, on the home's Unix socket and a loopback port."""

import json as json_text
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from gridmill.api.app import Guard, make_app
from gridmill.bootstrap import EmbeddedNode, warn
from gridmill.cli.session import Interrupts, Json, emit, say, settings_of
from gridmill.cli.sites import read_settings
from gridmill.domain.amounts import show_count
from gridmill.domain.naming import is_loopback
from gridmill.domain.naming import read_address as read_host
from gridmill.domain.site import Site, SiteKind
from gridmill.embedded.process import RETURN_SECONDS, attend
from gridmill.errors import HomeInUseError, InputError, UnavailableError
from gridmill.http.server import listen_at, serve
from gridmill.ports.grid import Grid
from gridmill.rpc.client import SOCKET, differences, give_way
from gridmill.rpc.server import CallServer
from gridmill.sdk.discovery import answers
from gridmill.sdk.home_lock import asking
from gridmill.settings import Settings, is_farm

_LOOK_SECONDS = 0.2
_GIVE_WAY_SECONDS = 30.0
"""How long a control node that ends with its clients may take to end for this one."""
_HOST = re.compile(r"[\w.-]+|[0-9a-fA-F]*:[0-9a-fA-F:.]*:[0-9a-fA-F.]*")
"""A name, an IPv4 or an IPv6 address; no port."""
_QUOTA, _RETAIN, _NAME = "50GiB", "7d", "gpu-farm"


def up(
    context: typer.Context,
    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where the REST API listens beside the Unix socket; or off."),
    ] = "127.0.0.1:8700",
    store: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="The database of the records, postgresql://USER@HOST/DATABASE (else GRIDMILL_STORE). "
            "The password comes from PGPASSWORD or ~/.pgpass.",
            show_default=False,
        ),
    ] = "",
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Take a store whose home is gone for good: pods that ran there are taken for gone.",
        ),
    ] = False,
    ray: Annotated[
        str,
        typer.Option(
            metavar="HOST[:PORT]",
            help="Be the head of a grid of loose machines: others join at that address of this machine.",
            show_default=False,
        ),
    ] = "",
    gpu_shares: Annotated[
        int | None,
        typer.Option(min=1, help="As how many GPUs each of this machine's counts.", show_default=False),
    ] = None,
    light: Annotated[
        bool,
        typer.Option(
            "--light", help="Be a farm instead: run jobs of Gridmills elsewhere, for those that join."
        ),
    ] = False,
    site: Annotated[
        str,
        typer.Option(metavar="KIND[:ADDRESS]", help="With --light: where jobs run, local, slurm or ray."),
    ] = "local",
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="With --light: a setting of that site; repeatable."),
    ] = None,
    quota: Annotated[
        str, typer.Option(help="With --light: how much data of each source is kept here.")
    ] = _QUOTA,
    retain: Annotated[
        str, typer.Option(help="With --light: how long results wait for a source that cannot be reached.")
    ] = _RETAIN,
    bucket_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="With --light: a host of buckets that it opens though it is on its own machine; repeatable.",
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="With --light: what the join line calls the farm.")] = _NAME,
    json: Json = False,
) -> None:
    """Start the control node and stay in the foreground; Ctrl-C ends it.

    Jobs and pods go on without it and are found again at its next start. So does a grid of loose machines
    (--ray): its site is called `grid`, and `gridmill join` makes a machine one of its nodes. A control node
    that commands of the home share ends for this one, and their runs go on.
    """
    farms = (site != "local", set, bucket_host, (quota, retain, name) != (_QUOTA, _RETAIN, _NAME))
    check_light(light, control=(store, take_over, ray), farm=farms)
    if light:
        from gridmill.cli import farm_up as told

        settings = with_bucket_hosts(with_shares(settings_of(context), gpu_shares), bucket_host or ())
        words = read_settings(set or ())
        light_words = told.Light(
            listen=listen, site=site, settings=words, quota=quota, retain=retain, name=name
        )
        told.stay(settings, light_words, json)
        return
    address = read_address(listen)
    head = _read_head(ray) if ray else None
    settings = with_shares(with_store(settings_of(context), store), gpu_shares)
    with _serving(settings, address, take_over) as (node, url, control):
        emit(
            {"address": url, "socket": str(settings.home / "control.sock"), "control": control}
        ) if json else None
        say(f"control node up, home {settings.home}")
        if url:
            say(f"REST API {url}/v1, docs {url}/docs, token in {settings.home / 'control.json'}")
        if head is not None:
            _gather(node.grid, settings, *head)
        with Interrupts() as interrupts:
            while not (interrupts.asked or node.node.ending):
                time.sleep(_LOOK_SECONDS)
        if node.node.taken_over is not None:
            raise node.node.taken_over
    say("control node down; jobs that run go on")


def _read_head(at: str) -> tuple[str, int]:
    """Where the head is to listen. Raises InputError where that is not on this machine, UnavailableError
    without Ray."""
    from gridmill.sites.ray import cluster as start

    host, number = read_host(at, port=start.PORT, place="--ray")
    start.want_ray()
    start.want_own(host)
    return host, number


def _gather(grid: Grid, settings: Settings, host: str, number: int) -> None:
    """The head and its site, and what to type on the other machines."""
    from gridmill.sites.ray import cluster as start

    folder = settings.home / "ray"
    start.start_head(folder, host, number)
    token = start.token_file(folder)
    here = {"token_file": str(token), "patience": start.PATIENCE, "control": host}
    site = Site(name="grid", kind=SiteKind.RAY, address=f"{host}:{number}", settings=here)
    seen = grid.add_site(site, replace=True)
    say(
        f"site grid: {show_count(len(seen.nodes), 'node')}; its token is in {token}. On each further machine:"
    )
    say(f"  GRIDMILL_TOKEN=... gridmill join {host}:{number}")


def check_light(light: bool, *, control: tuple[object, ...], farm: tuple[object, ...]) -> None:
    """Raises InputError for options of the one together with the other."""
    if light and any(control):
        raise InputError(
            "--store, --take-over and --ray do not go with --light",
            hint="A farm keeps no runs, and has a site of its own: --site says which.",
        )
    if not light and any(farm):
        raise InputError(
            "--site, --set, --quota, --retain, --bucket-host and --name go with --light",
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


@contextmanager
def _serving(
    settings: Settings, address: tuple[str, int] | None, take_over: bool
) -> Iterator[tuple[Any, str, Any]]:
    with ExitStack() as ending:
        listener = _listen(settings.home, *address) if address else None  # before anybody gives way to us
        ending.callback(listener.close) if listener else None
        with _asking(settings.home):  # until we have announced ourselves: who asks next is to see that
            node = _own(settings, take_over)
            ending.callback(node.close, tear_down=False)
            ending.enter_context(_with_clients(node, settings))
            app = make_app(node.grid)
            ending.callback(serve(app, socket_path=settings.home / "control.sock").stop)
            token, url = secrets.token_urlsafe(32), ""
            if address is not None:
                server = serve(Guard(app, token=token), host=address[0], listener=listener)
                ending.callback(server.stop)
                url = server.address
            control = node.grid.control()
            told = {"pid": os.getpid(), "version": control.version, "url": url, "token": token}
            _announce(settings.home, told)
        yield node, url, control


@contextmanager
def _with_clients(node: EmbeddedNode, settings: Settings) -> Iterator[None]:
    """Answers calls of clients on this machine, and stops the runs of those that go."""
    attendance = attend(node, stays=True, warn=warn)
    server = CallServer(
        settings.home / SOCKET,
        node.grid,
        attendance,
        give_way=_refuse_way,
        notices=lambda hello: differences(settings, hello, stays=True),
    )
    over = threading.Event()
    keeper = threading.Thread(target=attendance.keep, args=(over.is_set,), name="clients", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        attendance.wake()
        keeper.join()
        server.close()


def _refuse_way() -> None:
    raise HomeInUseError(f"a control node (process {os.getpid()}) already owns the home")


def _listen(home: Path, host: str, port: int) -> socket.socket:
    """Raises UnavailableError; HomeInUseError where it is another control node of the home that listens."""
    try:
        return listen_at(host, port)
    except UnavailableError:
        if (home / "control.lock").exists():
            with asking(home):  # who starts now is to have announced itself
                _want_unowned(home)
        raise


def _want_unowned(home: Path) -> None:
    try:
        import_module("gridmill.bootstrap").lock_home(home).close()
    except HomeInUseError:
        if not _gives_way(home):
            raise


def _asking(home: Path) -> AbstractContextManager[None]:
    import_module("gridmill.bootstrap").make_home(home)
    return asking(home)


def _own(settings: Settings, take_over: bool) -> EmbeddedNode:
    """The control node, in this process. One that was started for its clients ends meanwhile, and leaves its
    runs. Raises HomeInUseError, also where that takes too long."""
    from gridmill.bootstrap import embed

    until, told = time.monotonic() + _GIVE_WAY_SECONDS, False
    while True:
        try:
            return embed(settings, embedded=False, take_over=take_over, await_seconds=RETURN_SECONDS)
        except HomeInUseError as error:
            if not _gives_way(settings.home):
                raise
            if time.monotonic() > until:
                hint = "End that process, or the program that it belongs to."
                raise HomeInUseError(f"{error.message} and does not give way", hint=hint) from error
        if not told:
            say("taking over from the control node that commands of this home share")
        told = True
        _ask_for_way(settings)
        time.sleep(_LOOK_SECONDS)


def _ask_for_way(settings: Settings) -> None:
    """Of the control node that owns the home, and wait for its end."""
    link = answers(settings)
    if link is not None:
        with suppress(UnavailableError):  # it ends
            give_way(link)
        link.close()


def _gives_way(home: Path) -> bool:
    return not (is_farm(home) or stays(home))


def stays(home: Path) -> bool:
    """Whether who owns the home is a `gridmill up`: those announce themselves."""
    try:
        announced = json_text.loads((home / "control.json").read_text())["pid"]
        return bool(str(announced) == (home / "control.lock").read_text().strip())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _announce(home: Path, body: dict[str, object]) -> None:
    """Write control.json, whole or not at all, for this user only: it carries the token."""
    draft = home / "control.json.draft"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json_text.dump(body, file)
    draft.replace(home / "control.json")
