"""How other hosts reach this one, and whether a port here is free."""

import contextlib
import socket
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"


def own_address(link: str) -> str:
    """This host's address, as whoever the pod's link leads to would see it: no packet is sent.

    Loopback where pods are on the control node's machine; the host's name where only a folder is known.
    """
    scheme, _, rest = link.partition(":")
    if scheme == "unix":
        return LOOPBACK
    if scheme == "tls":
        place = urlsplit(f"//{rest}")
        with contextlib.suppress(OSError):
            return _source_towards(place.hostname or "", place.port or 0)
    return socket.gethostname()


def _source_towards(host: str, port: int) -> str:
    """The address from which this host would dial that one. Raises OSError."""
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def is_free(port: int) -> bool:
    """Whether nobody on this host listens at that TCP port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
