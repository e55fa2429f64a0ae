"""The sandbox of a tenant on a farm: its own folders and Unix user, a site for its pods, and a relay."""

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
"""Connections to the socket of a tenant at a time. Its jobs can open many, and the farm has one set of
descriptors for all tenants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSandbox:
    """The sandbox of one tenant. The farm accesses its files as the Unix user of the tenant."""

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
        """The storage root of its jobs."""
        return self.settings.root

    def bring_up(self, orders: Sequence[PodOrder]) -> None:
        """Start pods; see SitePort. The sandbox sets the folders of pods and the address of the relay.
        Missing folders and a missing socket are made again."""
        self.folders.make()
        _listen(self.links, self.folders)
        self.folders.make_pods(order.pod_id for order in orders)
        with acting_as(self.user):
            link = self.site.link()
            homes = ((order, self.site.pod_home(order.pod_id)) for order in orders)
            self.site.bring_up([replace(order, home=home, link=link) for order, home in homes])

    def observe(self, pods: Sequence[str]) -> Mapping[str, PodReport]:
        """The states of pods; see SitePort."""
        with acting_as(self.user):
            return self.site.observe(pods)

    def last_words(self, pod: str) -> tuple[PodEvent, ...]:
        """The last messages of pods; see SitePort."""
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
        """End remaining processes of pods that have ended, whatever their folders say."""
        if self.confiner is not None:
            self.confiner.clear(pods)

    def clear_all(self) -> None:
        """End remaining processes of all pods, and remove what the user left outside its folders."""
        if self.confiner is not None:
            self.confiner.clear_all()
        removed = remove_left_by(self.user)
        if removed:
            _LOG.info("left_outside_removed user=%s what=%s", self.user, ", ".join(removed[:_SHOWN]))

    def remove(self, pods: Sequence[str]) -> None:
        """Delete the files that ended pods have left."""
        self.clear(pods)
        for pod in pods:
            remove_tree(self.settings.home / "pods" / pod)

    def remove_code(self) -> None:
        """Delete the code that its jobs unpacked; only while none runs. It is unpacked again from the
        transferred bundles."""
        with acting_as(self.user):
            shutil.rmtree(self.settings.home / "cache" / "bundles", ignore_errors=True)

    def remove_caches(self) -> int:
        """Delete unpacked code and environments; only while no job of the tenant runs. They are made again
        when needed. Returns the bytes that they used."""
        cache = self.settings.home / "cache"
        with acting_as(self.user):
            size_bytes = measure([cache], entries=100_000).size_bytes
            shutil.rmtree(cache, ignore_errors=True)
        return size_bytes

    def empty_home(self) -> None:
        """Delete the files of jobs in their home folder; only while no job runs. A tenant above its disk
        limit can run no job that deletes them."""
        if self.user is not None and any(self.folders.person.iterdir()):
            _LOG.warning("home_emptied folder=%s", self.folders.person)
            remove_tree(self.folders.person)
            self.folders.make()

    def close(self) -> None:
        """Close the relay and the site; pods continue."""
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
    """Open the sandbox of the tenant of this name, in HOME/farm/tenants. On a cluster, its root is in the
    root of the farm, which all nodes see. `carry` opens the transferred files, for its root and a folder for
    chunks. Raises UnavailableError, StorageError, InputError."""
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
    """Listen at the socket of the tenant, unless it exists. The folder belongs to the farm, so only the farm
    can put a file there, except if jobs have no Unix user of their own."""
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
