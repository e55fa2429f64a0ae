"""What a report is made of: the events it shows, however many there are, and the run before."""

from dataclasses import replace

from tests.kit.report_views import a_job, a_run, curve

from gridmill.control.usecases.views import events_to_show, log_ends, run_before
from gridmill.domain.environment_build import BEGUN, ENVIRONMENT
from gridmill.domain.job_log import LogRecord
from gridmill.domain.pod_protocol import Event, EventType, event_id
from gridmill.domain.states import JobState, RunState
from gridmill.testing.memory_logs import MemoryLogs

FAILED = a_run(a_job("good"), a_job("bad", state=JobState.FAILED), state=RunState.FAILED)


def shown(events: list[Event], size: int = 7) -> tuple[Event, ...]:
    """The events, read in pages of that size."""
    kept = [replace(event, id=event_id(number)) for number, event in enumerate(events, 1)]

    def read(after: int, _limit: int) -> list[Event]:
        return kept[after : after + size]

    return events_to_show(read)


def texts(attempt: str, *written: str) -> list[LogRecord]:
    return [
        LogRecord(run_id="p-2", job="j", attempt_id=attempt, number=number, time=1.0, stream="out", text=text)
        for number, text in enumerate(written, 1)
    ]


def test_the_end_of_a_failed_jobs_log_is_there_however_much_was_logged():
    logs = MemoryLogs()
    for attempt in ("p-2.good.1", "p-2.bad.1", "p-2.bad.11", "p-2.bad.1.1"):
        logs.append(texts(attempt, *(f"{attempt} {number}\n" for number in range(60))))
    logs.append(texts("p-2.bad.1.2", "x" * 5000, "y\n"))
    ends = log_ends(FAILED, logs)
    assert [*ends] == ["p-2.bad.1"]
    last = [line.text for line in ends["p-2.bad.1"]]
    assert last[:-1] == [f"p-2.bad.1.1 {number}" for number in range(41, 60)], "of all ranks"
    assert last[-1] == f"{'x' * 2000} … (3,001 more characters)"


def test_metrics_by_step_and_events_about_environments_are_kept():
    building = Event(time=1.0, type=ENVIRONMENT, run_id="p-2", job="good", body={"text": f"{BEGUN} abc\n"})
    events = [*curve("good", train_loss=[3.0, 2.0]), building, replace(building, type="state")]
    found = shown(events)
    assert [event.body["value"] for event in found if event.type == EventType.METRIC] == [3.0, 2.0]
    assert [event.body["text"] for event in found if event.type == ENVIRONMENT] == [f"{BEGUN} abc\n"]


def test_the_run_before_is_the_newest_earlier_one_that_succeeded():
    runs = [a_run(number=number).run for number in range(1, 8)]
    runs[5] = replace(runs[5], probe="train")
    runs[4] = replace(runs[4], state=RunState.FAILED)
    runs[3] = replace(runs[3], pipeline="another")
    before = run_before(runs[6], tuple(reversed(runs)))
    assert before is not None
    assert before.id == "p-3"
    assert run_before(runs[0], runs) is None
