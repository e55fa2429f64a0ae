"""A grid of separate machines that are connected by Ray. This module starts the head node of the grid on
this machine, or makes this machine join the grid as a node."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gridmill.domain.site import NodeUtilization, Site, SiteKind
from gridmill.ports.grid import Grid
from gridmill.ports.host import JoinedNode, LooseGrid
from gridmill.settings import Settings
from gridmill.sites.machine import look_at_machine, memory_of_machine, used_bytes
from gridmill.sites.owner_activity import BLIND, IdleWatch
from gridmill.sites.ray.cluster import PATIENCE, join, start_head, token_file, want_own, want_ray
from gridmill.sites.ray.machine_lock import claim_machine


def check_head(host: str) -> None:
    """Raises InputError if the host is not an address of this machine, and UnavailableError if Ray is not
    installed."""
    want_ray()
    want_own(host)


def gather(grid: Grid, settings: Settings, host: str, port: int) -> LooseGrid:
    """Starts the head node of the grid and adds its site. Raises UnavailableError."""
    folder = settings.home / "ray"
    start_head(folder, host, port)
    token = token_file(folder)
    here = {"token_file": str(token), "patience": PATIENCE, "control": host}
    site = Site(name="grid", kind=SiteKind.RAY, address=f"{host}:{port}", settings=here)
    return LooseGrid(site=grid.add_site(site, replace=True), token=token)


class LocalProvider:
    """The implementation of `ports.host.Provider`, with which commands let a grid use this machine."""

    def __init__(self, watch: IdleWatch | None = None) -> None:
        self._watch = watch or IdleWatch()
        self._claim: socket.socket | None = None

    def memory_bytes(self) -> int:
        """See Provider."""
        return memory_of_machine()

    def used_bytes(self) -> int:
        """See Provider."""
        return used_bytes()

    def look(self, seconds: float) -> NodeUtilization:
        """See Provider."""
        return look_at_machine(seconds, with_gpus=False, rays=False)

    def seconds_since_input(self) -> float:
        """See Provider."""
        return self._watch.seconds_since_input()

    def last_sign(self) -> str:
        """See Provider."""
        return self._watch.sign

    def why_blind(self) -> str:
        """See Provider."""
        return BLIND if self._watch.cannot_watch else ""

    @contextmanager
    def claim(self, folder: Path) -> Iterator[None]:
        """See Provider."""
        want_ray()
        with claim_machine(folder) as self._claim:
            yield

    def join(
        self,
        folder: Path,
        address: str,
        token: str,
        *,
        cpus: int | None,
        memory_bytes: int,
        behind: bool,
    ) -> JoinedNode:
        """See Provider. The node inherits the lock that prevents this machine from joining another grid."""
        return join(
            folder,
            address,
            token,
            cpus=cpus,
            memory_bytes=memory_bytes,
            behind=behind,
            claim=self._claim,
        )
