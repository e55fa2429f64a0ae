"""Unix users of sources: numbers that nobody else has and that are never given again, and their ends."""

import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gridmill.errors import InputError, UnavailableError
from gridmill.farm.source import Source
from gridmill.model.noun import dataclass

FIRST_USER = 1_879_100_000
"""Users of sources are counted from here: nobody else gives these numbers out (systemd's UIDS-GIDS)."""
_FARMS, _USERS = 200_000, 1000
"""Each farm of a machine begins somewhere else: it may end whatever runs as a user of its own."""
_PATIENCE_SECONDS = 30.0
_POLL_SECONDS = 0.01
_END_ALL = '[ "$(id -ru)" = "$1" ] && [ "$(id -u)" = "$1" ] && kill -KILL -1'
"""To all processes of its user at once, itself left out: nothing can be forked quickly enough to escape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """`next`: the Unix user of the next source. It only grows: what a source that is gone has left somewhere,
    or still runs, is never another's."""

    next: int


def first_number() -> Numbered:
    """Where a new farm begins."""
    return Numbered(next=FIRST_USER + secrets.randbelow(_FARMS) * _USERS)


def next_number(kept: Numbered | None, sources: Sequence[Source]) -> Numbered:
    """The user of another source; to be kept with that source as one that has been given."""
    given = [one.user for one in sources if one.user is not None]
    known = kept or (Numbered(next=FIRST_USER) if given else first_number())
    return Numbered(next=max([known.next, *(user + 1 for user in given)]))


def refuse_second(one_user: str, sources: Sequence[Source], name: str) -> None:
    """Raises InputError where a further source would have the same user as those that are here: `one_user`
    says why."""
    other = next((one.name for one in sources if one.name != name), None)
    if other is not None:
        raise InputError(
            f"this farm serves one source only, and that is {other}: {one_user}",
            hint="Jobs of several sources need a Unix user each: run the farm as root, with --site local, in "
            f"folders that others may pass; or `gridmill farm revoke {other}` there first.",
            place="source",
        )


def end_processes(user: int | None) -> None:
    """End all that runs as a source's user, whatever it has forged; nothing where that is ourselves.

    Raises UnavailableError for what does not end within half a minute.
    """
    if user is None:
        return
    if user < FIRST_USER:
        raise UnavailableError(f"user {user} is no source's")
    until = time.monotonic() + _PATIENCE_SECONDS
    while living(user):
        if time.monotonic() > until:
            raise UnavailableError(f"processes of user {user} do not end")
        _end_all(user)
        time.sleep(_POLL_SECONDS)


def _end_all(user: int) -> None:
    words = ["/bin/sh", "-c", _END_ALL, "sh", str(user)]
    try:
        subprocess.run(
            words,
            user=user,
            group=user,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"processes of user {user} cannot be ended: {error}") from error


def living(user: int) -> list[int]:
    """Processes whose real user that is, by number; their effective one may be another."""
    return [pid for pid in _processes() if _runs_as(pid, user)]


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _runs_as(pid: int, user: int) -> bool:
    try:
        told = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    fields = dict(line.partition(":")[::2] for line in told.splitlines())
    dead = fields.get("State", "").split()[:1] in (["Z"], ["X"])
    return not dead and fields.get("Uid", "").split()[:1] == [str(user)]
