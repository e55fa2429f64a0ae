"""Shows a run until it ends: as a live table on a terminal, otherwise as lines."""

import errno
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from gridmill.cli.format import job_line
from gridmill.cli.session import InterruptHandler, print_error
from gridmill.domain.environment_build import is_building
from gridmill.domain.pod_protocol import Event
from gridmill.domain.states import JobState
from gridmill.domain.views import JobView, RunView
from gridmill.sdk.client import Client
from gridmill.sdk.runs import Tick

_POLL_SECONDS = 0.25
_BUILDING_SECONDS = 2.0
"""The shortest time in seconds between two lines about the progress of an environment."""


class StateChangeLines:
    """Prints a line for each change of state to standard error."""

    def __enter__(self) -> Callable[[Tick], None]:
        return self.show

    def __exit__(self, *ending: object) -> None:
        """Do nothing, because lines leave the terminal unchanged."""

    def __init__(self) -> None:
        self._building: dict[str, tuple[float, str]] = {}

    def _show_building(self, view: RunView) -> None:
        """Print the progress of the environments of jobs, at most one line per interval."""
        for job in filter(is_building, view.jobs):
            now, note = time.monotonic(), str(job.progress.get("note") or "")
            at, before = self._building.get(job.job.id, (-_BUILDING_SECONDS, ""))
            if note != before and now - at >= _BUILDING_SECONDS:
                self._building[job.job.id] = now, note
                print_error(f"{time.strftime('%H:%M:%S')} {job.job.job.name}: {note}")

    def show(self, tick: Tick) -> None:
        """Print a line for a change of state. If a job waited without a reason and does not wait any more,
        nothing is printed."""
        jobs = {view.job.id: view for view in tick.view.jobs}
        for event in (event for event in tick.events if event.type == "lease"):
            clock = time.strftime("%H:%M:%S", time.localtime(event.time))
            print_error(f"{clock} {event.body.get('id')}: {event.body.get('message')}")
        for event in (event for event in tick.events if event.type == "state"):
            job, state = jobs.get(str(event.body.get("id"))), str(event.body.get("state"))
            message = str(event.body.get("message") or "")
            if job and not message and (state == JobState.BLOCKED or _is_over(job, state)):
                continue
            if not job and state in (JobState.WAITING, JobState.BLOCKED) and not message:
                continue  # a part starts soon, and one line for each of many jobs would hide the others
            clock = time.strftime("%H:%M:%S", time.localtime(event.time))
            print_error(
                f"{clock} {job_line(job, state, message) if job else _run_line(event, state, message)}"
            )
        self._show_building(tick.view)


def _is_over(job: JobView, state: str) -> bool:
    return state == JobState.WAITING and job.job.state != JobState.WAITING


def _run_line(event: Event, state: str, message: str) -> str:
    # an event of the run itself has no id of a job
    what = str(event.body.get("id") or "").partition("/")[2] or event.run_id
    return f"{what}: {state}" + (f" ({message})" if message not in ("", state) else "")


def display() -> AbstractContextManager[Callable[[Tick], None]]:
    """Return the live table if standard error is a terminal, otherwise an object that prints lines."""
    if not sys.stderr.isatty():
        return StateChangeLines()
    from gridmill.cli.live import LiveTable

    return LiveTable()


def follow(
    client: Client,
    run_id: str,
    interrupts: InterruptHandler,
    *,
    after: str = "",
    quiet: bool = False,
    on_tick: Callable[[], None] = lambda: None,
) -> RunView:
    """Show the run until it ends, and stop the run on Ctrl-C. Return the run after its end."""
    shown: AbstractContextManager[Callable[[Tick], None]] = nullcontext(_ignore) if quiet else display()
    stopping = False
    with shown as show:
        for tick in client.watch(run_id, after=after, every_seconds=_POLL_SECONDS):
            try:
                show(tick)
            except OSError as error:
                if error.errno != errno.EIO:  # the terminal was closed, and its SIGHUP has not arrived yet
                    raise
                interrupts.lose_terminal()
            on_tick()
            if interrupts.requested and not stopping:
                stopping = True
                print_error(f"stopping {run_id} ... (Ctrl-C again quits at once)")
                client.stop(run_id)
    return tick.view


def _ignore(_: Tick) -> None:
    """Show nothing."""
