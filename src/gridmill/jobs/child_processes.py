"""Child processes of a job and their resource usage.

Children are forked before heavy libraries start threads, and they end with the job. The usage is CPU time,
time waiting for a CPU or for the disk, and bytes read from and written to disks.
"""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.errors import GridmillError, JobError, StorageError, from_body, to_body

_PR_SET_PDEATHSIG = 1
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
_CRASHED = 70


@dataclass(slots=True)
class WorkerProcess:
    """A child process with two pipes: `orders` to the child and `reports` from it. `text` is the beginning of
    an incomplete line."""

    pid: int
    orders: int
    reports: int
    text: bytes = b""

    def send(self, line: str) -> None:
        """Send a line. If the child has ended, this method raises no error: the end of the child's reports
        shows it."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.orders, line.encode() + b"\n")

    def receive(self) -> list[dict[str, Any]] | None:
        """Return the new reports, each only once; wait until there is at least one. Return None if the child
        has ended."""
        data = os.read(self.reports, 65536)
        if not data:
            return None
        *lines, self.text = (self.text + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self) -> str:
        """Kill the child if it still runs, remove it, and return how it ended."""
        os.close(self.orders)
        os.close(self.reports)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return describe(os.waitpid(self.pid, 0)[1])


def describe(status: int) -> str:
    """A wait status in words."""
    code = os.waitstatus_to_exitcode(status)
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


Talk = Callable[[Callable[[], str], Callable[[dict[str, Any]], None]], None]
"""The function that runs in a child: it receives `next_order()` ("" at the end) and `report(...)`."""


def start_child(talk: Talk, others: Sequence[WorkerProcess] = ()) -> WorkerProcess:
    """Fork a child that runs `talk` and then ends.

    If `talk` raises a GridmillError, the child reports it as {"error": body}. Any other exception is written
    to the log and ends the child with exit code 70. The child is killed when this process dies. The child
    closes the pipes of `others`, because otherwise this process would not notice the end of another child.
    """
    orders, reports = os.pipe(), os.pipe()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        inherited = [end for other in others for end in (other.orders, other.reports)]
        _be_child(talk, parent, orders[0], reports[1], [orders[1], reports[0], *inherited])
    os.close(orders[0])
    os.close(reports[1])
    return WorkerProcess(pid=pid, orders=orders[1], reports=reports[0])


def _be_child(talk: Talk, parent: int, orders: int, reports: int, unused: Sequence[int]) -> None:
    code = _CRASHED
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        _die_with(parent)
        for descriptor in unused:
            os.close(descriptor)
        _talk(talk, orders, reports)
        code = 0
    except BaseException:  # noqa: BLE001  the outermost frame of a process: nothing may leave it
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _die_with(parent: int) -> None:
    """Make Linux kill this child when its parent process dies.

    On other systems the child ends after its current work, when the pipe of its orders is closed.
    """
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(_CRASHED)


def _talk(talk: Talk, orders: int, reports: int) -> None:
    def report(body: dict[str, Any]) -> None:
        os.write(reports, json.dumps(body).encode() + b"\n")

    with os.fdopen(orders) as lines:
        try:
            talk(lambda: lines.readline().strip(), report)
        except GridmillError as error:
            report({"error": to_body(error)})
        except OSError as error:
            report({"error": to_body(StorageError(str(error)))})


class Crew:
    """The running children, by their pids; all of them can be waited for at once."""

    def __init__(self) -> None:
        self.children: dict[int, WorkerProcess] = {}
        self._selector = selectors.DefaultSelector()

    def start(self, talk: Talk) -> WorkerProcess:
        """Fork another child that runs `talk`."""
        child = start_child(talk, tuple(self.children.values()))
        self.children[child.pid] = child
        self._selector.register(child.reports, selectors.EVENT_READ, child)
        return child

    def heard(self) -> list[WorkerProcess]:
        """Return the children that have reported or ended; wait until there is at least one."""
        return [key.data for key, _ in self._selector.select()]

    def remove(self, child: WorkerProcess) -> str:
        """End a child, and return how it ended."""
        self._selector.unregister(child.reports)
        del self.children[child.pid]
        return child.end()

    def dismiss(self) -> None:
        """End all children."""
        for child in tuple(self.children.values()):
            self.remove(child)
        self._selector.close()

    def leave(self) -> None:
        """In a child, close the files of the parent."""
        self._selector.close()


def raise_error(report: dict[str, Any]) -> None:
    """Raise the GridmillError that a report contains, if it contains one."""
    if "error" in report:
        raise from_body(report["error"])


def in_child(function: Callable[[], dict[str, Any]], what: str, scratch: Path) -> dict[str, Any]:
    """Run `function` in a child process and return its result (a JSON value), so that this process can still
    fork safely.

    The result is passed in a file in `scratch`. Raises the GridmillError that `function` raises; JobError
    with `what` if the child dies.
    """
    file = scratch / "result.json"

    def talk(next_order: Callable[[], str], report: Callable[[dict[str, Any]], None]) -> None:
        file.write_text(json.dumps(function()))
        report({"done": True})

    child, reports = start_child(talk), []
    try:
        while (some := child.receive()) is not None:
            reports += some
    finally:
        how = child.end()
    for report in reports:
        raise_error(report)
    if not reports:
        raise JobError(f"the process that was {what} ended ({how})", hint="The job's log has more.")
    result: dict[str, Any] = json.loads(file.read_bytes())
    return result


_TICK = 1.0 / os.sysconf("SC_CLK_TCK")
_ACCOUNTING = Path("/proc/sys/kernel/task_delayacct")
_DELAY_FIELD = 39
"""The position of a field of /proc/PID/stat, counted after the name: the ticks for which the process waited
for the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTotals:
    """Sums over processes. A value is None if this system does not measure it."""

    cpu_seconds: float = 0.0
    delay_seconds: float | None = None
    disk_seconds: float | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None

    def since(self, before: "CpuTotals") -> "CpuTotals":
        """The difference to `before`."""
        return _each(self, before, -1)

    def plus(self, other: "CpuTotals") -> "CpuTotals":
        """Return the sum of both. A value that is None in one of them is None in the sum."""
        return _each(self, other, 1)


NOTHING = CpuTotals(delay_seconds=0.0, disk_seconds=0.0, read_bytes=0, written_bytes=0)


def _each(one: CpuTotals, other: CpuTotals, sign: int) -> CpuTotals:
    def total(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else a + sign * b

    read, written = (
        None if a is None or b is None else a + sign * b
        for a, b in ((one.read_bytes, other.read_bytes), (one.written_bytes, other.written_bytes))
    )
    return CpuTotals(
        cpu_seconds=one.cpu_seconds + sign * other.cpu_seconds,
        delay_seconds=total(one.delay_seconds, other.delay_seconds),
        disk_seconds=total(one.disk_seconds, other.disk_seconds),
        read_bytes=read,
        written_bytes=written,
    )


def spent_so_far(helpers: Iterable[int] = ()) -> CpuTotals:
    """Return the usage of this process and of the processes `helpers` (pids). Processes that have ended are
    not counted."""
    own = _spent("self")
    cpu_totals = CpuTotals(
        cpu_seconds=time.process_time(),
        delay_seconds=own.delay_seconds,
        disk_seconds=own.disk_seconds,
        read_bytes=own.read_bytes,
        written_bytes=own.written_bytes,
    )
    for pid in helpers:
        cpu_totals = cpu_totals.plus(_spent(str(pid)))
    return cpu_totals


def _spent(pid: str) -> CpuTotals:
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    moved = dict(line.split(": ") for line in _text(f"/proc/{pid}/io").splitlines())
    has_delay = len(fields) > _DELAY_FIELD
    return CpuTotals(
        cpu_seconds=(int(fields[11]) + int(fields[12])) * _TICK if has_delay else 0.0,
        delay_seconds=_delay(pid),
        disk_seconds=int(fields[_DELAY_FIELD]) * _TICK if has_delay and _counts_disk() else None,
        read_bytes=int(moved["read_bytes"]) if "read_bytes" in moved else None,
        written_bytes=int(moved["write_bytes"]) if "write_bytes" in moved else None,
    )


def _delay(pid: str) -> float | None:
    """Return the seconds for which the first thread was ready to run but had no CPU; None if the kernel does
    not report it.

    Several threads can wait at the same time, so a sum over all threads could exceed the elapsed time.
    """
    fields = _text(f"/proc/{pid}/schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) == 3 else None


def _counts_disk() -> bool:
    """Return whether the kernel measures delays of processes. Many systems do not measure them by default."""
    return _text(str(_ACCOUNTING)).strip() == "1"


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
