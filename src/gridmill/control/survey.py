"""Sites of other machines: opened as they are declared, and asked for their nodes now and then.

A site may take seconds to answer, or not answer at all: this runs in a thread of its own and takes the node's
lock only to note what it found. (The local site is opened with the control node and does not change.)
"""

import threading
from dataclasses import replace

from gridmill.control.node import ControlNode
from gridmill.errors import GridmillError, explained
from gridmill.model.site import LOCAL, Site
from gridmill.ports.site import SitePort

SURVEY_SECONDS = 5.0


class Surveyor:
    """Keeps `control.sites` and the nodes of declared sites as they are. `close` ends its thread."""

    def __init__(self, node: ControlNode, seconds: float = SURVEY_SECONDS) -> None:
        self._node = node
        self._seconds = seconds
        self._ending = threading.Event()
        self._trouble: dict[str, str] = {}
        self._thread = threading.Thread(target=self._loop, name="survey", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End it; a site that does not answer is not waited for."""
        self._ending.set()
        self._thread.join(1.0)

    def _loop(self) -> None:
        while not self._ending.is_set():
            for site in self._declared():
                self._guarded(site)
            self._ending.wait(self._seconds)

    def _declared(self) -> tuple[Site, ...]:
        with self._node.lock:
            return tuple(
                site for site in self._node.control.ledger.snapshot.sites.values() if site.name != LOCAL
            )

    def _guarded(self, site: Site) -> None:
        """What a site says of its trouble is told once."""
        try:
            self.survey(site)
            self._trouble.pop(site.name, None)
        except GridmillError as error:
            told = f"site {site.name}: {explained(error)}"
            if self._trouble.get(site.name) != told and not self._ending.is_set():
                self._node.control.warn(told)
            self._trouble[site.name] = told

    def survey(self, site: Site) -> None:
        """Look at one site. Raises what it raises."""
        port = self._node.control.sites.get(site.name) or self._node.control.open_site(site)
        nodes = port.nodes()
        with self._node.lock:
            now = self._node.control.ledger.snapshot.sites.get(site.name)
            if now is None or described(now) != described(site):  # removed, or another one by now
                return
            adopt(self._node, site.name, port)
            if now.nodes == nodes:
                return
            with self._node.changing() as transaction:
                transaction.put(now.with_nodes(nodes))


def described(site: Site) -> Site:
    """The site as it was declared, without what was seen of it."""
    return replace(site, nodes=(), past=())


def adopt(node: ControlNode, name: str, port: SitePort) -> None:
    """From now on this is the site's port; one that was there is closed. Its pods go on."""
    before = node.control.sites.get(name)
    node.control.sites[name] = port
    if before is not None and before is not port:
        before.close()
