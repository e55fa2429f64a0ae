"""HOST:PORT, as people write it."""

from ipaddress import AddressValueError, IPv6Address

from gridmill.errors import InputError

LAST_PORT = 65535
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""This machine alone, by name or address."""


def read_address(text: str, *, port: int | None = None, place: str = "") -> tuple[str, int]:
    """Host and port of `HOST:PORT`, or of `HOST` where there is a `port` to take instead. An IPv6 host is
    written in brackets. Raises InputError, at `place`."""
    host, colon, number = text.rpartition(":")
    if port is not None and (not colon or text.endswith("]")):
        host, number = text, str(port)
    within = host[1:-1] if host.startswith("[") and host.endswith("]") else ""
    wrong = not _is_ipv6(within) if within else not host or any(sign in host for sign in "[]/: ")
    if wrong or not number.isascii() or not number.isdigit() or int(number) > LAST_PORT:
        form = "HOST:PORT" if port is None else "HOST or HOST:PORT"
        usual = port if port and port > 1 else 6379
        example = f"[{text}]:{usual}" if _is_ipv6(text) else f"10.0.0.5:{usual}"
        raise InputError(
            f"{text!r} is not {form}",
            hint=f"Write for example {example}; ports end at {LAST_PORT}.",
            place=place,
        )
    return within or host, int(number)


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """True where the host is this machine alone, by name or address."""
    return host in LOOPBACK
