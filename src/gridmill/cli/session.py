"""Code that all commands use: the client, output as text or JSON, and interrupts.

The first Ctrl-C, SIGTERM or loss of the terminal requests a clean stop. A second Ctrl-C ends the command
immediately. In JSON, times are ISO 8601 in UTC, although records contain Unix times.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import UTC, datetime
from importlib import import_module
from math import isfinite
from shutil import get_terminal_size
from textwrap import fill
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from gridmill.cli.format import columns, for_terminal, visible
from gridmill.cli.invocation import invocation
from gridmill.codec import encode
from gridmill.errors import UnavailableError
from gridmill.sdk.client import Client, connect
from gridmill.sdk.discovery import home_settings
from gridmill.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console

    from gridmill.ports.host import Host

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InterruptHandler:
    """A context in which the first signal sets `requested`, and the second signal raises
    KeyboardInterrupt. If the context is not `active`, signals have their usual effect."""

    def __init__(self, *, active: bool = True) -> None:
        self.requested = False
        self._active = active
        self._terminals = [stream.fileno() for stream in (sys.stdout, sys.stderr) if stream.isatty()]
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if self._active:
            self._before = {number: signal.signal(number, self._handle) for number in _ASKING}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self.lose_terminal()
        elif self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def lose_terminal(self) -> None:
        """Handle a closed terminal: writing to it fails, but the run must still stop cleanly."""
        self.requested = True
        nobody = os.open(os.devnull, os.O_WRONLY)
        for terminal in self._terminals:
            os.dup2(nobody, terminal)
        os.close(nobody)


TIMES: Mapping[str, frozenset[str]] = {
    "Alias": frozenset({"changed"}),
    "Alterations": frozenset({"changed"}),
    "Artifact": frozenset({"created"}),
    "Attempt": frozenset({"placed", "started", "ended"}),
    "BatchUse": frozenset({"started", "ended"}),
    "ComparedModel": frozenset({"created"}),
    "ControlView": frozenset({"started"}),
    "Deployment": frozenset({"created", "idle_since"}),
    "Event": frozenset({"time"}),
    "ImageView": frozenset({"created"}),
    "LaunchTry": frozenset({"at", "confirmed", "ended", "end_accepted"}),
    "Lease": frozenset({"opened", "ready", "release_asked", "closed", "counted", "failed"}),
    "Leftover": frozenset({"created"}),
    "LogEntry": frozenset({"time"}),
    "Machine": frozenset({"launched", "ended"}),
    "MachineEnd": frozenset({"began", "at"}),
    "MachineImage": frozenset({"created"}),
    "JobRun": frozenset({"not_before", "ready", "started", "ended"}),
    "LoadTask": frozenset({"loaded", "checked", "following"}),
    "Offer": frozenset({"read"}),
    "Pod": frozenset({"began", "ends"}),
    "Project": frozenset({"used_at"}),
    "Promotion": frozenset({"created", "decided"}),
    "Run": frozenset({"created", "started", "ended", "due"}),
    "DriftPeriod": frozenset({"since"}),
    "Schedule": frozenset({"since", "done", "drift_checked"}),
    "ScheduleView": frozenset({"next"}),
    "Secret": frozenset({"created", "changed"}),
    "SecretView": frozenset({"created", "changed"}),
    "ServiceKey": frozenset({"created"}),
    "NewServiceKey": frozenset({"created"}),
    "Service": frozenset({"created", "started", "changed", "ended", "retry_at"}),
    "ServiceReport": frozenset({"started_at", "written_at", "last_failure_at", "scaled_at"}),
    "Calibration": frozenset({"created"}),
    "ViewReport": frozenset({"checked_at", "behind_since"}),
    "ServiceView": frozenset({"since"}),
    "PodNumbers": frozenset({"reported_at"}),
    "ServiceTotals": frozenset({"scaled_at", "last_failure_at", "views_behind_since", "views_checked_at"}),
    "ShadowReport": frozenset({"began"}),
    "Successor": frozenset({"began"}),
    "Succession": frozenset({"switched"}),
    "ReplicaReport": frozenset({"started_at", "ready_at", "last_failure_at"}),
    "TenantView": frozenset({"added", "last_contact"}),
    "PartReport": frozenset({"began", "ended"}),
}
"""The fields of each record class that contain Unix times. The keys are the names of classes, so that no
class is imported."""


def with_times(value: Any) -> Any:  # noqa: ANN401  any part of a noun
    """Return the value as dicts, lists and scalars, with its times as ISO 8601 texts. An unknown time
    becomes null."""
    if is_dataclass(value):
        times = TIMES.get(type(value).__name__, frozenset())
        values = ((name, getattr(value, name)) for name in value.__dataclass_fields__)
        return {name: _time(part) if name in times else with_times(part) for name, part in values}
    if isinstance(value, Mapping):
        return {key: with_times(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [with_times(part) for part in value]
    return value


def _time(value: Any) -> Any:  # noqa: ANN401  as with_times
    if isinstance(value, list | tuple):
        return [_time(part) for part in value]
    return written(value) if isinstance(value, int | float) and value and isfinite(value) else None


def written(seconds: float) -> str:
    """Return a time as ISO 8601 text, such as `2026-11-25T18:54:10.123Z`. All texts in this format have the
    same length, so the order of the texts is the order of the times."""
    moment = datetime.fromtimestamp(round(seconds, 3), UTC)
    return f"{moment.strftime('%Y-%m-%dT%H:%M:%S')}.{moment.microsecond // 1000:03}Z"


Json = Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")]

_WIDE = 220
"""The width of tables in files and pipes, which have no screen width. The lines of tables in files and pipes
are not wrapped."""


@contextlib.contextmanager
def session(
    context: typer.Context, *, embed: bool = True, reading: bool = False, permanent: bool = False
) -> Iterator[Client]:
    """Return a context with a client for the command, which is closed at the end of the context. With
    `reading`, the client starts no control node. With `permanent`, UnavailableError is raised if the control
    node ends with its clients, because the detached runs of the client would not continue then.

    Tests pass a client of their own to `main`.
    """
    given = invocation(context)
    opened: contextlib.AbstractContextManager[Client] = (
        connect(given.home, url=given.url, embed=embed and not permanent, reading=reading)
        if given.client is None
        else contextlib.nullcontext(given.client)
    )
    with opened as client:
        if permanent:
            _require_permanent_node(client)
        yield client


def _require_permanent_node(client: Client) -> None:
    if client.control().embedded:
        raise UnavailableError(
            "the running control node ends when the commands that use it have ended",
            hint="Start a permanent control node: gridmill up. It takes over, and active runs continue.",
        )


def settings_of(context: typer.Context) -> Settings:
    """Return the settings of the home that the command uses."""
    given = invocation(context)
    return home_settings(given.home) if given.client is None else given.client.settings


def host_of(context: typer.Context) -> "Host":
    """Return the host. Commands call the factories of the host to serve a grid, to join a grid, and to check
    the machine."""
    return invocation(context).host


def emit(noun: object) -> None:
    """Print a JSON document in a single line to standard output. The times in the JSON document are in ISO
    8601."""
    text = encode(with_times(noun)).decode()
    if sys.stdout.isatty():
        text = visible(text, "\\u{:04x}")  # JSON readers decode this escape to the original character
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def print_error(text: str) -> None:
    """Print a message to standard error."""
    print(for_terminal(text, sys.stderr), file=sys.stderr, flush=True)


def console(*, error: bool = False) -> "Console":
    """Return the console for tables on standard output (or on standard error), with colours only on a
    terminal."""
    stream = sys.stderr if error else sys.stdout
    make: type[Console] = import_module("rich.console").Console
    return make(file=stream, width=None if stream.isatty() else _WIDE, highlight=False, soft_wrap=False)


def show_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    folded: Collection[str] = (),
    left_out: Sequence[str] = (),
) -> None:
    """Print a table to standard output. If standard output is not a terminal, print the table as plain text,
    which saves the 0.1 s to import the library for screens. On a narrow screen, the columns that `folded`
    names are wrapped, and the columns that `left_out` names are hidden if necessary."""
    if sys.stdout.isatty():
        from gridmill.cli.tables import FittedTable

        return show(FittedTable(head, rows, folded=folded, left_out=left_out))
    return print(columns(head, rows))


def print_sentence(text: str, indent: str = "") -> None:
    """Print a sentence to standard output. On a terminal the sentence is wrapped between words, never within
    a path."""
    if sys.stdout.isatty():
        width = max(20, get_terminal_size().columns)
        for line in visible(text).split("\n"):
            print(_folded(line, width, indent))
    else:
        print(f"{indent}{text}")


def _folded(line: str, width: int, indent: str) -> str:
    """Return the line as text that is wrapped between words."""
    if len(line) + len(indent) <= width:
        return f"{indent}{line}"
    return fill(
        line,
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def show(renderable: Any) -> None:  # noqa: ANN401  whatever Rich can show
    """Print an object of the library for screens to standard output."""
    console().print(renderable)
