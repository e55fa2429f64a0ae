"""What every store must do when several threads, or several stores on one database, work at once."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from gridmill.errors import StaleVersionError
from gridmill.model.resource import Resource
from gridmill.ports.store import Change, Put, Record, Store
from gridmill.testing.store_samples import a_resource, a_run, an_event

_THREADS = 6
_BATCHES = 20
_PATIENCE_SECONDS = 120.0


def check_one_of_many_threads_wins(open_store: Callable[[], Store]) -> None:
    """Of those that change the same version at the same time exactly one succeeds, round after round."""
    with closing(open_store()) as store:
        store.commit([Put(noun=a_resource(), expected=0)])
        for version in range(1, 11):
            winners = _race(Put(noun=a_resource(gpus=version), expected=version), [store] * _THREADS)
            assert winners == 1
        assert store.get(Resource, a_resource().name) == Record(noun=a_resource(gpus=10), version=11)


def check_one_of_many_threads_makes_it(open_store: Callable[[], Store]) -> None:
    """The same for records that are not there yet."""
    with closing(open_store()) as store:
        for number in range(1, 11):
            assert _race(Put(noun=a_run(number), expected=0), [store] * _THREADS) == 1


def check_readers_see_whole_commits(open_store: Callable[[], Store]) -> None:
    """While one thread writes pairs, others never see half a pair, and never an event out of order."""
    with closing(open_store()) as store:
        store.commit([Put(noun=a_resource(name), expected=0) for name in "ab"])
        done = threading.Event()
        problems: list[str] = []

        def read() -> None:
            last, number = 0, 0
            while not done.is_set():
                gpus = {r.noun.gpus for r in store.list(Resource) if isinstance(r.noun, Resource)}
                if len(gpus) != 1:
                    problems.append(f"half a commit: {gpus}")
                for event in store.events(after=last):
                    if event.number != number + 1:
                        problems.append(f"event {event.number} comes after {number}")
                    last, number = event.sequence, event.number

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for version in range(1, 101):
            pair = [Put(noun=a_resource(name, gpus=version), expected=version) for name in "ab"]
            store.commit(pair, [an_event(version)])
        done.set()
        for reader in readers:
            reader.join(_PATIENCE_SECONDS)
        assert not problems, problems[:3]


def check_many_stores_race(open_store: Callable[[], Store]) -> None:
    """Commits of several stores at once: one winner each round, its event kept, no sequence given twice."""
    stores = [open_store() for _ in range(3)]
    try:
        stores[0].commit([Put(noun=a_resource(), expected=0)])
        for version in range(1, 11):
            winners = _race(Put(noun=a_resource(gpus=version), expected=version), stores)
            assert winners == 1
        sequences = [event.sequence for event in stores[1].events()]
        assert len(sequences) == len(set(sequences)) == 10
    finally:
        for store in stores:
            store.close()


def check_events_of_many_stores_at_once(open_store: Callable[[], Store]) -> None:
    """Commits of events alone never fail for one another; readers' `after` misses none of them."""
    stores = [open_store() for _ in range(3)]
    try:

        def keep(index: int) -> None:
            for _ in range(_BATCHES):
                stores[index].commit([], [an_event(), an_event()])

        def read(wanted: int) -> None:
            deadline = time.monotonic() + _PATIENCE_SECONDS
            seen: list[int] = []
            while len(seen) < wanted and time.monotonic() < deadline:
                seen += [event.sequence for event in stores[0].events(after=seen[-1] if seen else 0)]
            assert seen == [event.sequence for event in stores[0].events()], "a reader missed an event"

        wanted = 2 * _BATCHES * len(stores)
        _at_once(lambda index: keep(index) if index < len(stores) else read(wanted), len(stores) + 1)
        assert len(stores[0].events()) == wanted
    finally:
        for store in stores:
            store.close()


def _race(change: Change, stores: Sequence[Store]) -> int:
    """How many of the stores, each in a thread, could commit the change and an event."""
    won: list[int] = []

    def take_part(index: int) -> None:
        try:
            stores[index].commit([change], [an_event()])
            won.append(index)
        except StaleVersionError:
            pass

    _at_once(take_part, len(stores))
    return len(won)


def _at_once(act: Callable[[int], None], count: int) -> None:
    """Call `act` in that many threads, started together; raise what any of them raises."""
    start = threading.Barrier(count)

    def take_part(index: int) -> None:
        start.wait(_PATIENCE_SECONDS)
        act(index)

    with ThreadPoolExecutor(count) as threads:
        for outcome in [threads.submit(take_part, index) for index in range(count)]:
            outcome.result(_PATIENCE_SECONDS)
