"""Checks whether the pods of all homes on this machine may use more memory than the machine still has.

Each home checks the machine by itself and has no information about other homes. Pods are processes that all
homes of a user can see. The memory that was promised to a pod is in its order, and the memory that it uses
is in /proc. The memory that other programs use is taken into account too, because the machine does not
report it as free.
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
SAMPLE_SECONDS, KNOWN_SECONDS = 10.0, 60.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodClaim:
    """A pod on this machine: its home, the memory that was promised to it, and the memory that its processes
    use now."""

    home: str
    promised_bytes: int
    used_bytes: int

    @property
    def open_bytes(self) -> int:
        """Returns how much more memory the pod may use."""
        return max(0, self.promised_bytes - self.used_bytes)


def pod_claims() -> list[PodClaim]:
    """Returns the pods whose orders this user may read."""
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
    """Returns a warning with a hint if this machine may run out of memory, or an empty text while it has the
    memory that its pods may use."""
    return overbooked_text(str(home), pod_claims(), free_bytes())


def overbooked_text(home: str, claims: Sequence[PodClaim], free: int) -> str:
    """Returns the warning about too little memory for these pods if the machine has `free` bytes left, or an
    empty text if the memory is sufficient."""
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
    """Returns texts such as `2 GiB (/home/a/.gridmill)` for each home except `home`."""
    promised: dict[str, int] = {}
    for claim in claims:
        if claim.home != home:
            promised[claim.home] = promised.get(claim.home, 0) + claim.promised_bytes
    return ", ".join(f"{show_bytes(amount)} ({other})" for other, amount in sorted(promised.items()))


def _pod_folder(pid: int) -> Path | None:
    """Returns the folder of a pod, which is the working directory of its process. Returns None for other
    processes and for pods of other users."""
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
    """Checks for one home repeatedly whether the machine has enough memory for its pods."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._due = self._looked = 0.0
        self._problem = ""

    def problem(self, now: float) -> str:
        """Returns the last warning, or an empty text if the last check is old because there were no pods
        since then."""
        return self._problem if now < self._looked + KNOWN_SECONDS else ""

    def look(self, now: float) -> None:
        """Repeats the check if the last check is some seconds old. The text of a warning does not change
        until the machine has enough memory again."""
        if now < self._due:
            return
        self._due, self._looked = now + SAMPLE_SECONDS, now
        found = overbooked(self._home)
        self._problem = (self._problem or found) if found else ""

    def again(self) -> None:
        """Makes the next call of `look` check immediately. This method must be called after a pod has
        started."""
        self._due = 0.0
