"""This module checks and parses short texts that people write: names, HOST:PORT addresses and moments.

Names become parts of paths and ids, so only certain characters are allowed in names.
"""

import json
import re
from datetime import UTC, datetime, tzinfo
from ipaddress import AddressValueError, IPv6Address

from gridmill.domain.calendar import moment_of
from gridmill.errors import InputError

_NAME = re.compile("[a-z0-9][a-z0-9_-]*")


def check_name(what: str, name: str) -> None:
    """Raise InputError if the name of a pipeline, job, resource, project or site is invalid."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot be the name of a {what}",
            hint="Use lower-case letters, digits, - and _. Begin with a letter or digit.",
        )


LAST_PORT = 65535
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""Host names and addresses by which only this machine itself can be reached."""


def read_address(text: str, *, port: int | None = None, place: str = "") -> tuple[str, int]:
    """Return the host and the port of `HOST:PORT`, or of `HOST` if a default `port` is passed. An IPv6 host
    is written in brackets. The InputError for an invalid address contains `place`."""
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
    """Return whether the host is a loopback name or address, by which only this machine itself can be
    reached."""
    return host in LOOPBACK


def read_moment(text: str, place: str = "", zone: tzinfo = UTC) -> datetime:
    """Parse a time (ISO 8601; a time without an offset is in `zone`), and convert it to UTC. The InputError
    for an invalid time contains `place`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        hint = 'Write for example "2013-01-01" or "2013-01-01T06:00".'
        raise InputError(f"{text!r} is not a time", hint=hint, place=place) from error
    if moment.tzinfo is not None:
        return moment.astimezone(UTC)
    if zone is UTC:
        return moment.replace(tzinfo=UTC)
    return datetime.fromtimestamp(moment_of(moment, zone), UTC)


def word(value: object) -> str:
    """Return the value of a parameter in the form in which `--set` takes it."""
    if isinstance(value, list | tuple):
        return json.dumps([one if isinstance(one, bool | int | float) else str(one) for one in value])
    return str(value).lower() if isinstance(value, bool) else str(value)
