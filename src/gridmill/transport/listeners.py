"""The addresses at which pods on other machines reach this control node.

A listener opens when a site requests it, and has the same address after a restart.
"""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from threading import Lock

from gridmill.errors import UnavailableError
from gridmill.transport.server import PodLinkServer

_PORTS = "doors.json"


class HomeListeners:
    """The listeners of the home's control node for pods on other machines. The certificate of the listeners
    is in HOME/tls, and their ports are in HOME/doors.json.

    Pods can run longer than the control node, and have only the address with which they were started.
    Therefore the listener for a host has the same port and the same certificate as long as the home exists.
    This class is safe to call from several threads.
    """

    def __init__(self, links: PodLinkServer, home: Path, now: Callable[[], float]) -> None:
        self._links = links
        self._home = home
        self._now = now
        self._open: dict[str, str] = {}
        self._lock = Lock()

    def tls(self, host: str, port: int = 0) -> str:
        """See PodListeners."""
        with self._lock:
            link = self._open.get(host)
            if link is None or (port and not link.startswith(f"tls:{host}:{port}#")):
                self._open[host] = self._listen(host, port)
            return self._open[host]

    def _listen(self, host: str, port: int) -> str:
        if find_spec("cryptography") is None:
            raise UnavailableError(
                "pods on other machines need a certificate of the control node, and the package "
                "`cryptography` is not installed",
                hint="pip install 'gridmill[tls]'",
            )
        from gridmill.transport.certificate import make_certificate

        certfile, keyfile = make_certificate(self._home / "tls", self._now())
        before = self._ports().get(host, 0)
        try:
            port, fingerprint = self._links.listen_tls(host, port or before, certfile, keyfile)
        except UnavailableError as error:
            raise UnavailableError(
                f"the control node cannot listen for pods at {host}:{port or before}: {error.message}",
                hint="Set an address of this machine that the nodes can reach, with a free port: "
                "`gridmill configure site NAME --set control=HOST:PORT`.",
            ) from error
        self._save_ports(host, port)
        return f"tls:{host}:{port}#{fingerprint}"

    def _ports(self) -> dict[str, int]:
        try:
            result: dict[str, int] = json.loads((self._home / _PORTS).read_text())
        except (OSError, ValueError):
            return {}
        return result

    def _save_ports(self, host: str, port: int) -> None:
        draft = self._home / f".{_PORTS}"
        draft.write_text(json.dumps({**self._ports(), host: port}))
        draft.rename(self._home / _PORTS)

    def spool(self, folder: Path) -> str:
        """See PodListeners."""
        link = f"spool:{folder}"
        with self._lock:
            if link not in self._open:
                self._links.watch_spool(folder)
                self._open[link] = link
        return link
