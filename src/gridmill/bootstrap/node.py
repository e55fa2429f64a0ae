"""Builds a control node from the settings. The node either runs jobs or only reads records."""

import hashlib
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO

from gridmill.bootstrap.home_lock import home_secret, lock_in_turn, open_store, release_home
from gridmill.control.background import ThreadRunner
from gridmill.control.catalog import Catalog
from gridmill.control.counters import Counters
from gridmill.control.ledger import Ledger
from gridmill.control.node import ControlNode
from gridmill.control.site_monitor import SiteMonitor
from gridmill.control.state import (
    Channels,
    CodeFiles,
    Control,
    ControlTimeouts,
    Problems,
    ScheduleTimers,
    Timeline,
    no_site,
)
from gridmill.control.steps.damage import summarize
from gridmill.control.steps.problems import set_problem
from gridmill.control.usecases.service import Identity, LogEnds, Render, Service
from gridmill.domain.advice import Advice
from gridmill.domain.amounts import GPU_SHARES
from gridmill.domain.frozen import dataclass
from gridmill.domain.job_log import LogLimits
from gridmill.domain.pod_protocol import Event, ToPod
from gridmill.domain.recovery import DECLARED
from gridmill.domain.retention import DAY_SECONDS
from gridmill.domain.service import ServiceView
from gridmill.domain.site import ELSEWHERE, Site, SiteKind
from gridmill.domain.views import RunView
from gridmill.errors import (
    GridmillError,
    InputError,
    StorageError,
    StoreInUseError,
    UnavailableError,
    explained,
)
from gridmill.plugins import find
from gridmill.ports.cloud import CloudPort
from gridmill.ports.link import LinkServer, ReceivedMessage
from gridmill.ports.site import PodListeners, SitePort
from gridmill.ports.store import Store
from gridmill.settings import Settings
from gridmill.storage.disk_usage import LocalHomeFolders
from gridmill.storage.filesystem import check_home, check_root
from gridmill.storage.home import make_home
from gridmill.storage.logs import LogFiles
from gridmill.storage.recovery import DeclaredCopies, marks_of
from gridmill.storage.root import StorageRoot
from gridmill.transport.listeners import HomeListeners
from gridmill.transport.server import PodLinkServer
from gridmill.version import __version__

PREPARED_AT_ONCE = 256
"""The largest number of rented machines that are prepared at the same time. Each of them occupies a thread
while it boots."""
WITH_SECRETS = ELSEWHERE
"""The kinds of sites whose settings may refer to secrets."""
LOCAL_CPU_SHARE = 16.0
"""Each CPU of this machine may be assigned to this many deployments. A CPU can be assigned several times
because idle deployments use no CPU, and because the operating system divides the CPUs fairly. Memory is
never assigned more than once."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> float:
        """Unix time in seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Returns the monotonic time in seconds, counted from an arbitrary start."""
        return time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedNode:
    """A control node that runs in this process. The method `close` stops the control node and, if
    `tear_down` is true, its idle deployments."""

    grid: Service
    node: ControlNode
    finish: Callable[[bool], None]

    def close(self, *, tear_down: bool = True) -> None:
        """Stops the control node. The call can be repeated."""
        self.finish(tear_down)


_COPIES = "copies of declarations"

OFFERS = "cache/offers"
"""The folder of a home with the types and prices of machines that providers have stated."""


def _with_fault(store: Store, fault: str) -> Store:
    """Returns the store. If `fault` is set for tests, the function returns a store that fails as `fault`
    specifies. Raises InputError if the fault is unknown."""
    if not fault:
        return store
    faulty: Store = find("faults", "store")(store, fault)
    return faulty


def warn(message: str) -> None:
    """Prints a line to the log of the control node, which is standard error."""
    print(f"gridmill: {message}", file=sys.stderr)


def embed(
    settings: Settings,
    *,
    embedded: bool = True,
    warn: Callable[[str], None] = warn,
    address: str = "",
    take_over: bool = False,
    site: SitePort | None = None,
    waits: Callable[[], bool] = lambda: False,
    await_seconds: float = 0.0,
    end: Callable[[], None] | None = None,
) -> EmbeddedNode:
    """Starts a control node for the home in `settings`, and returns it.

    If the clients of a run have lost another control node, the run waits until these clients reconnect, but
    at most for `await_seconds`. The function `end` is called when a client requests that the control node
    shuts down. If `end` is not set, the control node then closes and ends its idle deployments.

    `site` is the prepared local site. The site is closed when the control node is closed, and also if this
    function fails. While another process owns the home, the function waits until that process ends, as long
    as the function `waits` returns True. With `take_over`, the control node may also use a record store that
    another home left while its pods were running. The pods of the other home are then treated as lost.
    Raises HomeInUseError, StoreInUseError, StorageError.
    """
    local: SitePort = site or find("sites", "local")(settings)
    with ExitStack() as undone:
        undone.callback(local.close)
        if not settings.store:
            check_home(settings.home)
        check_root(settings.root)
        lock = undone.enter_context(lock_in_turn(settings.home, waits))
        node = _wire(
            settings,
            lock,
            local,
            embedded=embedded,
            warn=warn,
            address=address,
            take_over=take_over,
            await_seconds=await_seconds,
            end=end,
        )
        undone.pop_all()
    return node


def _control(
    settings: Settings,
    store: Store,
    site: SitePort,
    links: LinkServer,
    warn: Callable[[str], None],
    *,
    secret: bytes,
    owner: str = "",
) -> Control:
    limits = LogLimits(job_bytes=settings.log_job_bytes, home_bytes=settings.log_home_bytes)
    logs = LogFiles(settings.home / "logs", limits)
    ledger, timeline = Ledger(store, logs, owner), Timeline(clock=SystemClock())
    storage = StorageRoot(settings.root, bundles=settings.home / "bundles")
    return Control(
        ledger=ledger,
        catalog=Catalog(ledger=ledger),
        channels=Channels(links=links, secret=secret, grace_seconds=settings.grace_seconds),
        code=CodeFiles(storage=storage, timeline=timeline),
        timeline=timeline,
        problems=Problems(warn=warn),
        clock=timeline.clock,
        sites={"local": site},
        storage=storage,
        home_folders=LocalHomeFolders(settings.home, settings.root, settings.disk_reserve_bytes),
        vault=find("vaults", "file")(settings.secret_key_file or settings.home / "secrets.key"),
        new_token=lambda: secrets.token_hex(8),
        counters=Counters(store.counters()),
        limits=ControlTimeouts(
            observe_seconds=settings.observe_seconds,
            orphan_seconds=settings.orphan_seconds,
        ),
    )


def _local_site(control: Control) -> Site:
    """Returns the local site with the present capacity of this machine and the identity of its owner."""
    nodes = control.sites["local"].nodes()
    home = (
        hashlib.sha256(b"home" + control.channels.secret).hexdigest()[:16] if control.channels.secret else ""
    )
    marks = {"home": home, "host": socket.gethostname()} if home else {}
    return Site(name="local", kind=SiteKind.LOCAL, nodes=nodes, cpu_share=LOCAL_CPU_SHARE, settings=marks)


def _with_settings(control: Control, here: Site, gpu_shares: int, marks: Mapping[str, int]) -> Site:
    """Returns the local site with two more settings. The first of these settings identifies the record
    store, and stays the same if the store moves to another home. The second setting is the number of shares
    of each GPU."""
    site = control.ledger.find(Site, here.name)
    mark = site.settings.get("store") if site else None
    # if the record with the mark is damaged, the mark that occurs most often replaces it
    mark = mark or max(marks, key=marks.__getitem__, default=None)
    shares = {GPU_SHARES: str(gpu_shares)} if gpu_shares > 1 else {}
    return replace(here, settings={**here.settings, **shares, "store": mark or secrets.token_hex(8)})


def open_site(
    settings: Settings, site: Site, doors: PodListeners, resolve: Callable[[str], str] | None = None
) -> SitePort:
    """Opens a declared site and returns the interface to it (a `SitePort`). `resolve` returns the value of a
    secret, which only sites at clouds and farms need. Raises InputError if the kind of the site does not
    support a setting, NotFoundError if no plug-in provides this kind, and UnavailableError if the site does
    not answer."""
    secrets = (resolve,) if site.kind in WITH_SECRETS else ()
    port: SitePort = find("sites", site.kind.value)(settings, site, doors, *secrets)
    return port


def open_cloud(settings: Settings, site: Site, resolve: Callable[[str], str]) -> CloudPort:
    """Opens the account of a cloud site. Types and prices of machines are cached in the home. Raises
    InputError for an invalid setting, and NotFoundError if no plug-in provides the provider."""
    folder = str(settings.home / OFFERS)
    cloud: CloudPort = find("clouds", site.settings.get("provider", ""))(
        {"cache_folder": folder, **site.settings}, resolve
    )
    return cloud


def _identity(settings: Settings, address: str, embedded: bool) -> Identity:
    place = address or f"unix:{settings.home / 'control.sock'}"
    return Identity(version=__version__, home=str(settings.home), address=place, embedded=embedded)


def _wire(
    settings: Settings,
    lock: IO[str],
    site: SitePort,
    *,
    embedded: bool,
    warn: Callable[[str], None],
    address: str,
    take_over: bool,
    await_seconds: float,
    end: Callable[[], None] | None,
) -> EmbeddedNode:
    store = _with_fault(open_store(settings), settings.fault)
    wakers: list[Callable[[], None]] = []
    owner = f"process {os.getpid()} on {socket.gethostname()[:30]} {secrets.token_hex(4)}"
    links = PodLinkServer(lambda: _all(wakers))
    links.listen_unix(settings.home / "links.sock")
    control = _control(settings, store, site, links, warn, secret=home_secret(settings.home), owner=owner)
    control.alarms = None if embedded else ScheduleTimers()
    doors = HomeListeners(links, settings.home, control.clock.now)
    control.open_site = lambda site: open_site(settings, site, doors, control.secrets.resolve)
    control.open_cloud = lambda site: open_cloud(settings, site, control.secrets.resolve)
    node = ControlNode(control)
    wakers.append(node.wake)
    control.background = ThreadRunner(node.wake)
    control.rentals.calls = ThreadRunner(node.wake)
    control.rentals.preparing = ThreadRunner(node.wake, PREPARED_AT_ONCE)
    control.rentals.forgetting = ThreadRunner(node.wake)
    here = _local_site(control)
    try:
        control.ledger.load()
        marks = {} if control.ledger.find(Site, here.name) else marks_of(settings.root, settings.home)
        here = _with_settings(control, here, settings.gpu_shares, marks)
        _refuse_others_pods(control, here) if not take_over else None
        _refuse_other_shares(control, here)
        _declare_site(control, here)
    except BaseException:
        for part in (links, store):
            part.close()
        raise
    _keep_copies(control, DeclaredCopies(settings.root, here.settings["store"]), anew=not embedded)
    control.ledger.doubtful = True  # so that the first tick checks all work that a crash may have interrupted
    surveyor = SiteMonitor(node)
    closed: list[bool] = []
    over = threading.Event()

    def finish(tear_down: bool) -> None:
        if closed:
            return
        closed.append(True)
        over.set()
        surveyor.close()
        node.stop()
        node.warn_of_machines()
        try:
            if tear_down:
                node.release_idle()
        except GridmillError as error:
            warn(f"idle deployments could not be stopped now (they end after their idle time): {error}")
        finally:
            links.close()
            for site in control.sites.values():
                site.close()
            control.ledger.logs.close()
            store.close()
            (settings.home / "control.json").unlink(missing_ok=True)
            release_home(lock)

    service = Service(
        node, _identity(settings, address, embedded), render=_render, end=end or partial(finish, True)
    )
    if await_seconds:
        node.await_clients(await_seconds)
    control.disk.spaces = control.home_folders.spaces()
    node.start()
    surveyor.start()
    watch = partial(_watch_disk, service, over, warn)
    threading.Thread(target=watch, name="disk", daemon=True).start()
    node.wake()
    # no sweep, because an embedded control node ends as soon as it can; it only checks the store once a day
    if embedded:
        check = partial(_check_daily, service, settings.home / "store.checked", warn)
        threading.Thread(target=check, name="check", daemon=True).start()
    else:
        sweep = partial(_sweep, service, settings.history_seconds / DAY_SECONDS, over, warn)
        threading.Thread(target=sweep, name="sweep", daemon=True).start()
    return EmbeddedNode(grid=service, node=node, finish=finish)


def _sweep(service: Service, days: float, over: threading.Event, warn: Callable[[str], None]) -> None:
    """Checks the complete record store and deletes unused data in the background, at the start and once a
    day."""
    while not over.is_set():
        try:
            service.check_store()
            service.clean(days=days)
        except GridmillError as error:
            warn(f"housekeeping stopped: {explained(error)}")
        over.wait(DAY_SECONDS)


def _keep_copies(control: Control, copies: DeclaredCopies, *, anew: bool) -> None:
    """Stores copies of the users' declarations below the storage root. The command `gridmill recover`
    restores declarations from these copies. With `anew`, or if there are no copies yet, all declarations are
    first compared with the copies."""

    def keep(nouns: Iterable[object], deleted: Iterable[tuple[type[object], str]]) -> None:
        try:
            copies.keep(nouns)
            copies.drop(deleted)
            set_problem(control.problems, _COPIES, "")
        except StorageError as error:
            set_problem(control.problems, _COPIES, f"copies of declarations cannot be stored: {error}")

    control.ledger.followers.append(keep)
    if anew or not copies.exist:
        kept = (record.noun for kind in DECLARED.values() for record in control.ledger.store.list(kind))
        keep(kept, ())


def _check_daily(service: Service, mark: Path, warn: Callable[[str], None]) -> None:
    """Reads the complete record store, unless this was done less than a day ago. The path `mark` is a file
    whose modification time is the time of the last check."""
    try:
        if abs(time.time() - mark.stat().st_mtime) < DAY_SECONDS:
            return
    except OSError:
        pass
    try:
        mark.touch()
        service.check_store()
    except OSError as error:
        warn(f"the store was not checked: {error}")
    except GridmillError as error:
        warn(f"the check of the store stopped: {explained(error)}")


def _watch_disk(service: Service, over: threading.Event, warn: Callable[[str], None]) -> None:
    """Measures the free disk space until the control node stops."""
    last = ""
    while not over.wait(DISK_SECONDS):
        try:
            service.watch_disk()
            last = ""
        except GridmillError as error:
            if explained(error) != last:
                last = explained(error)
                warn(f"the free space cannot be measured: {last}")


def _all(acts: Iterable[Callable[[], None]]) -> None:
    for act in acts:
        act()


DISK_SECONDS = 0.5
"""The interval in seconds at which the free space of the home and of the storage root is measured."""


class NullLinkServer:
    """The link server of a control node that only reads. No pod can connect to this server."""

    def receive(self) -> tuple[ReceivedMessage, ...]:
        """Receive nothing."""
        return ()

    def send(self, channel: int, messages: Sequence[ToPod]) -> None:
        """Does nothing, because no pod is connected."""

    def drop(self, channel: int) -> None:
        """Does nothing, because no pod is connected."""

    def close(self) -> None:
        """Does nothing, because there is no connection."""


class NullListeners:
    """The listeners of a control node that only reads. It starts no pods that could connect."""

    def tls(self, host: str, port: int = 0) -> str:
        """Raises UnavailableError."""
        raise UnavailableError("a control node that only reads listens for no pods")

    def spool(self, folder: Path) -> str:
        """Raises UnavailableError."""
        raise UnavailableError("a control node that only reads listens for no pods")


def read(settings: Settings) -> EmbeddedNode:
    """Makes a control node without its loop, which can run at the same time as the control node that owns
    the home. This control node answers calls and changes nothing.

    Raises StorageError.
    """
    make_home(settings.home)
    store = open_store(settings)
    site: SitePort = find("sites", "local")(settings)
    # no link server is needed, because no pod connects to a control node that only reads
    control = _control(settings, store, site, NullLinkServer(), warn, secret=b"")
    control.open_site = partial(_open_rented, settings, control)
    control.ledger.load()
    summarize(control.problems, store)
    control.ledger.snapshot.put(_local_site(control))
    node = ControlNode(control)
    identity = _identity(settings, "none is up", True)
    service = Service(node, identity, render=_render, end=lambda: None)

    def finish(tear_down: bool) -> None:
        control.ledger.logs.close()
        store.close()

    return EmbeddedNode(grid=service, node=node, finish=finish)


def _open_rented(settings: Settings, control: Control, site: Site) -> SitePort:
    """Opens a cloud site, so that a plan can read the offers of its provider. Raises UnavailableError for a
    site of another kind, and what `open_site` raises."""
    if site.kind is not SiteKind.CLOUD:
        return no_site(site)
    return open_site(settings, site, NullListeners(), control.secrets.resolve)


def _refuse_others_pods(control: Control, here: Site) -> None:
    """Checks that the record store has no running pods of another home, because only that home can see and
    stop them. Raises StoreInUseError."""
    site = control.ledger.find(Site, here.name)
    if site is None or site.settings.get("home") in (None, here.settings["home"]):
        return
    left = ", ".join(control.ledger.snapshot.deployments)
    if left:
        raise StoreInUseError(
            f"this store belongs to another home on {site.settings.get('host')}, with the deployments {left}",
            hint="Run `gridmill up` on that machine, and wait for its runs or stop them. If the machine does "
            "not exist any more, run `gridmill up --take-over` here: its pods then count as ended.",
        )


def _refuse_other_shares(control: Control, here: Site) -> None:
    """Checks that the number of shares of each GPU does not change while GPUs are in use. Raises
    InputError."""
    stored_site = control.ledger.find(Site, here.name)
    was, now = (site.settings.get(GPU_SHARES, "1") if site else "1" for site in (stored_site, here))
    local = [one for one in control.ledger.snapshot.deployments.values() if one.site == here.name]
    up = [one.id for one in local if any(pod.capacity.gpus for pod in one.pods)]
    if stored_site is not None and was != now and up:
        raise InputError(
            f"each GPU counts as {was} for running deployments ({', '.join(up)}), but would count as {now}",
            hint=f"Run `gridmill up --gpu-shares {was}`. Change it when no deployment with GPUs runs.",
            place="--gpu-shares",
        )


def _declare_site(control: Control, site: Site) -> None:
    """Stores the local site with the present capacity of this machine, if the capacity has changed."""
    if control.ledger.find(Site, site.name) != site:
        transaction = control.begin()
        transaction.put(site)
        control.ledger.commit(transaction)


def _render(
    view: RunView,
    events: tuple[Event, ...],
    advice: tuple[Advice, ...],
    before: RunView | None,
    logs: LogEnds,
    rented: tuple[str, ...],
    services: tuple[ServiceView, ...],
) -> str:
    """Returns the rendered report of a run. The plug-in that renders reports is loaded by its name, so that
    its templates are loaded only when a report is requested."""
    render: Render = find("reports", "html")
    return render(view, events, advice, before, logs, rented, services)
