"""Whether the pods of this machine, of all homes, may use more memory than it can still give.

Each home measures the machine by itself and does not know other homes. Pods are processes that all homes of a
user can see: their promised memory is in their orders, their used memory is in /proc. Other programs count
through the free memory.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from gridmill.codec import decode
from gridmill.domain.amounts import show_bytes
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import PodOrder
from gridmill.errors import GridmillError
from gridmill.sites.machine import free_bytes
from gridmill.sites.process_table import below, read_table

_MODULES = ((b"-m", b"gridmill.pod"), (b"-m", b"gridmill.pod.standby"))
LOOK_SECONDS, KNOWN_SECONDS = 10.0, 60.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodClaim:
    """A pod of this machine: its home, its promised memory, and the present use of its processes."""

    home: str
    promised_bytes: int
    used_bytes: int

    @property
    def open_bytes(self) -> int:
        """The memory that it may still take."""
        return max(0, self.promised_bytes - self.used_bytes)


def pod_claims() -> list[PodClaim]:
    """The pods whose orders this user may read."""
    table = read_table()
    claims = []
    for pid in table:
        folder = _pod_folder(pid)
        promised = _promised(folder) if folder is not None else None
        if folder is not None and promised is not None:
            used = sum(map(_private_bytes, below(pid, table)))
            claims.append(PodClaim(home=str(folder.parent.parent), promised_bytes=promised, used_bytes=used))
    return claims


def overbooked(home: Path) -> str:
    """A warning if this machine may run out of memory, with a hint; empty while it has the memory that its
    pods may use."""
    return overbooked_text(str(home), pod_claims(), free_bytes())


def overbooked_text(home: str, claims: Sequence[PodClaim], free: int) -> str:
    """The same for these pods and so much free memory."""
    still = sum(claim.open_bytes for claim in claims)
    if still <= free:
        return ""
    others = homes_text(home, claims)
    extra = f"; pods of other homes may use {others}" if others else ""
    return (
        f"this machine may run out of memory: its pods may use {show_bytes(still)} more than they use now, "
        f"and {show_bytes(free)} are free{extra}. "
        "Limit the memory of each home with GRIDMILL_MEMORY, or stop other programs that use memory"
    )


def homes_text(home: str, claims: Sequence[PodClaim]) -> str:
    """`2 GiB (/home/a/.gridmill)` for each home except that one."""
    promised: dict[str, int] = {}
    for claim in claims:
        if claim.home != home:
            promised[claim.home] = promised.get(claim.home, 0) + claim.promised_bytes
    return ", ".join(f"{show_bytes(amount)} ({other})" for other, amount in sorted(promised.items()))


def _pod_folder(pid: int) -> Path | None:
    """The folder of a pod, which is its working directory; None for other processes and other users' pods."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if not any(pair in _MODULES for pair in pairwise(words)):
            return None
        folder = Path(os.readlink(f"/proc/{pid}/cwd"))
    except OSError:
        return None
    return folder if folder.parent.name == "pods" else None


def _promised(folder: Path) -> int | None:
    try:
        return decode((folder / "order.json").read_bytes(), PodOrder).capacity.memory_bytes
    except (OSError, GridmillError, ValueError):
        return None


def _private_bytes(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        words = Path(f"/proc/{pid}/statm").read_text().split()
        return (int(words[1]) - int(words[2])) * _PAGE
    return 0


class MemoryWatch:
    """Checks the memory of the machine repeatedly for one home."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._due = self._looked = 0.0
        self._problem = ""

    def problem(self, now: float) -> str:
        """The last warning; empty if the last check is old, because there were no pods then."""
        return self._problem if now < self._looked + KNOWN_SECONDS else ""

    def look(self, now: float) -> None:
        """Checks again if the last check is some seconds old. A warning keeps its text until the problem is
        over."""
        if now < self._due:
            return
        self._due, self._looked = now + LOOK_SECONDS, now
        found = overbooked(self._home)
        self._problem = (self._problem or found) if found else ""

    def again(self) -> None:
        """Called after a pod started: the next check is not delayed."""
        self._due = 0.0
