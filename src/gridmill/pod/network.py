"""Finds the address at which other hosts reach this host, and checks whether a port of this host is free."""

import contextlib
import fcntl
import socket
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915  # the value from netdevice(7), because Python has no name for it
_IFREQ_BYTES = 40
# the kernel writes the address into these bytes of the ifreq, as a part of a sockaddr_in
_ADDRESS = slice(20, 24)


def own_address(link: str) -> str:
    """Returns the address of this host as the other end of the pod's link sees it. No packet is sent.

    If the pods are on the machine of the control node, the address is the loopback address. If the pod's
    link is only a shared folder, the result is the name of this host.
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
    """Returns the local address that is used for a connection to `host`. Raises OSError."""
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    """Returns the name of the network interface with this IPv4 address, or an empty text if there is
    none."""
    try:
        wanted = socket.inet_aton(address)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            named = (name for _, name in socket.if_nameindex())
            return next((name for name in named if _has(probe, name, wanted)), "")
    except OSError:
        return ""


def _has(probe: socket.socket, interface: str, wanted: bytes) -> bool:
    with contextlib.suppress(OSError):  # raised for an interface that has no address
        interface_name = interface.encode().ljust(_IFREQ_BYTES, b"\0")
        return fcntl.ioctl(probe, _SIOCGIFADDR, interface_name)[_ADDRESS] == wanted
    return False


def is_free(port: int) -> bool:
    """Returns whether no program on this host listens at this TCP port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
