"""Starts child processes of a job and measures their resource usage.

The child processes are forked before heavy libraries start threads, and they end when the job ends. The
measured usage is CPU time, time of waiting for a CPU or for the disk, and bytes read from and written to
disks.
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
    """A child process with two pipes. The pipe `orders` transports lines to the child, and the pipe
    `reports` transports lines from the child. `text` is the beginning of a line that the child has not
    completed."""

    pid: int
    orders: int
    reports: int
    text: bytes = b""

    def send(self, line: str) -> None:
        """Send a line to the child. If the child has ended, this method raises no error, because `receive`
        reports the end of the child."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.orders, line.encode() + b"\n")

    def receive(self) -> list[dict[str, Any]] | None:
        """Wait until the child has sent at least one new report, and return the new reports. Return None if
        the child has ended."""
        data = os.read(self.reports, 65536)
        if not data:
            return None
        *lines, self.text = (self.text + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self) -> str:
        """Kill the child if it still runs, collect its exit status, and return a text that describes how it
        ended."""
        os.close(self.orders)
        os.close(self.reports)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return describe(os.waitpid(self.pid, 0)[1])


def describe(status: int) -> str:
    """Return a text that describes a wait status of a process."""
    code = os.waitstatus_to_exitcode(status)
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


Talk = Callable[[Callable[[], str], Callable[[dict[str, Any]], None]], None]
"""The type of the function that runs in a child process. The function receives the function `next_order()`,
which returns "" after the last order, and the function `report(...)`."""


def start_child(talk: Talk, others: Sequence[WorkerProcess] = ()) -> WorkerProcess:
    """Fork a child process that runs `talk` and then ends.

    If `talk` raises a GridmillError, the child reports the error as {"error": body}. Any exception of `talk`
    that is not a GridmillError is written to the log, and the child exits with code 70. The child is killed
    when this process dies. The child closes the pipes of the processes in `others`. If the child kept these
    pipes open, the parent process would not notice the end of another child.
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
    """Make Linux kill this child process when its parent process dies.

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
    """A group of running child processes, by process id. The parent process can wait for all of these
    processes at the same time."""

    def __init__(self) -> None:
        self.children: dict[int, WorkerProcess] = {}
        self._selector = selectors.DefaultSelector()

    def start(self, talk: Talk) -> WorkerProcess:
        """Fork another child process that runs `talk`."""
        child = start_child(talk, tuple(self.children.values()))
        self.children[child.pid] = child
        self._selector.register(child.reports, selectors.EVENT_READ, child)
        return child

    def heard(self) -> list[WorkerProcess]:
        """Wait until at least one child has reported or ended, and return these children."""
        return [key.data for key, _ in self._selector.select()]

    def remove(self, child: WorkerProcess) -> str:
        """End a child process, and return a text that describes how it ended."""
        self._selector.unregister(child.reports)
        del self.children[child.pid]
        return child.end()

    def dismiss(self) -> None:
        """End all children."""
        for child in tuple(self.children.values()):
            self.remove(child)
        self._selector.close()

    def leave(self) -> None:
        """Close the files of the parent process in a child process."""
        self._selector.close()


def raise_error(report: dict[str, Any]) -> None:
    """Raise the GridmillError in a report of a child; do nothing if the report has no error."""
    if "error" in report:
        raise from_body(report["error"])


def in_child(function: Callable[[], dict[str, Any]], what: str, scratch: Path) -> dict[str, Any]:
    """Run `function` in a child process and return its result (a JSON value), so that this process starts no
    threads and can still fork safely.

    The child writes the result to a file in the folder `scratch`. Raises the GridmillError that `function`
    raises. Raises JobError with the text `what` if the child dies.
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
        raise JobError(f"the process that was {what} ended ({how})", hint="The job's log has the details.")
    result: dict[str, Any] = json.loads(file.read_bytes())
    return result


_TICK = 1.0 / os.sysconf("SC_CLK_TCK")
_ACCOUNTING = Path("/proc/sys/kernel/task_delayacct")
_DELAY_FIELD = 39
"""The position of a field in /proc/PID/stat, counted after the process name. The field contains the number
of clock ticks for which the process waited for the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTotals:
    """Sums over processes. A field is None if the operating system does not measure its value."""

    cpu_seconds: float = 0.0
    delay_seconds: float | None = None
    disk_seconds: float | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None

    def since(self, before: "CpuTotals") -> "CpuTotals":
        """The difference to `before`."""
        return _each(self, before, -1)

    def plus(self, other: "CpuTotals") -> "CpuTotals":
        """Return the sum of this record and the record `other`. If a field is None in one of the two
        records, the field is also None in the sum."""
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
    """Return the CPU and disk usage of this process and of the processes `helpers` (process ids). Processes
    that have already ended are not counted."""
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
    """Return the seconds for which the first thread of a process was ready to run but had no CPU, or None if
    the kernel does not report this time.

    Only the first thread is counted: several threads can wait at the same time, so a sum over all threads
    could exceed the elapsed time.
    """
    fields = _text(f"/proc/{pid}/schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) == 3 else None


def _counts_disk() -> bool:
    """Return whether the kernel measures how long processes wait for the disk. Many systems do not measure
    this delay by default."""
    return _text(str(_ACCOUNTING)).strip() == "1"


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
