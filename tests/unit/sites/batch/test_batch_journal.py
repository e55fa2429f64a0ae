"""The journal of a pod at a batch site."""

from pathlib import Path

from gridmill.domain.pod_protocol import EventType, PodEvent
from gridmill.sites.batch.journal import PodJournal


def event(attempt: str, number: int, kind: EventType = EventType.LOG) -> PodEvent:
    return PodEvent(
        number=number, attempt_id=attempt, token="t", time=1.0, type=kind, body={"text": f"{number}\n"}
    )


def numbers(journal: PodJournal) -> list[tuple[int, str, str]]:
    return [(one.number, one.attempt_id, one.body["text"]) for one in journal.waiting()]


def test_events_of_several_attempts_get_the_numbers_of_the_pod_once(tmp_path: Path) -> None:
    journal = PodJournal(tmp_path / "j")
    journal.append([event("a", 1), event("a", 2)])
    journal.append([event("b", 1)])
    journal.append([event("a", 2), event("a", 3)])
    assert numbers(journal) == [(1, "a", "1\n"), (2, "a", "2\n"), (3, "b", "1\n"), (4, "a", "3\n")]


def test_a_new_process_continues_also_after_an_incomplete_line(tmp_path: Path) -> None:
    journal = PodJournal(tmp_path / "j")
    journal.append([event("a", 1)])
    journal.append([event("a", 2, EventType.ENDED)])
    with (tmp_path / "j").open("ab") as file:
        file.write(b'{"event":{"numb')
    again = PodJournal(tmp_path / "j")
    again.append([event("a", 3)])  # after the end of the attempt
    again.append([event("b", 1)])
    assert [number for number, *_ in numbers(PodJournal(tmp_path / "j"))] == [1, 2, 3]
    assert again.has_ended("a")
    assert again.source("b") == 1


def test_acknowledged_events_leave_the_file_and_their_numbers_are_not_used_again(tmp_path: Path) -> None:
    journal = PodJournal(tmp_path / "j")
    for number in range(1, 40):
        long = PodEvent(
            number=number,
            attempt_id="a",
            token="t",
            time=1.0,
            type=EventType.LOG,
            body={"text": "x" * 40_000},
        )
        journal.append([long])
    journal.acknowledge(39)
    assert (tmp_path / "j").stat().st_size < 1000
    again = PodJournal(tmp_path / "j")
    again.append([event("a", 39), event("a", 40)])
    assert numbers(again) == [(40, "a", "40\n")]
