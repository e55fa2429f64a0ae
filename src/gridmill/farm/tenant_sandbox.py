"""The sandbox of a tenant on a farm: separate folders, a separate Unix user, a site for its pods, and a
relay."""

import logging
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gridmill.disk_space import measure
from gridmill.domain.amounts import Amounts
from gridmill.domain.confinement import Isolation
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import PodEvent, PodOrder
from gridmill.domain.site import Site, SiteKind
from gridmill.farm.confinement import PodConfiner, TenantFolders
from gridmill.farm.files import TenantFiles
from gridmill.farm.leftovers import remove_left_by
from gridmill.farm.relay import Relay
from gridmill.farm.unix_users import acting_as
from gridmill.plugins import find
from gridmill.ports.site import PodReport, SitePort
from gridmill.private_files import remove_tree
from gridmill.settings import Settings
from gridmill.transport.listeners import HomeListeners
from gridmill.transport.server import PodLinkServer

_LOG = logging.getLogger(__name__)
_SHOWN = 20
_MOST_PODS = 256
"""The largest number of connections to the socket of a tenant at the same time. The limit is needed because
the jobs of a tenant can open many connections, and the farm has one set of file descriptors for all
tenants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSandbox:
    """The sandbox of one tenant on the farm. The farm accesses the files in the sandbox as the Unix user of
    the tenant."""

    user: int | None
    settings: Settings
    site: SitePort
    links: PodLinkServer
    relay: Relay
    files: TenantFiles
    folders: TenantFolders
    confiner: PodConfiner | None = None

    @property
    def root(self) -> Path:
        """Returns the storage root of the tenant's jobs."""
        return self.settings.root

    def bring_up(self, orders: Sequence[PodOrder]) -> None:
        """Starts pods; see SitePort. The sandbox sets the folders of the pods and the address of the relay.
        Missing folders and a missing socket are made again."""
        self.folders.make()
        _listen(self.links, self.folders)
        self.folders.make_pods(order.pod_id for order in orders)
        with acting_as(self.user):
            link = self.site.link()
            homes = ((order, self.site.pod_home(order.pod_id)) for order in orders)
            self.site.bring_up([replace(order, home=home, link=link) for order, home in homes])

    def observe(self, pods: Sequence[str]) -> Mapping[str, PodReport]:
        """Returns the states of pods; see SitePort."""
        with acting_as(self.user):
            return self.site.observe(pods)

    def last_words(self, pod: str) -> tuple[PodEvent, ...]:
        """Returns the last messages of a pod; see SitePort."""
        with acting_as(self.user):
            return tuple(self.site.undelivered_events(pod))

    def tear_down(self, pods: Sequence[str]) -> None:
        """End pods; see SitePort."""
        self.folders.make_pods(pods)
        try:
            with acting_as(self.user):
                self.site.tear_down(pods)
        finally:
            self.clear(pods)

    def clear(self, pods: Iterable[str]) -> None:
        """Ends the remaining processes of pods that have ended, whatever the files in their folders
        contain."""
        if self.confiner is not None:
            self.confiner.clear(pods)

    def clear_all(self) -> None:
        """Ends the remaining processes of all pods, and deletes what the Unix user left outside its
        folders."""
        if self.confiner is not None:
            self.confiner.clear_all()
        removed = remove_left_by(self.user)
        if removed:
            _LOG.info("left_outside_removed user=%s what=%s", self.user, ", ".join(removed[:_SHOWN]))

    def remove(self, pods: Sequence[str]) -> None:
        """Deletes the files that ended pods have left."""
        self.clear(pods)
        for pod in pods:
            remove_tree(self.settings.home / "pods" / pod)

    def remove_code(self) -> None:
        """Deletes the code that the tenant's jobs unpacked. The code may be deleted only while no job of the
        tenant is running. Later jobs unpack the code again from the transferred bundles."""
        with acting_as(self.user):
            shutil.rmtree(self.settings.home / "cache" / "bundles", ignore_errors=True)

    def remove_caches(self) -> int:
        """Deletes unpacked code and Python environments. The caches may be deleted only while no job of the
        tenant is running. Later jobs make the deleted code and environments again. Returns the number of
        bytes that the deleted files used."""
        cache = self.settings.home / "cache"
        with acting_as(self.user):
            size_bytes = measure([cache], entries=100_000).size_bytes
            shutil.rmtree(cache, ignore_errors=True)
        return size_bytes

    def empty_home(self) -> None:
        """Deletes the files that jobs wrote to their home folder. The files may be deleted only while no job
        is running. The farm deletes these files because a tenant above its disk limit cannot run a job that
        deletes them."""
        if self.user is not None and any(self.folders.person.iterdir()):
            _LOG.warning("home_emptied folder=%s", self.folders.person)
            remove_tree(self.folders.person)
            self.folders.make()

    def close(self) -> None:
        """Closes the relay and the site. The pods continue to run."""
        self.files.close()
        self.relay.end()
        self.links.close()
        self.site.close()


def open_sandbox(
    farm: Settings,
    name: str,
    user: int | None,
    place: Site,
    carry: Callable[[Path, Path], TenantFiles],
    isolation: Isolation,
) -> TenantSandbox:
    """Opens the sandbox of the tenant with this name, in HOME/farm/tenants. If the farm is a cluster, the
    storage root of the sandbox is below the storage root of the farm, which all nodes can read. `carry` is a
    function that opens the transferred files of the tenant. The arguments of `carry` are the storage root of
    the sandbox and a folder for chunks. Raises UnavailableError, StorageError, InputError."""
    folder = farm.home / "farm" / "tenants" / name
    root = folder / "root" if place.kind == SiteKind.LOCAL else farm.root / name
    folders = TenantFolders(folder=folder, root=root, user=user)
    folders.make()
    settings = replace(farm, home=folders.home, root=root, store="", token="", fault="")
    carried = carry(settings.root, folder / "chunks")
    relays: list[Relay] = []

    def ready() -> None:
        for relay in relays:
            relay.wake()

    links = PodLinkServer(ready)
    try:
        _listen(links, folders)
        confiner = _confiner(folders, farm, isolation, lambda: site.nodes()[0].capacity)
        with acting_as(user):
            site = _open_site(settings, links, place, user, confiner)
    except BaseException:
        links.close()
        raise
    relays.append(Relay(links, carried.started))
    return TenantSandbox(
        user=user,
        settings=settings,
        site=site,
        links=links,
        relay=relays[0],
        files=carried,
        folders=folders,
        confiner=confiner,
    )


def _confiner(
    folders: TenantFolders, farm: Settings, isolation: Isolation, node: Callable[[], Amounts]
) -> PodConfiner | None:
    return None if folders.user is None else PodConfiner(folders, folders.user, farm, isolation, node)


def _listen(links: PodLinkServer, folders: TenantFolders) -> None:
    """Listens at the socket of the tenant, unless the sandbox already listens there. If jobs have a separate
    Unix user, only the farm can put a file into the folder of the socket, because the folder belongs to the
    farm."""
    path = folders.home / "links.sock"
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            if links.listens_at(path):
                return
        elif stat.S_ISDIR(path.lstat().st_mode):
            remove_tree(path)
        else:
            path.unlink()
    links.listen_unix(path, user=folders.user, most=_MOST_PODS)
    if folders.user is not None:
        os.chown(path, folders.user, folders.user, follow_symlinks=False)


def _open_site(
    settings: Settings, links: PodLinkServer, place: Site, user: int | None, confiner: PodConfiner | None
) -> SitePort:
    make = find("sites", place.kind.value)
    site: SitePort = (
        make(settings, user=user, confiner=confiner)
        if place.kind == SiteKind.LOCAL
        else make(settings, place, HomeListeners(links, settings.home, time.time))
    )
    return site
