"""The sandbox of a tenant on a farm: its own folders and Unix user, a site for its pods, and a relay."""

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import PodEvent, PodOrder
from gridmill.domain.site import Site, SiteKind
from gridmill.farm.files import TenantFiles
from gridmill.farm.relay import Relay
from gridmill.farm.unix_users import PASS, acting_as
from gridmill.plugins import find
from gridmill.ports.site import PodReport, SitePort
from gridmill.settings import Settings
from gridmill.transport.listeners import HomeListeners
from gridmill.transport.server import PodLinkServer


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSandbox:
    """The sandbox of one tenant. All work on its files is done as its Unix user."""

    user: int | None
    settings: Settings
    site: SitePort
    links: PodLinkServer
    relay: Relay
    files: TenantFiles

    @property
    def root(self) -> Path:
        """The storage root of its jobs."""
        return self.settings.root

    def bring_up(self, orders: Sequence[PodOrder]) -> None:
        """See SitePort; where pods are and how they reach us is said here."""
        with acting_as(self.user):
            link = self.site.link()
            homes = ((order, self.site.pod_home(order.pod_id)) for order in orders)
            self.site.bring_up([replace(order, home=home, link=link) for order, home in homes])

    def observe(self, pods: Sequence[str]) -> Mapping[str, PodReport]:
        """See SitePort."""
        with acting_as(self.user):
            return self.site.observe(pods)

    def last_words(self, pod: str) -> tuple[PodEvent, ...]:
        """See SitePort."""
        with acting_as(self.user):
            return tuple(self.site.undelivered_events(pod))

    def tear_down(self, pods: Sequence[str]) -> None:
        """See SitePort."""
        with acting_as(self.user):
            self.site.tear_down(pods)

    def remove(self, pods: Sequence[str]) -> None:
        """What pods that are gone have left."""
        with acting_as(self.user):
            for pod in pods:
                shutil.rmtree(self.settings.home / "pods" / pod, ignore_errors=True)

    def remove_code(self) -> None:
        """Delete the code that its jobs unpacked; only while none runs. It is unpacked again from the
        transferred bundles."""
        with acting_as(self.user):
            shutil.rmtree(self.settings.home / "cache" / "bundles", ignore_errors=True)

    def close(self) -> None:
        """Pods go on."""
        self.files.close()
        self.relay.end()
        self.links.close()
        self.site.close()


def open_sandbox(
    farm: Settings, name: str, user: int | None, place: Site, carry: Callable[[Path, Path], TenantFiles]
) -> TenantSandbox:
    """Open the sandbox of the tenant of that name, in HOME/farm/tenants; on a cluster its root is in the
    farm's own, which all nodes see. `carry` opens what was carried, of its root and of a
    folder for chunks. Raises UnavailableError, StorageError, InputError."""
    folder = farm.home / "farm" / "tenants" / name
    root = folder / "root" if place.kind == SiteKind.LOCAL else farm.root / name
    _make_folders(folder, root, user)
    settings = replace(farm, home=folder / "home", root=root, store="", token="", fault="")
    carried = carry(settings.root, folder / "chunks")
    relays: list[Relay] = []

    def ready() -> None:
        for relay in relays:
            relay.wake()

    links = PodLinkServer(ready)
    try:
        with acting_as(user):
            links.listen_unix(settings.home / "links.sock", user=user)
            site = _open_site(settings, links, place, user)
    except BaseException:
        links.close()
        raise
    relays.append(Relay(links, carried.started))
    return TenantSandbox(user=user, settings=settings, site=site, links=links, relay=relays[0], files=carried)


def _open_site(settings: Settings, links: PodLinkServer, place: Site, user: int | None) -> SitePort:
    make = find("sites", place.kind.value)
    site: SitePort = (
        make(settings, user=user)
        if place.kind == SiteKind.LOCAL
        else make(settings, place, HomeListeners(links, settings.home, time.time))
    )
    return site


def _make_folders(folder: Path, root: Path, user: int | None) -> None:
    """Home and root are the tenant's alone; where they are, and what was carried, is not its to change."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(PASS)
    for made in (folder / "home", root):
        made.mkdir(parents=True, exist_ok=True, mode=0o700)
        if user is not None:
            os.chown(made, user, user)
