"""This module checks and parses short texts that people write: names, HOST:PORT addresses and moments. For a
name that does not exist, it finds the similar name that was probably meant.

Names become parts of paths and ids, so only certain characters are allowed in names.
"""

import json
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, tzinfo
from difflib import get_close_matches
from ipaddress import AddressValueError, IPv6Address

from gridmill.domain.calendar import moment_of
from gridmill.errors import InputError

_NAME = re.compile("[a-z0-9][a-z0-9_-]*")


def check_name(what: str, name: str) -> None:
    """Raise InputError if the name of a pipeline, job, resource, project or site is invalid."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot be the name of {'an' if what[0] in 'AEIOUaeiou' else 'a'} {what}",
            hint="Use lower-case letters, digits, - and _. Begin with a letter or digit.",
        )


def similar_name(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the known name that is most similar to `name`, or an empty text if no name is similar. Upper
    case and lower case are treated as equal, and a unit at the end of `name` is ignored. `cutoff` is the
    smallest similarity, from 0 to 1 (difflib)."""
    by_lower = {one.lower(): one for one in known}
    lower = name.lower()
    bare = lower.removesuffix("_seconds").removesuffix("_bytes")
    close = [bare] if bare in by_lower else get_close_matches(lower, by_lower, n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else ""


FindSimilar = Callable[[str, Iterable[str]], str]


def suggestion(
    name: str, known: Iterable[str], otherwise: str = "", *, find: FindSimilar = similar_name
) -> str:
    """Return a hint with the name that was probably meant, or the text `otherwise` if no known name is
    similar."""
    similar = find(name, known)
    return f"Did you mean `{similar}`?" if similar else otherwise


def did_you_mean(name: str, known: Iterable[str], *, find: FindSimilar = similar_name) -> str:
    """Return the suggestion as the end of a sentence (`; did you mean ...?`), or an empty text if no known
    name is similar."""
    text = suggestion(name, known, find=find)
    return f"; {text[0].lower()}{text[1:]}" if text else ""


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
