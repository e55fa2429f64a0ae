"""What a report is made of beside the run: the events that it shows, and the run before."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from gridmill.model.building import BEGUN, ENDED
from gridmill.model.event import Event, EventType
from gridmill.model.failures import at_fault, failed_jobs
from gridmill.model.run import Run
from gridmill.model.state import RunState
from gridmill.model.view import RunView

PAGE = 10_000
MOST_METRICS = 200_000
LOGS_PER_JOB = 200
"""Log events that are kept per failed job, the last ones: a report shows their last lines."""

Read = Callable[[int, int], Sequence[Event]]
"""The run's events after a sequence, so many at most."""


def events_to_show(view: RunView, read: Read) -> tuple[Event, ...]:
    """Of all events of a run: its metrics by step, the ends of the logs of failed jobs, and when
    environments were built.

    Read page by page, so that the log of a chatty run is never in memory as a whole.
    """
    failed = {attempt.job_run_id: attempt.id for job in failed_jobs(view) if (attempt := at_fault(job))}
    logs: dict[str, deque[Event]] = {one: deque(maxlen=LOGS_PER_JOB) for one in failed.values()}
    kept: list[Event] = []
    for event in _all(read):
        if event.type == EventType.METRIC and event.body.get("step") is not None:
            if len(kept) < MOST_METRICS:
                kept.append(event)
        elif event.type == EventType.LOG:
            if _is_of_building(event):
                kept.append(event)
            for attempt_id, last in logs.items():
                if event.attempt_id == attempt_id or event.attempt_id.startswith(f"{attempt_id}."):
                    last.append(event)
    return (*kept, *(event for last in logs.values() for event in last))


def _all(read: Read) -> Iterator[Event]:
    after = 0
    while page := read(after, PAGE):
        yield from page
        after = page[-1].sequence


def _is_of_building(event: Event) -> bool:
    text = str(event.body.get("text", ""))
    return event.body.get("stream") == "pod" and text.startswith((BEGUN, ENDED))


def run_before(run: Run, runs: Sequence[Run]) -> Run | None:
    """The last run of the pipeline before this one that succeeded; probes are none."""
    earlier = [
        one
        for one in runs
        if one.order < run.order
        and one.state == RunState.SUCCEEDED
        and not one.probe
        and one.pipeline == run.pipeline
    ]
    return max(earlier, key=lambda one: one.order, default=None)
