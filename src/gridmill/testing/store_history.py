"""What every store must do when history is forgotten: part of the suite in `store_suite`."""

from collections.abc import Callable

from gridmill.ports.store import Store
from gridmill.testing.store_samples import an_event


def check_events_of_old_runs_go_and_sequences_go_on(open_store: Callable[[], Store]) -> None:
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
