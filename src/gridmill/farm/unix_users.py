"""Manages the Unix users of tenants: assigns user ids that are never reused, and ends the processes of
users.

The farm works for a tenant as the Unix user of that tenant. Therefore the farm can read and write only the
files that the jobs of the tenant can read and write.
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
"""The first user id of tenants. The user id is in a range that no other program assigns (see UIDS-GIDS of
systemd)."""
_FARMS, _USERS = 200_000, 1000
"""Each farm of a machine selects a random start of its range of user ids. The ranges must not overlap,
because a farm can end every process of its users."""
_NOBODIES = 50_000
"""This number of user ids directly below the first user id of tenants is reserved too, and is not assigned
to tenants."""
PATIENCE_SECONDS = 30.0
"""The number of seconds that killed processes may take to disappear."""
_POLL_SECONDS = 0.01
_END_ALL = """
import os, signal, sys
user, nobody = map(int, sys.argv[1:])
os.setgroups([])
os.setresgid(nobody, nobody, nobody)
os.setresuid(nobody, user, nobody)
os.kill(-1, signal.SIGKILL)
"""
"""The process that runs this program can signal processes of the user because of its effective user id. The
processes of the user cannot signal this process, because the permission to signal a process depends on the
real and saved user ids of that process. The process also starts if the user has reached the user's process
limit, because the user of the farm starts the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCounter:
    """`next` is the id of the Unix user for the next tenant. `next` only grows, so that files and processes
    that a removed tenant has left never belong to another tenant."""

    next: int


def first_number() -> UserCounter:
    """Returns the counter of a new farm, with the first user id."""
    return UserCounter(next=FIRST_USER + secrets.randbelow(_FARMS) * _USERS)


def next_number(kept: UserCounter | None, tenants: Sequence[Tenant]) -> UserCounter:
    """Returns the counter after the Unix user of a new tenant was assigned. The caller must store the
    counter together with the new tenant."""
    given = [tenant.user for tenant in tenants if tenant.user is not None]
    counter = kept or (UserCounter(next=FIRST_USER) if given else first_number())
    return UserCounter(next=max([counter.next, *(user + 1 for user in given)]))


def refuse_second(one_user: str, tenants: Sequence[Tenant], name: str, one_tenant: str = "") -> None:
    """Raises InputError if a further tenant could not be isolated from the present tenants, and
    ConflictError while a tenant is being removed. `one_user` is the reason why tenants have no separate Unix
    users, and is empty if tenants have separate Unix users. `one_tenant` is the reason why jobs of one
    tenant could exhaust the machine for other tenants or end their processes."""
    alone = one_user or one_tenant
    others = [one for one in tenants if one.name != name and (alone or one.user is None)]
    other = min(others, key=lambda one: one.revoked, default=None)
    if other is None:
        return
    if other.revoked:
        raise leaving(other.name)
    why = alone or f"{other.name} joined while the jobs of this farm had no Unix users of their own"
    raise InputError(
        f"this farm serves one tenant only, which is {other.name}: {why}",
        hint=_separate_hint(other.name) if alone else _joins_anew(other.name),
        place="tenant",
    )


def leaving(name: str) -> ConflictError:
    """Returns the error for a tenant that joins while a revoked tenant with the same name is being
    removed."""
    return ConflictError(
        f"the files of the revoked tenant {name} are being deleted",
        hint="Join again in a minute.",
        place="tenant",
    )


def refuse_together(one_user: str, tenants: Sequence[Tenant], one_tenant: str = "") -> None:
    """Raises InputError if the present tenants cannot be isolated from each other any more because the
    machine has changed. `one_user` and `one_tenant` have the same meaning as in `refuse_second`."""
    if one_tenant and not one_user and len(tenants) > 1:
        raise InputError(
            f"{len(tenants)} tenants have joined, but their jobs can no longer be isolated: {one_tenant}",
            hint=f"Undo the change on this machine, or remove a tenant: {_joins_anew(tenants[-1].name)}",
        )
    for tenant in tenants:
        if one_user and tenant.user is not None:
            raise InputError(
                f"jobs of {tenant.name} can no longer have a Unix user of their own: {one_user}",
                hint="Undo the change on this machine, or let the tenant join again: "
                f"{_joins_anew(tenant.name)}",
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
    """Ends all processes of the user of a tenant, whatever the files of the tenant contain. The function
    does nothing for the user of this process.

    Raises UnavailableError if processes have not ended in this time. For example, a process that waits for a
    disk cannot end.
    """
    if user is None:
        return
    if user < FIRST_USER:
        raise UnavailableError(f"user {user} is not the user of a tenant")
    until = time.monotonic() + patience_seconds
    while True:
        for pid in living(user):
            _end(pid, user)
        # even if no process was seen, because a process that forks and exits again and again can be missed
        _end_all(user)
        if not living(user):
            return
        if time.monotonic() > until:
            raise UnavailableError(f"processes of user {user} still run {patience_seconds:g} s after SIGKILL")
        time.sleep(_POLL_SECONDS)


def _end(pid: int, user: int) -> None:
    """Ends one process, even if it is stopped. If a new process has got the same id in the meantime, the new
    process is not ended."""
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
    """Signals all processes of the user at the same time. If processes were signalled one by one, processes
    that fork faster than they can be listed could escape."""
    nobody = FIRST_USER - 1 - secrets.randbelow(_NOBODIES)
    words = [sys.executable, "-I", "-S", "-c", _END_ALL, str(user), str(nobody)]
    try:
        subprocess.run(words, cwd="/", capture_output=True, timeout=PATIENCE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"processes of user {user} cannot be ended: {error}") from error


def living(user: int) -> list[int]:
    """Returns the ids of processes whose real user is this user. The effective user of these processes can
    be another user."""
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
    """Opens and makes files in this thread as the given user (setfsuid(2)). The value None means the user of
    this process.

    With this user, the farm follows links of a job only to places that the job itself can reach. The
    function must not be used in coroutines. Raises UnavailableError if the user cannot be changed.
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
    # checked with a second call, because setfsuid returns the previous id and reports no errors
    if libc.setfsuid(user) != user:
        raise UnavailableError(f"cannot read and write files as user {user}")
    _thread.user = user


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def why_one_user(folder: Path) -> str:
    """Returns the reason why jobs cannot have separate Unix users on this machine, with their homes below
    `folder`. The text is empty if jobs can have separate Unix users."""
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
