"""Encoded answers from memory are those of the use cases: no event is missed, and no view is too old."""

import threading

import pytest
from tests.sim.test_races import command, service, simulation

from gridmill.codec import decode, encode
from gridmill.control.event_tails import _BYTES, _PAGES_BYTES, EventTails
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import Event, sequence_of
from gridmill.domain.views import RunView
from gridmill.errors import NotFoundError, StorageError
from gridmill.testing.simulated_site import Behaviour

MANY = 150


def many(count: int = MANY) -> Pipeline:
    return Pipeline(name="p", jobs=tuple(command(f"j{number}") for number in range(count)))


def answer(cases, name: str, **arguments) -> bytes:
    """As the server answers."""
    body = cases.ready(name, arguments)
    return cases.encoded(name, arguments) if body is None else body


@pytest.mark.parametrize("limit", [7, 1000])
def test_followers_of_events_from_memory_miss_nothing(limit: int):
    grid = simulation(lambda order: Behaviour(seconds=1.0))
    cases = service(grid)
    run_id = cases.start_run(many()).run.id
    seen: list[Event] = []
    ready = 0
    for _ in range(5000):
        after = seen[-1].id if seen else ""
        ready += cases.ready("events", {"run_id": run_id, "after": after, "limit": limit}) is not None
        page = answer(cases, "events", run_id=run_id, after=after, limit=limit)
        assert page == encode(cases.events(run_id, after=after, limit=limit))
        seen += decode(page, tuple[Event, ...])
        if run_id not in grid.node.control.ledger.snapshot.runs and page == b"[]":
            break
        grid.advance()
    stored = grid.store.events(run_id=run_id, limit=100_000)
    assert [event.id for event in seen] == [event.id for event in stored]
    assert len(seen) > 3 * MANY
    assert ready > 5


def test_events_after_a_commit_of_unknown_fate_are_read_from_the_store(monkeypatch: pytest.MonkeyPatch):
    grid = simulation(lambda order: Behaviour(seconds=1.0))
    cases = service(grid)
    run_id = cases.start_run(many(3)).run.id
    answer(cases, "events", run_id=run_id)
    first = decode(answer(cases, "events", run_id=run_id), tuple[Event, ...])
    query = {"run_id": run_id, "after": first[-1].id}
    assert cases.ready("events", query) == b"[]"
    commit = grid.store.commit

    def commits_and_fails(*given):
        commit(*given)
        raise StorageError("the connection is lost")

    monkeypatch.setattr(grid.store, "commit", commits_and_fails)
    for _ in range(1000):
        grid.advance()
        if grid.store.events(run_id=run_id, after=sequence_of(first[-1].id)):
            break
    missed = grid.store.events(run_id=run_id, after=sequence_of(first[-1].id))
    assert missed
    assert answer(cases, "events", **query) == encode(missed)


def test_a_run_that_does_not_exist_is_not_kept():
    cases = service(simulation())
    for name in ("run", "events"):
        assert cases.ready(name, {"run_id": "none"}) is None
        with pytest.raises(NotFoundError):
            cases.encoded(name, {"run_id": "none"})


def test_of_many_readers_one_renews_a_view_before_it_is_too_old():
    grid = simulation(lambda order: Behaviour(seconds=100.0))
    cases = service(grid)
    run_id = cases.start_run(many()).run.id
    views, query, clock = cases._run_views, {"run_id": run_id, "since": ""}, grid.node.control.clock
    cases.encoded("run", query)
    kept = views._kept.get(run_id)
    kept.until = clock.monotonic() + 2.0  # as of a view that took long to make
    kept.commits = -1  # there were commits since
    assert cases.ready("run", query) == encode(kept.view)
    clock.advance(1.5)
    answers = [cases.ready("run", query) for _ in range(10)]
    assert [one is None for one in answers] == [True, *[False] * 9]
    renewed = decode(cases.encoded("run", query), RunView)
    assert views._kept.get(run_id).made == clock.monotonic()
    assert decode(cases.ready("run", {**query, "since": renewed.version}), RunView).unchanged


@pytest.mark.parametrize(("jobs", "committed"), [(3, False), (MANY, False), (MANY, True)])
def test_a_reader_gets_the_view_in_memory_while_a_tick_runs(jobs: int, committed: bool):
    grid = simulation(lambda order: Behaviour(seconds=100.0))
    cases = service(grid)
    run_id = cases.start_run(many(jobs)).run.id
    query, clock = {"run_id": run_id, "since": ""}, grid.node.control.clock
    first = answer(cases, "run", **query)
    kept = cases._run_views._kept.get(run_id)
    kept.until = clock.monotonic() + 2.0 if jobs == MANY else kept.until
    kept.commits = -1 if committed else kept.commits
    clock.advance(1.5)  # the view has to be made again
    tick_runs, tick_ends = threading.Event(), threading.Event()

    def tick() -> None:
        with grid.node.lock:
            tick_runs.set()
            tick_ends.wait(20.0)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        assert tick_runs.wait(20.0)
        assert answer(cases, "run", **query) == first
    finally:
        tick_ends.set()
        thread.join()
    answer(cases, "run", **query)
    assert cases._run_views._kept.get(run_id).made == clock.monotonic()


def test_the_memory_of_kept_events_is_bounded():
    tails, size = EventTails(), 10_000
    tails.follow("p-1", lambda: 0)
    assert tails.after("p-1", 0, 10) == b"[]"
    for number in range(1, 200):
        tails.add([Event(time=1.0, type="x", run_id="p-1", body={"text": "x" * size})], [number])
        tails.keep_page("p-1", number, 7, b"x" * 100_000)
    assert tails.after("p-1", 0, 10) is None
    tail = tails._tails["p-1"]
    assert sum(map(len, tail.texts)) <= _BYTES
    newest = decode(tails.after("p-1", tail.begin, 1000), tuple[Event, ...])
    assert [sequence_of(one.id) for one in newest] == [*range(tail.begin + 1, 200)]
    assert sum(map(len, tails._pages.values())) == tails._page_bytes <= _PAGES_BYTES
    for number in range(100):
        tails.follow(f"other-{number}", lambda: 0)
    assert tails.after("p-1", 199, 10) is None
    assert len(tails._tails) <= 16


def _event(size: int = 1) -> Event:
    return Event(time=1.0, type="x", run_id="p-1", body={"text": "x" * size})


def test_an_answer_is_bounded_although_the_newest_event_is_large():
    tails = EventTails()
    tails.follow("p-1", lambda: 0)
    for number in range(1, 2000):
        tails.add([_event()], [number])
    tails.add([_event(8 * _BYTES)], [2000])
    tails.add([_event()], [2001])
    tail = tails._tails["p-1"]
    assert sum(map(len, tail.texts)) <= _BYTES
    assert tails.after("p-1", 1999, 10) is None
    assert b'"id":"00000000000007d1"' in tails.after("p-1", 2000, 10)


def test_an_old_reader_that_answers_first_does_not_open_a_newer_tail():
    tails, asked, answered = EventTails(), threading.Event(), threading.Event()

    def read_slowly() -> int:
        asked.set()
        assert answered.wait(30)
        return 5

    old = threading.Thread(target=tails.follow, args=("p-1", read_slowly))
    old.start()
    assert asked.wait(30)
    tails.clear()
    tails.add([_event()], [6])

    def read_meanwhile() -> int:
        answered.set()
        old.join(30)
        assert tails.after("p-1", 5, 10) is None, "event 6 would be missed"
        return 6

    tails.follow("p-1", read_meanwhile)
    assert tails.after("p-1", 6, 10) == b"[]"


def test_a_run_is_followed_although_the_store_failed_before():
    tails = EventTails()

    def fail() -> int:
        raise StorageError("the connection is lost")

    with pytest.raises(StorageError):
        tails.follow("p-1", fail)
    tails.follow("p-1", lambda: 5)
    assert tails.after("p-1", 5, 10) == b"[]"
