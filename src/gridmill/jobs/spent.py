"""What processes have spent so far: CPU time, time without a CPU or for the disk, bytes from and to disks."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")
_ACCOUNTING = Path("/proc/sys/kernel/task_delayacct")
_DELAY_FIELD = 39
"""Of /proc/PID/stat, counted behind the name: ticks that the process stood still for the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Sums over processes. None: this system does not count it."""

    cpu_seconds: float = 0.0
    delay_seconds: float | None = None
    disk_seconds: float | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None

    def since(self, before: "Spent") -> "Spent":
        """What came on top of `before`."""
        return _each(self, before, -1)

    def plus(self, other: "Spent") -> "Spent":
        """Both together; what one of them does not know is not known."""
        return _each(self, other, 1)


NOTHING = Spent(delay_seconds=0.0, disk_seconds=0.0, read_bytes=0, written_bytes=0)


def _each(one: Spent, other: Spent, sign: int) -> Spent:
    def total(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else a + sign * b

    read, written = (
        None if a is None or b is None else a + sign * b
        for a, b in ((one.read_bytes, other.read_bytes), (one.written_bytes, other.written_bytes))
    )
    return Spent(
        cpu_seconds=one.cpu_seconds + sign * other.cpu_seconds,
        delay_seconds=total(one.delay_seconds, other.delay_seconds),
        disk_seconds=total(one.disk_seconds, other.disk_seconds),
        read_bytes=read,
        written_bytes=written,
    )


def spent_so_far(helpers: Iterable[int] = ()) -> Spent:
    """By this process and by those `helpers` (pids). One that has ended counts for nothing."""
    own = _spent("self")
    found = Spent(
        cpu_seconds=time.process_time(),
        delay_seconds=own.delay_seconds,
        disk_seconds=own.disk_seconds,
        read_bytes=own.read_bytes,
        written_bytes=own.written_bytes,
    )
    for pid in helpers:
        found = found.plus(_spent(str(pid)))
    return found


def _spent(pid: str) -> Spent:
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    moved = dict(line.split(": ") for line in _text(f"/proc/{pid}/io").splitlines())
    known = len(fields) > _DELAY_FIELD
    return Spent(
        cpu_seconds=(int(fields[11]) + int(fields[12])) * _TICK if known else 0.0,
        delay_seconds=_delay(pid),
        disk_seconds=int(fields[_DELAY_FIELD]) * _TICK if known and _counts_disk() else None,
        read_bytes=int(moved["read_bytes"]) if "read_bytes" in moved else None,
        written_bytes=int(moved["write_bytes"]) if "write_bytes" in moved else None,
    )


def _delay(pid: str) -> float | None:
    """Seconds that its first thread was ready to run and had no CPU; None where the kernel does not say.
    Other threads wait at the same time: their sum would be longer than the time itself."""
    fields = _text(f"/proc/{pid}/schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) == 3 else None


def _counts_disk() -> bool:
    """Whether the kernel accounts delays: many have that off."""
    return _text(str(_ACCOUNTING)).strip() == "1"


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
