"""Child processes of a prediction job: forked before anything heavy has run, and never outliving it."""

import contextlib
import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridmill.errors import GridmillError, JobError, StorageError, from_body, to_body

_PR_SET_PDEATHSIG = 1
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
_CRASHED = 70


@dataclass(slots=True)
class Child:
    """A process with a pipe to it (`orders`) and one from it (`reports`); `text` is the begin of a line."""

    pid: int
    orders: int
    reports: int
    text: bytes = b""

    def tell(self, line: str) -> None:
        """Send a line. A child that is gone is found out when its reports end."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.orders, line.encode() + b"\n")

    def hear(self) -> list[dict[str, Any]] | None:
        """Reports that have come, each once (waits for the first); None when the child has ended."""
        data = os.read(self.reports, 65536)
        if not data:
            return None
        *lines, self.text = (self.text + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self) -> str:
        """Kill it if it still lives, forget it, and say how it ended."""
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
"""What a child does: given `next_order()` ("" at the end) and `report(...)`."""


def start_child(talk: Talk, others: Sequence[Child] = ()) -> Child:
    """Fork a child that runs `talk` and ends. A GridmillError of it is reported as {"error": body}.

    It closes the pipes of `others`, so that a child's end is seen as the end of its reports, and it is
    killed when this process dies. Whatever else it raises goes to the log and ends it with exit code 70.
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
    return Child(pid=pid, orders=orders[1], reports=reports[0])


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
    """Elsewhere than on Linux a child ends when its orders do: after what it is at."""
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


def raise_error(report: dict[str, Any]) -> None:
    """Raise the GridmillError that a report carries, if it does."""
    if "error" in report:
        raise from_body(report["error"])


def in_child(function: Callable[[], dict[str, Any]], what: str, scratch: Path) -> dict[str, Any]:
    """What `function` returns (JSON), run in a child of its own: this process stays clean to fork from.

    The result comes through a file in `scratch`. Raises what it raises of GridmillError; JobError naming
    `what` when the child dies.
    """
    file = scratch / "result.json"

    def talk(next_order: Callable[[], str], report: Callable[[dict[str, Any]], None]) -> None:
        file.write_text(json.dumps(function()))
        report({"done": True})

    child, reports = start_child(talk), []
    try:
        while (some := child.hear()) is not None:
            reports += some
    finally:
        how = child.end()
    for report in reports:
        raise_error(report)
    if not reports:
        raise JobError(f"the process that was {what} ended ({how})", hint="The job's log has more.")
    result: dict[str, Any] = json.loads(file.read_bytes())
    return result
