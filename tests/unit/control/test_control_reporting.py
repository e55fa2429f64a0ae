"""What a report is made of: the events it shows, however many there are, and the run before."""

from dataclasses import replace

from tests.kit.report_views import a_job, a_run, curve, logs

from gridmill.control.usecases import views
from gridmill.control.usecases.views import events_to_show, run_before
from gridmill.domain.environment_build import BEGUN
from gridmill.domain.pod_protocol import Event, EventType, event_id
from gridmill.domain.states import JobState, RunState

FAILED = a_run(a_job("good"), a_job("bad", state=JobState.FAILED), state=RunState.FAILED)


def shown(events: list[Event], size: int = 7) -> tuple[Event, ...]:
    """The events, read in pages of that size."""
    kept = [replace(event, id=event_id(number)) for number, event in enumerate(events, 1)]

    def read(after: int, _limit: int) -> list[Event]:
        return kept[after : after + size]

    return events_to_show(FAILED, read)


def texts(events: tuple[Event, ...]) -> list[str]:
    return [str(event.body.get("text", "")).strip() for event in events if event.type == EventType.LOG]


def test_the_end_of_a_failed_jobs_log_is_there_however_much_was_logged(monkeypatch):
    monkeypatch.setattr(views, "LOGS_PER_JOB", 5)
    chatter = [event for n in range(60) for event in (*logs("good", f"good {n}"), *logs("bad", f"bad {n}"))]
    assert texts(shown(chatter)) == [f"bad {n}" for n in range(55, 60)]


def test_metrics_by_step_and_lines_about_environments_are_kept():
    building = [
        replace(event, body={**event.body, "stream": "pod"}) for event in logs("good", f"{BEGUN} abc")
    ]
    events = [
        *curve("good", train_loss=[3.0, 2.0]),
        *building,
        *logs("good", f"{BEGUN} by the program itself"),
    ]
    found = shown(events)
    assert [event.body["value"] for event in found if event.type == EventType.METRIC] == [3.0, 2.0]
    assert texts(found) == [f"{BEGUN} abc"]


def test_the_run_before_is_the_newest_earlier_one_that_succeeded():
    runs = [a_run(number=number).run for number in range(1, 8)]
    runs[5] = replace(runs[5], probe="train")
    runs[4] = replace(runs[4], state=RunState.FAILED)
    runs[3] = replace(runs[3], pipeline="another")
    before = run_before(runs[6], tuple(reversed(runs)))
    assert before is not None
    assert before.id == "p-3"
    assert run_before(runs[0], runs) is None
