"""The Unix users of tenants: unique user ids that are never used again, and the end of their processes.

The farm acts as a tenant's Unix user for the tenant: what its jobs may not read or write, the farm does not
read or write for it either.
"""

import ctypes
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from gridmill.domain.frozen import dataclass
from gridmill.errors import ConflictError, InputError, UnavailableError
from gridmill.farm.tenant import Tenant

FIRST_USER = 1_879_100_000
"""The first user id of tenants, in a range that nothing else assigns (systemd's UIDS-GIDS)."""
_FARMS, _USERS = 200_000, 1000
"""Each farm of a machine begins its range of user ids at a random place, because it may end every process of
its users."""
_NOBODIES = 50_000
"""This many numbers before the first are not assigned to tenants either."""
PATIENCE_SECONDS = 30.0
"""How long killed processes may take to disappear."""
_POLL_SECONDS = 0.01
_END_ALL = """
import os, signal, sys
user, nobody = map(int, sys.argv[1:])
os.setgroups([])
os.setresgid(nobody, nobody, nobody)
os.setresuid(nobody, user, nobody)
os.kill(-1, signal.SIGKILL)
"""
"""It may signal that user's processes, by its effective user id. They may not signal it, because that depends
on its real and saved ids. It also starts if the user is at its limit of processes, because the farm's own
user starts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCounter:
    """`next`: the Unix user of the next tenant. It only grows: what a tenant that is gone has left somewhere,
    or still runs, is never another's."""

    next: int


def first_number() -> UserCounter:
    """Where a new farm begins."""
    return UserCounter(next=FIRST_USER + secrets.randbelow(_FARMS) * _USERS)


def next_number(kept: UserCounter | None, tenants: Sequence[Tenant]) -> UserCounter:
    """The user of another tenant; to be kept with that tenant as one that has been given."""
    given = [tenant.user for tenant in tenants if tenant.user is not None]
    counter = kept or (UserCounter(next=FIRST_USER) if given else first_number())
    return UserCounter(next=max([counter.next, *(user + 1 for user in given)]))


def refuse_second(one_user: str, tenants: Sequence[Tenant], name: str, one_tenant: str = "") -> None:
    """Raises InputError where a further tenant could not be kept apart from those that are here, and
    ConflictError where such a one is being removed; `one_user` says why tenants have no Unix users of their
    own (empty: they have), `one_tenant` why their jobs could exhaust or end each other."""
    alone = one_user or one_tenant
    others = [one for one in tenants if one.name != name and (alone or one.user is None)]
    other = min(others, key=lambda one: one.revoked, default=None)
    if other is None:
        return
    if other.revoked:
        raise leaving(other.name)
    why = alone or f"{other.name} joined when jobs had no Unix user of their own here"
    raise InputError(
        f"this farm serves one tenant only, which is {other.name}: {why}",
        hint=_separate_hint(other.name) if alone else _joins_anew(other.name),
        place="tenant",
    )


def leaving(name: str) -> ConflictError:
    """Why nobody joins yet where a tenant was revoked."""
    return ConflictError(
        f"the files of the revoked tenant {name} are being deleted",
        hint="Join again in a minute.",
        place="tenant",
    )


def refuse_together(one_user: str, tenants: Sequence[Tenant], one_tenant: str = "") -> None:
    """Raises InputError where those that have joined cannot be served any more as they were: what kept them
    apart has changed. `one_user` and `one_tenant` as above."""
    if one_tenant and not one_user and len(tenants) > 1:
        raise InputError(
            f"{len(tenants)} tenants have joined, but their jobs can no longer be isolated: {one_tenant}",
            hint=f"Undo the change on this machine, or remove a tenant: {_joins_anew(tenants[-1].name)}",
        )
    for tenant in tenants:
        if one_user and tenant.user is not None:
            raise InputError(
                f"jobs of {tenant.name} can no longer have a Unix user of their own: {one_user}",
                hint=f"Undo the change on this machine, or let it join again: {_joins_anew(tenant.name)}",
            )
        if tenant.user is None and len(tenants) > 1:
            others = ", ".join(one.name for one in tenants if one is not tenant)
            raise InputError(
                f"jobs of {tenant.name} have no Unix user of their own and could read the files of {others}",
                hint=_joins_anew(tenant.name),
            )


def _separate_hint(name: str) -> str:
    return (
        "For several tenants, run the farm as root, with cgroups and namespaces, --site local, in folders "
        f"that other users can enter. To replace the tenant, first run `gridmill farm revoke {name}` there."
    )


def _joins_anew(name: str) -> str:
    return f"run `gridmill farm revoke {name}` on the farm, then join with a line of `gridmill farm invite`."


def end_processes(user: int | None, patience_seconds: float = PATIENCE_SECONDS) -> None:
    """End all that runs as a tenant's user, whatever it has forged; nothing where that is ourselves.

    Raises UnavailableError for what has not ended in that time: what waits for a disk cannot.
    """
    if user is None:
        return
    if user < FIRST_USER:
        raise UnavailableError(f"user {user} is not the user of a tenant")
    until = time.monotonic() + patience_seconds
    while True:
        for pid in living(user):
            _end(pid, user)
        _end_all(user)  # be it that none was seen: what forks and exits again and again is missed at times
        if not living(user):
            return
        if time.monotonic() > until:
            raise UnavailableError(f"processes of user {user} still run {patience_seconds:g} s after SIGKILL")
        time.sleep(_POLL_SECONDS)


def _end(pid: int, user: int) -> None:
    """One, also where it is stopped; nobody else who has its number by now."""
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError as error:
        raise UnavailableError(f"process {pid} of user {user} cannot be ended: {error}") from error
    try:
        if _runs_as(pid, user):
            signal.pidfd_send_signal(held, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(held)


def _end_all(user: int) -> None:
    """All at once: of those that fork more quickly than they can be counted nobody escapes."""
    nobody = FIRST_USER - 1 - secrets.randbelow(_NOBODIES)
    words = [sys.executable, "-I", "-S", "-c", _END_ALL, str(user), str(nobody)]
    try:
        subprocess.run(words, cwd="/", capture_output=True, timeout=PATIENCE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"processes of user {user} cannot be ended: {error}") from error


def living(user: int) -> list[int]:
    """Processes whose real user that is, by number; their effective one may be another."""
    return [pid for pid in _processes() if _runs_as(pid, user)]


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _runs_as(pid: int, user: int) -> bool:
    try:
        status_text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    fields = dict(line.partition(":")[::2] for line in status_text.splitlines())
    dead = fields.get("State", "").split()[:1] in (["Z"], ["X"])
    return not dead and fields.get("Uid", "").split()[:1] == [str(user)]


PASS = 0o711
_TRY_SECONDS = 60.0
_thread = threading.local()


@contextmanager
def acting_as(user: int | None) -> Iterator[None]:
    """In this thread files are opened and made as that user (setfsuid(2)); None: as ourselves.

    A link that a job puts where the farm looks leads nowhere that the job could not go itself. Not for
    coroutines. Raises UnavailableError where that is not possible.
    """
    if user is None:
        yield
        return
    before: int = getattr(_thread, "user", 0)
    _become(user)
    try:
        yield
    finally:
        _become(before)


def _become(user: int) -> None:
    libc = _libc()
    libc.setfsgid(user)
    libc.setfsuid(user)
    if libc.setfsuid(user) != user:  # which tells who it was before, and nothing of errors
        raise UnavailableError(f"cannot read and write files as user {user}")
    _thread.user = user


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def why_one_user(folder: Path) -> str:
    """Why jobs cannot have Unix users of their own here, with homes below `folder`; empty: they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "Gridmill does not run as root"
    existing = (path for path in (folder, *folder.parents) if path.exists())
    closed = next((path for path in existing if not path.stat().st_mode & 0o001), None)
    if closed is not None:
        return f"other users cannot enter {closed}"
    return _why_no_python(FIRST_USER)


def _why_no_python(user: int) -> str:
    words = [sys.executable, "-P", "-c", "import gridmill.pod.folders"]
    try:
        tried = subprocess.run(
            words,
            user=user,
            group=user,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=_TRY_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"other users cannot start this Python: {error}"
    error_lines = tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"]
    return f"other users cannot import this Gridmill: {error_lines[-1]}" if tried.returncode else ""
