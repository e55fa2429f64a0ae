"""What every store must do with events, kept and forgotten: part of the suite in `store_suite`."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

from gridmill.model.event import Event
from gridmill.ports.store import Store
from gridmill.testing.store_samples import an_event

Opener: TypeAlias = Callable[[], Store]
"""Opens the same database at each call (for a store in memory: a new, empty one)."""


def check_events_come_back_in_order(open_store: Opener) -> None:
    """Sequences grow in the order given; what is read is what was kept."""
    with closing(open_store()) as store:
        batches = [[an_event(1), an_event()], [an_event(2, text="\0ä\n\u2028")], []]
        given = [store.commit([], batch) for batch in batches]
        sequences = [sequence for batch in given for sequence in batch]
        assert [len(batch) for batch in given] == [2, 1, 0]
        assert all(b > a > 0 for a, b in pairwise(sequences))
        events = [event for batch in batches for event in batch]
        kept = [replace(e, sequence=s) for e, s in zip(events, sequences, strict=True)]
        assert [*store.events()] == kept


def check_a_pods_event_is_kept_once(open_store: Opener) -> None:
    """By (pod_id, number): across commits and within one. The control node's own, numbered 0, always are."""
    with closing(open_store()) as store:
        (first,) = store.commit([], [an_event(1, text="first\n")])
        again = store.commit([], [an_event(2), an_event(1, text="again\n"), an_event(2), an_event(3)])
        assert again[1] == again[2] == 0
        assert 0 < first < again[0] < again[3]
        other_pod = replace(an_event(1), pod_id="trainers-2.0")
        own = store.commit([], [an_event(), other_pod, an_event()])
        assert again[3] < own[0] < own[1] < own[2]
        assert [e.sequence for e in store.events()] == [first, again[0], again[3], *own]
        assert store.events(limit=1)[0].body["text"] == "first\n"


def check_events_are_read_by_run_job_and_after(open_store: Opener) -> None:
    """Filters alone and together; `after` and `limit` page through without gap or repetition."""
    with closing(open_store()) as store:
        runs, jobs = ("weather-1", "weather-2"), ("", "a", "b")
        events = [an_event(run_id=run, job=job) for _ in range(4) for run in runs for job in jobs]
        sequences = store.commit([], events)
        kept = [replace(e, sequence=s) for e, s in zip(events, sequences, strict=True)]
        for run in (None, *runs, "nobody"):
            for job in (None, *jobs, "nobody"):
                wanted = [e for e in kept if run in (None, e.run_id) and job in (None, e.job)]
                assert [*store.events(run_id=run, job=job)] == wanted
                assert _paged(store, run, job) == wanted
        assert [*store.events(after=sequences[-1])] == []


def _paged(store: Store, run: str | None, job: str | None) -> list[Event]:
    found: list[Event] = []
    while page := store.events(run_id=run, job=job, after=found[-1].sequence if found else 0, limit=3):
        assert len(page) <= 3
        assert not found or page[0].sequence > found[-1].sequence
        found += page
    return found


def check_events_of_old_runs_go_and_sequences_go_on(open_store: Opener) -> None:
    """Dropping events forgets those of the named runs, may be repeated, and no number is given twice."""
    store = open_store()
    store.commit((), [an_event(1, run_id="old-1"), an_event(2, run_id="new-1")])
    (last,) = store.commit((), [an_event(3, run_id="old-2")])
    for _ in range(2):
        store.drop_events(["old-1", "old-2", "none-1"])
    assert [event.run_id for event in store.events()] == ["new-1", "old-2"], "the newest of all stays"
    assert [event.run_id for event in store.events(run_id="old-1")] == []
    (again,) = store.commit((), [an_event(4, run_id="new-1")])
    assert again > last
    store.drop_events(["old-2"])
    assert [event.number for event in store.events()] == [2, 4]
    store.drop_events([])
    store.close()
